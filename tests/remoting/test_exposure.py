"""A port that anybody may use says so at the start, and no other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.broker import cli as broker_shell
from dledger.remoting import cli as remoting_shell
from dledger.remoting.exposure import open_address
from dledger.runtime.remoting_tls import TlsSettings
from tests.command_line import broker, namesrv

CERTIFIED: dict[str, Any] = {
    "mode": "enforcing",
    "certificate": "c",
    "key": "k",
    "client_auth": "require",
    "authority": "a",
}
BROKER = "brokerName=b\nbrokerIP1=127.0.0.1\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:40911\n"


@pytest.mark.parametrize(
    ("host", "tls", "expected"),
    [
        ("0.0.0.0", {}, "0.0.0.0:10911"),
        ("::", {}, "[::]:10911"),
        ("10.0.0.7", {}, "10.0.0.7:10911"),
        ("broker.example", {}, "broker.example:10911"),
        ("127.0.0.1", {}, ""),
        ("127.5.5.5", {}, ""),
        ("::1", {}, ""),
        ("Localhost", {}, ""),
        ("0.0.0.0", CERTIFIED, ""),
        ("0.0.0.0", CERTIFIED | {"mode": "permissive"}, "0.0.0.0:10911"),
        ("0.0.0.0", CERTIFIED | {"client_auth": "optional"}, "0.0.0.0:10911"),
    ],
)
def test_where_anybody_may_connect(host: str, tls: dict[str, Any], expected: str) -> None:
    assert open_address(host, 10911, TlsSettings(**tls)) == expected


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        ("", True),
        ("bindAddress=127.0.0.1\n", False),
        ("aclEnable=true\n", False),
        ("authenticationEnabled=true\n", False),
    ],
)
@pytest.mark.usefixtures("ports_are_free")
def test_a_broker_without_accounts_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lines: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(broker_shell, "set_up_logging", lambda *arguments, **named: None)
    monkeypatch.setattr(broker_shell, "run", lambda *arguments: 0)
    file = tmp_path / "broker.conf"
    file.write_text(BROKER + lines)
    assert broker(["-c", str(file)]) == 0
    assert ("every client that can connect may read, send" in caplog.text) is warned
    assert ("0.0.0.0:10911" in caplog.text) is warned


@pytest.mark.parametrize(("lines", "warned"), [("", True), ("bindAddress=::1\n", False)])
@pytest.mark.usefixtures("ports_are_free")
def test_so_does_a_nameserver(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lines: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(remoting_shell, "set_up_logging", lambda *arguments, **named: None)
    monkeypatch.setattr(remoting_shell, "run_program", lambda *arguments: 0)
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=9876\n" + lines)
    assert namesrv(["-c", str(file)]) == 0
    assert ("every client that can connect may register brokers" in caplog.text) is warned
