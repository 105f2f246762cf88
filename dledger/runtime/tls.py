"""TLS between peers, and parts of it that the remoting protocol also uses. The program makes these objects at
its start.

Between peers both sides present a certificate of the same authority. The layer above decides whether the
other side is the right node; `certificate_names` returns the names to compare. To a client, a server presents
its certificate, and asks for the client's if one is required.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from dledger.runtime.log import Log
from dledger.runtime.settings import Setting

TlsError = ssl.SSLError
"""Error of a handshake or of a certificate. It is a kind of OSError."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for TLS between peers. Either the first three are given, or none of them is."""

    certificate: Annotated[str, Setting("tls.peer.certPath")] = ""
    """PEM file with this node's certificate (and intermediate certificates) for TLS between the peers. If it
    is empty, the peers do not use TLS."""
    key: Annotated[str, Setting("tls.peer.keyPath")] = ""
    """PEM file with the key of this node's certificate."""
    authority: Annotated[str, Setting("tls.peer.trustCertPath")] = ""
    """PEM file with the authority that signs the certificates of all nodes."""
    password: Annotated[str, Setting("tls.peer.keyPassword", secret=True)] = ""
    """Password of the key, if it is encrypted; never shown."""

    def __post_init__(self) -> None:
        files = (self.certificate, self.key, self.authority)
        if any(files) and not all(files):
            raise ValueError(
                "tls.peer.certPath, tls.peer.keyPath and tls.peer.trustCertPath must all be set, or "
                "none of them"
            )


class ReadFiles:
    """PEM files that are read again when they change."""

    def __init__(self, paths: Sequence[str], log: Log) -> None:
        """Check that the files can be read. Raises OSError for a file that cannot."""
        for path in paths:
            open(path, "rb").close()  # an error names the file, as OpenSSL's errors do not
        self._paths = tuple(paths)
        self._log = log.child("tls")
        self._read = self._versions()

    def _versions(self) -> tuple[tuple[int, int], ...]:
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in map(os.stat, self._paths))

    def refresh(self, load: Callable[[], object]) -> None:
        """Call `load` if the files have changed. If they cannot be used (half written ...), nothing changes,
        because `load` checks them first."""
        try:
            versions = self._versions()
        except OSError:
            versions = ()
        if versions == self._read:
            return
        self._read = versions
        if why := self.read_again(load):
            self._log.warning(
                "the changed TLS files cannot be used, so the previous ones stay in use", reason=why
            )
        else:
            self._log.info("TLS files reloaded", certificate=self._paths[0])

    def read_again(self, load: Callable[[], object]) -> str:
        """Call `load`, whether the files have changed or not. Return an empty text, or the reason why the
        files cannot be used; then nothing has changed."""
        try:
            load()
            self._read = self._versions()
        except OSError as error:
            return str(error)
        return ""


class PeerTls:
    """TLS contexts for connections in both directions. When files change, later connections use the new ones
    (`refresh`)."""

    def __init__(self, files: TlsFiles, log: Log) -> None:
        """Read the files. Raises OSError (TlsError is a kind of it) if one is missing or cannot be used."""
        self._files = files
        self._read = ReadFiles((files.certificate, files.key, files.authority), log)
        self.on_refused: Callable[[str], None] = lambda reason: None
        """Called with the reason of a failed handshake of an accepted connection, because asyncio does not
        report it."""
        self.server: ssl.SSLContext = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.client: ssl.SSLContext = self._context(ssl.PROTOCOL_TLS_CLIENT)
        watch_handshakes(self.server, lambda reason: self.on_refused(reason))

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # the node id is compared instead, after the hello
        context.verify_mode = ssl.CERT_REQUIRED
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        files = self._files
        # With an empty password OpenSSL would ask on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: files.password)
        context.load_verify_locations(files.authority)

    def refresh(self) -> None:
        """Read files again that have changed. If they cannot be used (half written ...), nothing changes. An
        authority that was removed from its file stays trusted until the next start.
        """
        self._read.refresh(self._load_again)

    def reload(self) -> str:
        """Read the files again. Return an empty text, or the reason why they cannot be used."""
        return self._read.read_again(self._load_again)

    def _load_again(self) -> None:
        self._context(ssl.PROTOCOL_TLS_SERVER)  # key and certificate belong together, or this raises
        for context in (self.server, self.client):
            self._load(context)


def watch_handshakes(context: ssl.SSLContext, on_refused: Callable[[str], None]) -> None:
    """Call `on_refused` with the reason whenever a handshake of a server with this context fails."""

    class Watched(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                on_refused(error.reason or str(error))
                raise

    context.sslobject_class = Watched


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the common name and the DNS names of a peer's certificate (`get_extra_info("peercert")`)."""
    if not certificate:
        return ()
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    names += [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return tuple(names)
