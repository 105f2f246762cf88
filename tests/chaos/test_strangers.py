"""A foreign machine that knows the peer ports: nothing that it sends raises a term or ends a leadership."""

from __future__ import annotations

import asyncio
from functools import partial

import node_group
import pytest

from dledger.chaos.machine import World
from dledger.election.elector import MAX_LEAP, MAX_TOLD_TERM
from dledger.election.identity import encode_hello
from dledger.files.offline import node_directory
from dledger.formats.entry import Kind
from dledger.formats.store_files import HardState
from dledger.log.hard_state import HardStateFile
from dledger.messages import (
    Append,
    Code,
    Heartbeat,
    InstallSnapshot,
    Message,
    ReadIndexRequest,
    TimeoutNow,
    VoteRequest,
)
from dledger.node.node import Node
from dledger.peers.links import PeerConnection
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.peers.peers import Peers
from dledger.peers.wire import HELLO, PROOF, Frame, encode_frame, encode_message
from dledger.runtime import Lane
from dledger.runtime.env import Env

HIGH = 1_000_000
ANYBODY = ("*",)
"""Allowed sources for tests of the checks that come after the check of the sender's address."""
FORGED: list[Message] = [
    VoteRequest(HIGH, "n1", HIGH, HIGH),
    VoteRequest(HIGH, "n1", HIGH, HIGH, transfer=True),
    Heartbeat(HIGH, "n1"),
    TimeoutNow(HIGH, "n1"),
    Append(HIGH, "n1", -1, -1, 0, 0, 0, 0, b"x" * 64),
]


