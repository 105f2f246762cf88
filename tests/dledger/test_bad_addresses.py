"""Addresses with a typo: settings name it; where one is in a log already it is one that nobody reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dledger.config import NodeConfig, parse_peers
from dledger.election.configuration import MAX_MEMBERS
from dledger.messages import Code
from dledger.peers.dialling import Dialler
from dledger.peers.links import PeerConnection
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import production_env
from dledger.runtime.settings import ConfigError
from tests.broker.harness import skip_s
from tests.client.fake_cluster import eventually

TYPOS = ["n3..example.com:20914", ".n3:1", "x" * 64 + ":1", "n3:99999", "n3", "n3\0:1", "http://n3:1"]


def never() -> PeerConnection:
    raise AssertionError("connected")


@pytest.mark.parametrize("address", [*TYPOS, "127.0.0.1:99999", ":1", ""])
def test_a_bad_address_is_one_that_cannot_be_reached(address: str) -> None:
    with pytest.raises(OSError, match=r"host:port|host name"):
        asyncio.run(Dialler(address, None, 1.0).connect(never))


@pytest.mark.parametrize("address", TYPOS)
def test_settings_with_a_bad_address_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"dLegerPeers: n1: .*(host:port|host name)"):
        parse_peers(f"n0-127.0.0.1:1;n1-{address}")
    with pytest.raises(ConfigError, match=r"dLegerPeers: n1: .*(host:port|host name)"):
        NodeConfig("g", "n0", {"n0": "127.0.0.1:1", "n1": address}, "/nowhere")


@pytest.mark.parametrize("node", ["n", "0", "n0x", "n\u00b2", "n" + "1" * 40])
def test_what_is_no_node_id_is_refused(node: str) -> None:
    with pytest.raises(ConfigError, match=r"one letter with digits"):
        parse_peers(f"{node}-127.0.0.1:1")


def test_a_group_in_settings_is_no_larger_than_one_in_a_log() -> None:
    peers = [f"n{number}-127.0.0.1:{number + 1}" for number in range(MAX_MEMBERS + 1)]
    assert len(parse_peers(";".join(peers[:-1]))) == MAX_MEMBERS
    with pytest.raises(ConfigError, match=f"at most {MAX_MEMBERS} members"):
        parse_peers(";".join(peers))


def test_where_to_listen_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"bindAddress 'a..b' is neither"):
        NodeConfig("g", "n0", {"n0": "127.0.0.1:1"}, "/nowhere", bind_host="a..b")


def test_a_client_tries_the_other_addresses() -> None:
    async def ask() -> None:
        async with DLedgerClient(production_env(), {"n0": "n0..example.com:1"}, 60.0) as client:
            asked = asyncio.ensure_future(client.append(b"x"))
            await eventually(lambda: client._place > 1)  # it was tried, in vain
            await skip_s(60)
            await asked

    with pytest.raises(RequestFailed, match=r"n0\.\.example\.com.*nor a host name"):
        asyncio.run(ask())


def test_a_client_says_what_cannot_be_asked(unused_tcp_ports: Callable[[int], list[int]]) -> None:
    async def ask() -> None:
        loop = asyncio.get_running_loop()
        (port,) = unused_tcp_ports(1)
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", port)
        async with server, DLedgerClient(production_env(), {"n0": f"127.0.0.1:{port}"}, 60.0) as client:
            for request in (client.promote_member("x" * 70_000), client.promote_member("\udc80")):
                with pytest.raises(RequestFailed, match=r"cannot be encoded") as error:
                    await request
                assert error.value.code is Code.UNEXPECTED_ARGUMENT
            with pytest.raises(RequestFailed, match=r"cannot be encoded"):
                await client.get(1 << 70)

    asyncio.run(ask())
