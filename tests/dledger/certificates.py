"""Certificates for tests, made by the `openssl` program; tests are skipped where it is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dledger.runtime.env import production_env
from dledger.runtime.tls import PeerTls, TlsFiles


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl program")
        self._dir = directory
        self._name = name
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._new_key = key
        subject = ["-subj", f"/CN=authority {name}", "-days", "2"]
        self._openssl(
            "req", "-x509", *key, "-keyout", str(self._key), "-out", str(self.certificate), *subject
        )

    def issue(self, file: str, common_name: str, dns: str = "", days: int = 2) -> TlsFiles:
        """Key and certificate files for a name. `days`: how long it counts; -1: its time is over."""
        key, request, certificate = (self._dir / f"{file}.{kind}" for kind in ("key", "csr", "pem"))
        extra = ["-addext", f"subjectAltName=DNS:{dns}"] if dns else []
        subject = ["-subj", f"/CN={common_name}"]
        self._openssl("req", *self._new_key, "-keyout", str(key), "-out", str(request), *subject, *extra)
        signer = ["-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial"]
        signer += ["-days", str(days)]
        self._openssl(
            "x509", "-req", "-in", str(request), "-out", str(certificate), *signer, "-copy_extensions", "copy"
        )
        return TlsFiles(str(certificate), str(key), str(self.certificate))

    def tls(self, file: str, common_name: str, dns: str = "") -> PeerTls:
        """Contexts with a new certificate."""
        return PeerTls(self.issue(file, common_name, dns), production_env(file).log)

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
