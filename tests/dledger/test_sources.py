"""Where connections of members come from, by name and by address; where a peer port listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import pytest

from dledger.commands.standalone import SETTINGS
from dledger.config import NodeConfig
from dledger.peers.links import PeerConnection
from dledger.peers.sources import Sources, own_places
from dledger.runtime.env import production_env
from dledger.runtime.settings import ConfigError, Property

NAMES = {"n0.example": "10.0.0.1", "n1.example": "10.0.0.2", "here.example": "127.0.1.1"}
PEERS = {"n0": "n0.example:40911", "n1": "n1.example:40911", "n2": "192.0.2.3:40911"}


async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
    if host not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (NAMES[host], port))]


class Node:
    """Stands for the connections of a node."""

    def __init__(self) -> None:
        self.decided: list[tuple[str, bool]] = []

    def addresses(self) -> Mapping[str, str]:
        return PEERS

    def admit(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        self.decided.append((connection.host, True))

    def turn_away(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        self.decided.append((connection.host, False))


def asked(hosts: list[str], *allowed: str, tls: bool = False) -> list[tuple[str, bool]]:
    """What becomes of hellos from these hosts."""

    async def scenario() -> list[tuple[str, bool]]:
        loop = asyncio.get_running_loop()
        loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]
        node = Node()
        config = NodeConfig("g", "n0", PEERS, "unused", allowed_sources=allowed)
        sources = Sources(production_env("n0"), config, node, tls=tls)
        sources._ask = nobody_answers  # type: ignore[method-assign]
        for host in hosts:
            connection = PeerConnection(lambda *_: None, lambda _: None, 1)
            connection.host = host
            sources.decide(connection, {})
        running = asyncio.create_task(sources.run())
        async with asyncio.timeout(20):
            while len(node.decided) < len(hosts):  # noqa: ASYNC110 - looks at what the task does
                await asyncio.sleep(0)
        running.cancel()
        return sorted(node.decided)

    async def nobody_answers() -> None: ...

    return asyncio.run(scenario())


def test_members_are_known_by_name_and_by_address_and_this_machine_always() -> None:
    hosts = ["10.0.0.2", "192.0.2.3", "::ffff:10.0.0.1", "127.0.0.9", "::1"]
    assert asked(hosts) == [(host, True) for host in sorted(hosts)]


def test_others_are_turned_away_but_for_what_is_allowed() -> None:
    hosts = ["10.0.0.3", "10.9.1.7", "fe80::1%eth0"]
    assert asked(hosts, "10.9.0.0/16") == [("10.0.0.3", False), ("10.9.1.7", True), ("fe80::1%eth0", False)]
    for allowed, tls in ((("*",), False), ((), True)):
        assert all(admitted for _, admitted in asked(hosts, *allowed, tls=tls))


@pytest.mark.parametrize(
    ("own", "peers", "places"),
    [
        ("n0.example:1", PEERS, ("10.0.0.1",)),
        ("127.0.0.1:1", {"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}, ("127.0.0.1",)),
        ("here.example:1", {"n0": "here.example:1", "n1": "n1.example:2"}, ()),
        ("unknown.example:1", PEERS, ()),
        ("192.0.2.3:1", PEERS, ("192.0.2.3",)),
    ],
)
def test_a_port_listens_where_the_others_find_it(
    own: str, peers: dict[str, str], places: tuple[str, ...]
) -> None:
    async def scenario() -> tuple[str, ...]:
        asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]
        return await own_places(own, peers)

    assert asyncio.run(scenario()) == places


def test_a_source_that_is_no_address_is_refused_with_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"peerAllowedSources.*an address, a network"):
        SETTINGS.load([], [Property("peerAllowedSources", "10.0.0.1/8")])