class Sender(asyncio.Protocol):
    """Sends once, and keeps the answers."""

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
    """The ways in which a stranger may begin: everything that an eavesdropper could know."""
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
    """Send every opening with every forged message to every node."""
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
    """Everything that nodes write to connections which they dialled, as an eavesdropper sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._frames: dict[PeerConnection, list[bytes]] = {}
        send = PeerConnection.send

        def recorded(connection: PeerConnection, parts: list[bytes | memoryview]) -> None:
            if connection.dialled is not None:
                self._frames.setdefault(connection, []).append(b"".join(parts))
            send(connection, parts)

        monkeypatch.setattr(PeerConnection, "send", recorded)

    def of(self, node: str) -> list[tuple[str, list[bytes]]]:
        """(dialled node, frames) of each connection of a node so far. The hello is the first frame."""
        mark = b"\xa4node" + bytes((0xA0 + len(node),)) + node.encode()  # of the hello's msgpack
        return [(c.dialled or "", list(frames)) for c, frames in self._frames.items() if mark in frames[0]]


async def send_for_a_while(env: Env, sent: list[tuple[str, bytes]], done: list[int]) -> None:
    """Send each of these to its node, over a connection that stays open for half a second."""
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
    """With version 1, which has no nonce, the message is accepted as coming from that node, but it is
    stale."""
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


def forged_in(term: int) -> list[Message]:
    """Requests that raise the term of a node that believes them."""
    return [
        Heartbeat(term, "n1"),
        VoteRequest(term, "n1", term, term, transfer=True),
        Append(term, "n1", -1, -1, 0, 0, 0, 0, b"x" * 64),
        InstallSnapshot(term, "n1", 5, 1, 100, 0, 10, 0),
    ]


async def impersonate(
    env: Env, group: node_group.Group, sent: list[tuple[str, Message]], done: list[int]
) -> None:
    """Send each of these to its node as n1, like a program that writes its own hellos and nonces."""
    loop = asyncio.get_running_loop()
    for name, message in sent:

        def prove(connection: PeerConnection, frame: Frame, message: Message = message) -> None:
            header = frame.header()
            if frame.number == HELLO and isinstance(header, dict):
                connection.send_frame(PROOF, header["nonce"])
                connection.send([*encode_message(message)])

        _, connection = await loop.create_connection(
            partial(PeerConnection, prove, lambda lost: None, 1 << 20), name, 40911
        )
        connection.send_frame(HELLO, encode_hello(group.nodes["n1"].trust.hello()))
        await asyncio.sleep(0.5)
        connection.close("said")
        done.append(1)


def pass_for_n1(group: node_group.Group, sent: list[tuple[str, Message]]) -> None:
    done: list[int] = []
    group.world.node("stranger")
    group.world.restart("stranger", partial(impersonate, group=group, sent=sent, done=done))
    group.world.run_until(lambda: len(done) == len(sent), 2 * len(sent))
    group.world.run_until(lambda: group.world.nodes["stranger"].process is None, 5)


def steps(group: node_group.Group, count: int) -> list[tuple[str, Message]]:
    """Heartbeats for n0, each as far ahead of the one before as is still believed."""
    term = group.nodes["n0"].term
    return [("n0", Heartbeat(term + number * MAX_LEAP, "n1")) for number in range(1, count + 1)]


def all_lead_and_follow(group: node_group.Group) -> None:
    """Check that no node is left behind: each node follows each other one."""
    for name in node_group.NAMES:
        if group.await_leader() != name:
            hand_over(group, name)
        group.await_applied(node_group.NAMES, group.append(name, [b"still here"]))
    assert len({group.hosts[name].digest for name in node_group.NAMES}) == 1


@pytest.mark.parametrize("kind", range(4))
def test_who_passes_for_a_member_raises_terms_and_loses_nothing(kind: int) -> None:
    """Without TLS, any program that writes its own messages can pass for a member."""
    with World(5, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY)
        leader = group.await_leader()
        last = group.append(leader, [b"before"] * 5)
        group.await_applied(node_group.NAMES, last)
        before = list(group.hosts[leader].entries)
        term = group.nodes[leader].term + MAX_LEAP
        pass_for_n1(group, [(name, forged_in(term)[kind]) for name in ("n0", "n2")])
        assert max(node.term for node in group.nodes.values()) >= term, "as docs/reference/protocol.md says"
        all_lead_and_follow(group)
        for name in node_group.NAMES:
            assert group.hosts[name].entries[: len(before)] == before


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(
    "ahead", [MAX_LEAP + 1, 1 << 23, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 1 << 40, 1 << 60]
)
def test_a_term_that_no_member_has_is_not_followed(ahead: int, kind: int) -> None:
    """Regression: one node of three followed the term, and the others refused that node for good."""
    with World(6, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY)
        leader = group.await_leader()
        term = group.nodes[leader].term
        pass_for_n1(group, [(name, forged_in(term + ahead)[kind]) for name in ("n2", "n0")])
        assert {node.term for node in group.nodes.values()} == {term} and group.leader() == leader
        all_lead_and_follow(group)


@pytest.mark.parametrize("others", ["are there", "are away"])
def test_one_node_that_is_led_far_ahead_step_by_step_splits_nobody(others: str) -> None:
    """Each frame goes as far ahead as is believed. The others meet the node when its term is beyond that
    bound for them."""
    with World(7, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY)
        group.await_applied(node_group.NAMES, group.append(group.await_leader(), [b"before"]))
        node = group.nodes["n0"]
        term = node.term
        if others == "are away":
            world.kill("n1")
            world.kill("n2")
        pass_for_n1(group, steps(group, 40))
        assert node.term >= term + 40 * MAX_LEAP
        if others == "are away":
            group.start("n1")
            group.start("n2")
        all_lead_and_follow(group)


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("ahead", [(1 << 24) + 1, 1 << 40])
def test_a_member_that_is_far_ahead_is_followed(role: str, ahead: int) -> None:
    """The store of such a member may come from an older program, which took such a step at once."""
    with World(9, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        last = group.append(leader, [b"before"])
        group.await_applied(node_group.NAMES, last)
        name = next(name for name in node_group.NAMES if (name == leader) is (role == "leader"))
        store, term = group.nodes[name].config.store_dir, group.nodes[name].term + ahead
        world.kill(name)

        async def raise_term(env: Env) -> None:
            node_dir = await env.workers.run(Lane.DISK, node_directory, env.files, store)
            file = await env.workers.run(Lane.DISK, HardStateFile.open, env.files, node_dir)
            await env.workers.run(Lane.FLUSH, file.save, HardState(term, None))

        world.restart(name, raise_term)
        world.run_until(lambda: world.nodes[name].process is None, 5)
        group.start(name)
        group.await_applied((name,), last)
        world.run_until(lambda: min(node.term for node in group.nodes.values()) >= term, 10)
        all_lead_and_follow(group)


def go_on_without_n2(group: node_group.Group) -> int:
    """Kill n2, and lead the others beyond the step by which a request may raise n2's term. Returns their last
    entry."""
    group.world.kill("n2")
    pass_for_n1(group, steps(group, 5))
    last = group.append(group.await_leader(), [b"while it was away"])
    group.await_applied(("n0", "n1"), last)
    return last


@pytest.mark.parametrize("behind", ["was away", "lost its store"])
def test_who_comes_back_many_terms_later_follows(behind: str) -> None:
    """The node is a voter that was stopped, or one without a store, which starts no elections and asks for no
    votes."""
    with World(8, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY)
        group.await_applied(node_group.NAMES, group.append(group.await_leader(), [b"before"]))
        last = go_on_without_n2(group)
        if behind == "lost its store":
            world.nodes["n2"].disk.wipe("/store")
        group.start("n2")
        group.await_applied(node_group.NAMES, last)
        assert group.nodes["n2"].term >= 5 * MAX_LEAP


def test_a_leader_that_cannot_be_asked_is_followed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader joined while the node was away, and the node has not dialled it: it learns the address from
    the leader."""
    connected, send = Peers.connected, Peers.send

    def reaches(peers: Peers, peer: str) -> bool:
        return peers._config.self_id != "n2" and connected(peers, peer)

    def send_if_reached(peers: Peers, peer: str, message: Message) -> None:
        if not isinstance(message, ReadIndexRequest) or reaches(peers, peer):
            send(peers, peer, message)

    with World(10, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY)
        group.await_applied(node_group.NAMES, group.append(group.await_leader(), [b"before"]))
        last = go_on_without_n2(group)
        world.nodes["n2"].disk.wipe("/store")  # it does not stand, and gets no answers to requests for votes
        monkeypatch.setattr(Peers, "connected", reaches)
        monkeypatch.setattr(Peers, "send", send_if_reached)
        group.start("n2")
        world.run_until(lambda: group.applied("n2") >= last, 60)
        assert group.nodes["n2"].term >= 5 * MAX_LEAP


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


