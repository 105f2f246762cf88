"""A foreign machine that knows the peer ports: nothing that it sends raises a term or ends a leadership."""

from __future__ import annotations

import asyncio
from functools import partial

import node_group
import pytest

from dledger.chaos.machine import World
from dledger.election.identity import encode_hello
from dledger.formats.entry import Kind
from dledger.messages import Append, Code, Heartbeat, Message, TimeoutNow, VoteRequest
from dledger.node.node import Node
from dledger.peers.links import PeerConnection
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.peers.wire import HELLO, PROOF, Frame, encode_frame, encode_message
from dledger.runtime.env import Env

HIGH = 1_000_000
ANYBODY = ("*",)
"""For the checks behind the one of a sender's address."""
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
    seen = encode_hello(node.trust.hello())
    as_n1 = seen | {"node": "n1", "incarnation": "somebody else's"}
    return [
        b"",
        encode_frame(HELLO, as_n1 | {"group": "other"}),
        encode_frame(HELLO, as_n1 | {"cluster": "other"}),
        encode_frame(HELLO, as_n1 | {"node": "n9"}),
        encode_frame(HELLO, seen),
        encode_frame(HELLO, as_n1),
        encode_frame(HELLO, as_n1) + encode_frame(PROOF, "a nonce of an earlier connection"),
        encode_frame(HELLO, seen) + encode_frame(PROOF, "a nonce of an earlier connection"),
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
        group = node_group.Group(world, allowed_sources=ANYBODY)
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


class Tape:
    """All that nodes write to connections which they dialled, as somebody on the wire sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._frames: dict[PeerConnection, list[bytes]] = {}
        send = PeerConnection.send

        def recorded(connection: PeerConnection, parts: list[bytes | memoryview]) -> None:
            if connection.dialled is not None:
                self._frames.setdefault(connection, []).append(b"".join(parts))
            send(connection, parts)

        monkeypatch.setattr(PeerConnection, "send", recorded)

    def of(self, node: str) -> list[tuple[str, list[bytes]]]:
        """(who was dialled, frames) of each connection of a node so far: hello first."""
        mark = b"\xa4node" + bytes((0xA0 + len(node),)) + node.encode()  # of the hello's msgpack
        return [(c.dialled or "", list(frames)) for c, frames in self._frames.items() if mark in frames[0]]


async def send_for_a_while(env: Env, sent: list[tuple[str, bytes]], done: list[int]) -> None:
    """Each of these to its node, over a connection that stays open for half a second."""
    loop = asyncio.get_running_loop()
    for name, data in sent:
        transport, _ = await loop.create_connection(partial(Sender, data), name, 40911)
        await asyncio.sleep(0.5)
        transport.abort()
        done.append(1)


def play(world: World, sent: list[tuple[str, bytes]]) -> None:
    done: list[int] = []
    world.node("stranger")
    world.restart("stranger", partial(send_for_a_while, sent=sent, done=done))
    world.run_until(lambda: len(done) == len(sent), 2 * len(sent))


def hand_over(group: node_group.Group, target: str) -> None:
    leader = group.await_leader()
    process = group.world.nodes[leader].process
    assert process is not None
    loop = process.loop
    transfer = partial(group.nodes[leader].leadership.transfer, target, 2.0)
    loop.call_soon(lambda: loop.create_task(transfer(), name="hand-over"))
    group.world.run_until(lambda: group.leader() == target, 5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_what_a_leader_of_before_said_is_played_again(
    seed: int, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With version 1, which has no nonce, it is believed to come from that node: and is out of date."""
    with World(seed, settings=node_group.SETTINGS) as world:
        tape = Tape(monkeypatch)
        group = node_group.Group(world, allowed_sources=ANYBODY, protocol_min=1, protocol_max=version)
        group.await_leader()
        others = [name for name in node_group.NAMES if name != group.leader()]
        hand_over(group, others[0])
        last = group.append(others[0], [b"said by a leader of before"] * 5)
        group.await_applied(node_group.NAMES, last)
        hand_over(group, others[1])
        last = group.append(others[1], [b"said since"] * 5)
        group.await_applied(node_group.NAMES, last)
        terms = {name: node.term for name, node in group.nodes.items()}
        before = list(group.hosts[others[1]].entries)
        recorded = tape.of(others[0])
        assert {name for name, _ in recorded} == set(node_group.NAMES) - {others[0]}
        pieces = [
            (name, frames[0] + b"".join(part))
            for name, frames in recorded
            for part in ([], frames[1:], frames[1:][::-1], frames[-10:])
        ]
        assert max(len(data) for _, data in pieces) > 1000
        play(world, pieces)
        assert {name: node.term for name, node in group.nodes.items()} == terms
        assert group.leader() == others[1] and group.hosts[others[1]].entries == before
        refused = [node.status()["refused"] for node in group.nodes.values()]
        replays = sum(causes.get("replay", 0) for causes in refused if isinstance(causes, dict))
        assert (replays > 0) is (version == 2)
        group.await_applied(node_group.NAMES, group.append(others[1], [b"still here"]))
        assert len({group.hosts[name].digest for name in node_group.NAMES}) == 1


@pytest.mark.parametrize("message", FORGED[1:3], ids=["vote in a hand-over", "heartbeat"])
def test_where_version_1_is_allowed_a_forged_hello_of_it_raises_terms_and_loses_nothing(
    message: Message,
) -> None:
    """Who has listened and writes messages of its own passes for a member: against that there is TLS."""
    with World(5, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY, protocol_min=1)
        leader = group.await_leader()
        last = group.append(leader, [b"before"] * 5)
        group.await_applied(node_group.NAMES, last)
        before = list(group.hosts[leader].entries)
        hello = encode_frame(HELLO, encode_hello(group.nodes["n1"].trust.hello()) | {"protocol": [1, 1]})
        play(world, [(name, hello + frames(message)) for name in ("n0", "n2")])
        assert max(node.term for node in group.nodes.values()) >= HIGH, "as docs/reference/protocol.md says"
        world.run_for(3)
        group.await_applied(node_group.NAMES, group.append(group.await_leader(), [b"still here"]))
        for name in node_group.NAMES:
            assert group.hosts[name].entries[: len(before)] == before


@pytest.mark.parametrize("message", FORGED[1:3], ids=["vote in a hand-over", "heartbeat"])
def test_a_hello_of_version_1_is_refused_and_raises_no_term(message: Message) -> None:
    with World(5, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY)
        leader = group.await_leader()
        terms = {name: node.term for name, node in group.nodes.items()}
        hello = encode_frame(HELLO, encode_hello(group.nodes["n1"].trust.hello()) | {"protocol": [1, 1]})
        play(world, [(name, hello + frames(message)) for name in ("n0", "n2")])
        assert {name: node.term for name, node in group.nodes.items()} == terms
        assert group.leader() == leader
        for name in ("n0", "n2"):
            refused = group.nodes[name].status()["refused"]
            assert isinstance(refused, dict) and refused["version"] == 1
        group.await_applied(node_group.NAMES, group.append(leader, [b"still here"]))
        assert len({group.hosts[name].digest for name in node_group.NAMES}) == 1


@pytest.mark.parametrize("term", [(1 << 63) - 1, 1 << 40])
def test_a_term_that_no_elections_can_have_made_is_refused_and_said(term: int) -> None:
    """One such frame ended all elections for ever, also behind a restart of all."""
    with World(6, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY, protocol_min=1)
        leader = group.await_leader()
        hello = encode_frame(HELLO, encode_hello(group.nodes["n1"].trust.hello()) | {"protocol": [1, 1]})
        forged = [Heartbeat(term, "n1"), VoteRequest(term, "n1", term, term, transfer=True)]
        forged.append(Append(term, "n1", -1, -1, 0, 0, 0, 0, b"x" * 64))
        play(world, [(name, hello + frames(one)) for name in ("n0", "n2") for one in forged])
        assert max(node.term for node in group.nodes.values()) < 100
        refused = [node.status()["refused"] for node in group.nodes.values()]
        assert sum(causes.get("term", 0) for causes in refused if isinstance(causes, dict)) >= 4
        world.run_for(3)
        leader = group.await_leader()
        group.await_applied(node_group.NAMES, group.append(leader, [b"still here"]))


def test_without_tls_a_peer_is_believed_from_members_addresses_only() -> None:
    """Also with all that a member's hello says, in a version of the protocol without a nonce."""
    with World(7, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, protocol_min=1)
        leader = group.await_leader()
        terms = {name: node.term for name, node in group.nodes.items()}
        seen = encode_hello(group.nodes["n1"].trust.hello())
        hellos = [encode_frame(HELLO, seen | extra) for extra in ({}, {"protocol": [1, 1]})]
        forged = [("n0", hello + frames(message)) for hello in hellos for message in FORGED]
        play(world, forged + [("n0", hello) for hello in hellos] + [("n1", b"")] * 4)
        assert {name: node.term for name, node in group.nodes.items()} == terms
        assert group.leader() == leader
        refused = group.nodes["n0"].status()["refused"]
        assert isinstance(refused, dict) and sorted(refused) == ["garbage", "source"]


def test_what_a_client_is_told_does_not_let_it_pass_for_a_member() -> None:
    with World(8, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        group.await_leader()
        said: list[dict[str, object]] = []

        async def listen(env: Env) -> None:
            loop = asyncio.get_running_loop()

            def keep(connection: PeerConnection, frame: Frame) -> None:
                said.append(frame.header())

            _, connection = await loop.create_connection(
                lambda: PeerConnection(keep, lambda lost: None, 1 << 20), "n0", 40911
            )
            connection.send_frame(HELLO, {"client": True})
            await asyncio.sleep(1)

        world.node("stranger")
        world.restart("stranger", listen)
        world.run_until(lambda: bool(said), 5)
        assert sorted(said[0]) == ["addresses", "group", "node"]


@pytest.mark.parametrize(("sources", "code"), [((), Code.UNEXPECTED_ARGUMENT), (ANYBODY, None)])
def test_what_changes_the_group_is_refused_from_elsewhere(
    sources: tuple[str, ...], code: Code | None
) -> None:
    with World(9, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=sources)
        group.await_leader()
        answers: list[Code | None] = []

        async def operate(env: Env, peers: dict[str, str]) -> None:
            async with DLedgerClient(env, peers, 2.0) as client:
                await client.append(b"from anywhere")
                for call in (client.prefer(["n1"]), client.delete_before("n0:40911", 1)):
                    try:
                        await call
                        answers.append(None)
                    except RequestFailed as failed:
                        assert "from members' addresses only" in str(failed)
                        answers.append(failed.code)

        world.node("stranger")
        world.restart("stranger", partial(operate, peers={n: f"{n}:40911" for n in node_group.NAMES}))
        world.run_until(lambda: len(answers) == 2, 20)
        assert answers == [code, code]
