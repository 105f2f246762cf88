"""A foreign machine that knows the peer ports: nothing that it sends raises a term or ends a leadership."""

from __future__ import annotations

import asyncio
from functools import partial

import node_group
import pytest

from chaos.sim import World
from dledger.election.membership import encode_hello
from dledger.messages import Append, Heartbeat, Message, TimeoutNow, VoteRequest
from dledger.node import Node
from dledger.wire import HELLO, PROOF, encode_frame, encode_message
from formats.entry import Kind
from runtime.env import Env

HIGH = 1_000_000
FORGED: list[Message] = [
    VoteRequest(HIGH, "n1", HIGH, HIGH),
    VoteRequest(HIGH, "n1", HIGH, HIGH, transfer=True),
    Heartbeat(HIGH, "n1"),
    TimeoutNow(HIGH, "n1"),
    Append(HIGH, "n1", -1, -1, 0, 0, 0, 0, b"x" * 64),
]


class Sender(asyncio.Protocol):
    """Sends once, and keeps what comes back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


def frames(message: Message) -> bytes:
    return b"".join(bytes(part) for part in encode_message(message))


def openings(node: Node) -> list[bytes]:
    """How a stranger may begin: everything that somebody who has listened on the wire could know."""
    seen = encode_hello(node.my_hello())
    as_n1 = seen | {"node": "n1", "incarnation": "somebody else's"}
    return [
        b"",
        encode_frame(HELLO, as_n1 | {"group": "other"}),
        encode_frame(HELLO, as_n1 | {"cluster": "other"}),
        encode_frame(HELLO, as_n1 | {"node": "n9"}),
        encode_frame(HELLO, seen),
        encode_frame(HELLO, as_n1),
        encode_frame(HELLO, as_n1) + encode_frame(PROOF, "a nonce of an earlier connection"),
        encode_frame(HELLO, {"client": True}),
    ]


async def attack(env: Env, group: node_group.Group, done: list[int]) -> None:
    """Every opening with every forged message, to every node."""
    loop = asyncio.get_running_loop()
    for name in node_group.NAMES:
        for opening in openings(group.nodes["n1"]):
            for message in FORGED:
                data = opening + frames(message)
                _, sender = await loop.create_connection(partial(Sender, data), name, 40911)
                async with asyncio.timeout(5):
                    await sender.ended
                done.append(1)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_a_stranger_sends_raises_a_term(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        terms = {name: node.term for name, node in group.nodes.items()}
        done: list[int] = []
        world.node("stranger")
        world.restart("stranger", partial(attack, group=group, done=done))
        count = len(node_group.NAMES) * len(openings(group.nodes["n1"])) * len(FORGED)
        world.run_until(lambda: len(done) == count, 120)
        assert {name: node.term for name, node in group.nodes.items()} == terms
        assert group.leader() == leader
        group.await_applied(node_group.NAMES, group.append(leader, [b"still here"]))
        assert [entry[3] for entry in group.hosts["n0"].entries if entry[2] == Kind.RAW] == [b"still here"]
        causes: dict[str, int] = {}
        for node in group.nodes.values():
            refused = node.status()["refused"]
            assert isinstance(refused, dict)
            causes |= refused
        assert sorted(causes) == ["cluster", "garbage", "group", "replay", "same id", "unknown peer"]
