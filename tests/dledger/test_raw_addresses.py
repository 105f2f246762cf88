"""Raw connections reach the addresses that all the others reach, IPv6 in brackets as well."""

from __future__ import annotations

import socket

import pytest

from dledger.commands.group_status import NothingSeen, look_at_namesrv
from dledger.local import wire


def listening(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.bind((host, 0))
    except OSError:
        server.close()
        pytest.skip(f"this machine has no {host}")
    server.listen()
    return server


@pytest.mark.parametrize(
    ("host", "text"),
    [("::1", "[::1]:{}"), ("::1", "::1:{}"), ("127.0.0.1", "127.0.0.1:{}"), ("127.0.0.1", "localhost:{}")],
)
def test_what_listens_is_reached(host: str, text: str) -> None:
    with listening(host) as server:
        assert wire.listens(text.format(server.getsockname()[1]))


@pytest.mark.parametrize("text", ["[::1]", "localhost", "localhost:x", "", "http://h:1", "a b:1", "h:70000"])
def test_what_is_no_address_gives_no_answer(text: str) -> None:
    with pytest.raises(wire.NoAnswer):
        wire.RawConnection(text)
    assert not wire.listens(text)


def test_the_status_of_a_group_with_ipv6_addresses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("::1") as server:
        address = f"[::1]:{server.getsockname()[1]}"
        found = {"broker-a": wire.Registered("C", {"0": address})}
        monkeypatch.setattr(wire, "registered", lambda where, timeout_s=1.0: found)
        seen = look_at_namesrv("[::1]:9876", None)
        assert seen.code == 0 and seen.problems == []
    monkeypatch.undo()
    with pytest.raises(NothingSeen) as error:
        look_at_namesrv(address, None)
    assert address in str(error.value) and "Name or service not known" not in str(error.value)
