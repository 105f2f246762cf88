"""The settings tls.peer.*: all or none, usable files, and no password in what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.broker.config import SETTINGS
from dledger.runtime.settings import ConfigError
from tests.command_line import broker as program

BASE = {"dLegerPeers": "n0-127.0.0.1:40911", "dLegerSelfId": "n0"}
TLS = {"tls.peer.certPath": "c", "tls.peer.keyPath": "k", "tls.peer.trustCertPath": "a"}


def test_all_three_files_or_none() -> None:
    assert SETTINGS.load(BASE)[0].peer_tls is None
    config, _ = SETTINGS.load(BASE | TLS)
    assert config.peer_tls is not None and config.peer_tls.authority == "a"
    for name in TLS:
        with pytest.raises(ConfigError, match="must all be set, or none"):
            SETTINGS.load(BASE | {key: value for key, value in TLS.items() if key != name})


def test_the_password_is_not_printed() -> None:
    config, _ = SETTINGS.load(BASE | TLS | {"tls.peer.keyPassword": "secret"})
    assert config.peer_tls is not None and config.peer_tls.password == "secret"
    assert "secret" not in str(SETTINGS.format(config))


@pytest.mark.usefixtures("ports_are_free")
def test_files_that_cannot_be_used_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    settings = BASE | {"storePathRootDir": str(tmp_path)} | dict.fromkeys(TLS, str(tmp_path / "nowhere.pem"))
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    assert program(["-c", str(path)]) == 2
    assert "tls.peer files cannot be used" in capsys.readouterr().err