@pytest.mark.parametrize("term", [(1 << 63) - 1, MAX_TOLD_TERM + 1])
def test_a_term_that_no_elections_can_have_made_is_refused_and_said(term: int) -> None:
    """Regression: one such frame prevented all elections for ever, even after a restart of all nodes."""
    with World(6, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, allowed_sources=ANYBODY, protocol_min=1)
        leader = group.await_leader()
        pass_for_n1(group, [(name, one) for name in ("n0", "n2") for one in forged_in(term)])
        assert max(node.term for node in group.nodes.values()) < 100
        refused = [node.status()["refused"] for node in group.nodes.values()]
        assert sum(causes.get("term", 0) for causes in refused if isinstance(causes, dict)) >= 4
        world.run_for(3)
        leader = group.await_leader()
        group.await_applied(node_group.NAMES, group.append(leader, [b"still here"]))


def test_without_tls_a_peer_is_believed_from_members_addresses_only() -> None:
    """This holds even with all fields of a member's hello, in a version of the protocol without a nonce."""
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
                        assert "from the addresses of members" in str(failed)
                        answers.append(failed.code)

        world.node("stranger")
        world.restart("stranger", partial(operate, peers={n: f"{n}:40911" for n in node_group.NAMES}))
        world.run_until(lambda: len(answers) == 2, 20)
        assert answers == [code, code]
