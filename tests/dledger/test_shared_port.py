"""Nodes of two groups share one port on each of three machines, in virtual time (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from dledger.chaos.machine import World
from dledger.commands import standalone
from dledger.commands.standalone import StandaloneConfig
from dledger.config import NodeSettings
from dledger.formats.entry import HEADER_SIZE, Kind, unpack_header
from dledger.messages import Message
from dledger.node.node import Node
from dledger.peers.links import PeerConnection
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.atomic_file import publish
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

Call = Callable[[DLedgerClient], Awaitable[object]]
MACHINES = ("n0", "n1", "n2")
GROUPS = ("blue", "green")
SEGMENT = 8 * 1024 * 1024 + 256 * 1024


class Machines:
    """Three machines, each with one process and in it a node of each group."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: dict[tuple[str, str], Node] = {}
        """By machine and group."""
        self.arrived: dict[tuple[str, str], int] = {}
        """Messages by the group that took them and the group of the connection on which they came."""
        self.may_fail: set[str] = set()
        """Machines on which a node may end with a failure."""
        self._commands = 0
        for name in MACHINES:
            world.node(name)
        for name in MACHINES:
            self.start(name)

    def start(self, name: str) -> None:
        self.world.restart(name, partial(self._main, name=name))

    async def _main(self, env: Env, name: str) -> None:
        config = StandaloneConfig(
            groups=GROUPS,
            self_id=name,
            peers={peer: f"{peer}:40911" for peer in MACHINES},
            store_dir="/store",
            node=NodeSettings(segment_size=SEGMENT, pool_segments=0),
        )
        failures = await standalone.main(env, config, asyncio.Event(), on_ready=partial(self._ready, name))
        assert not failures or name in self.may_fail

    def _ready(self, name: str, nodes: list[Node]) -> None:
        for node in nodes:
            self.nodes[name, node.config.group] = node
            self._watch(node)

    def _watch(self, node: Node) -> None:
        deliver = node.inbox.on_message

        def counting(connection: PeerConnection, peer: str, message: Message) -> None:
            assert connection.hello is not None
            key = node.config.group, connection.hello.group
            self.arrived[key] = self.arrived.get(key, 0) + 1
            deliver(connection, peer, message)

        node.inbox.on_message = counting  # type: ignore[method-assign]

    def alive(self) -> list[str]:
        return [name for name in MACHINES if self.world.nodes[name].process is not None]

    def leader(self, group: str) -> str | None:
        serving = (name for name in self.alive() if (name, group) in self.nodes)
        return next((name for name in serving if self.nodes[name, group].serving), None)

    def await_leader(self, group: str) -> str:
        self.world.run_until(lambda: self.leader(group), 10)
        name = self.leader(group)
        assert name is not None
        return name

    def append(self, group: str, bodies: list[bytes]) -> None:
        """Through the group's leader, until all machines that live have applied them."""
        name = self.await_leader(group)
        node, process = self.nodes[name, group], self.world.nodes[name].process
        assert process is not None
        last: list[int] = []

        def seal() -> None:
            assert node.appender is not None
            for body in bodies:
                node.appender.reserve(HEADER_SIZE + len(body))
                last.append(node.appender.add((body,), len(body), Kind.RAW))

        process.loop.call_soon(seal)
        self.world.run_until(
            lambda: last and all(self.nodes[one, group].applied_index >= last[-1] for one in self.alive()), 10
        )

    def spoil(self, name: str, group: str) -> None:
        """Start a machine again on which the node of this group cannot open."""
        self.world.kill(name)

        async def rot(env: Env) -> None:
            path = f"/store/{group}/dledger-{name}/identity"
            await publish(env.files, env.workers, Lane.DISK, path, b"rot")

        self.world.spawn(name, rot)
        self.world.run_until(lambda: self.world.nodes[name].process is None, 10)
        self.may_fail.add(name)
        for other in GROUPS:
            self.nodes.pop((name, other), None)
        self.start(name)
        self.world.run_until(lambda: any(one == name for one, _ in self.nodes), 10)

    def ask(self, group: str | None, *calls: Call, timeout_s: float = 3.0) -> list[str]:
        """Results of an operator's calls, each by a client of its own; texts of those that failed."""
        results: list[str] = []
        peers = {peer: f"{peer}:40911" for peer in MACHINES}

        async def main(env: Env) -> None:
            for call in calls:
                async with DLedgerClient(env, peers, timeout_s, group=group) as client:
                    try:
                        results.append(str(await call(client)))
                    except (RequestFailed, OSError) as error:
                        results.append(f"failed: {error}")

        self._commands += 1
        operator = f"operator{self._commands}"
        self.world.node(operator)
        self.world.spawn(operator, main)
        self.world.run_until(lambda: self.world.nodes[operator].process is None, 60)
        return results

    def move_leader(self, group: str, target: str) -> None:
        """Hand the group's leadership to one machine."""
        name = self.await_leader(group)
        if name == target:
            return
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.create_task(self.nodes[name, group].leadership.transfer(target), name="move")
        self.world.run_until(lambda: self.leader(group) == target, 5)

    def bodies(self, name: str, group: str) -> list[bytes]:
        """Bodies of the RAW entries in a node's log."""
        log = self.nodes[name, group].log
        found = []
        for index in range(log.first_index, log.last_index + 1):
            pos, size = log.locate(index)
            entry = log.view(pos, size)
            assert entry is not None
            if unpack_header(entry).kind == Kind.RAW:
                found.append(bytes(entry[HEADER_SIZE:]))
        return found


@pytest.fixture
def machines() -> Iterator[Machines]:
    with World(1) as world:
        yield Machines(world)


def test_both_groups_elect_append_and_survive_one_machine(machines: Machines) -> None:
    world = machines.world
    written: dict[str, list[bytes]] = {group: [] for group in GROUPS}

    def write(group: str, count: int, tag: str) -> None:
        bodies = [b"%s %s %d" % (group.encode(), tag.encode(), number) for number in range(count)]
        machines.append(group, bodies)
        written[group] += bodies

    for group, count in zip(GROUPS, (30, 7), strict=True):
        machines.await_leader(group)
        write(group, count, "before")
    lost = machines.await_leader("blue")
    machines.move_leader("green", lost)
    terms = {group: machines.nodes[lost, group].term for group in GROUPS}
    world.kill(lost)
    for group in GROUPS:
        leader = machines.await_leader(group)
        assert leader != lost and machines.nodes[leader, group].term > terms[group]
        write(group, 5, "after")
    machines.start(lost)
    world.run_for(1)
    for group in GROUPS:
        write(group, 3, "together")
        for name in MACHINES:
            assert machines.bodies(name, group) == written[group]
    assert {own for own, _ in machines.arrived} == set(GROUPS)
    assert [pair for pair in machines.arrived if pair[0] != pair[1]] == [], "no frame went to the other group"


def test_the_groups_lead_from_different_machines_through_the_same_ports(machines: Machines) -> None:
    blue = machines.await_leader("blue")
    other = next(name for name in MACHINES if name != blue)
    machines.move_leader("green", other)
    for number in range(5):
        for group in GROUPS:
            machines.append(group, [b"%s %d" % (group.encode(), number)])
    assert (machines.leader("blue"), machines.leader("green")) == (blue, other)
    for name in MACHINES:
        for group in GROUPS:
            assert machines.bodies(name, group) == [b"%s %d" % (group.encode(), n) for n in range(5)]
            assert machines.nodes[name, group].status()["leader"] == {"blue": blue, "green": other}[group]
        listening = machines.world.nodes[name].listeners
        assert len(listening) == 1, "one port for both"


def test_clients_of_a_group_pass_over_a_machine_where_its_node_ended(machines: Machines) -> None:
    """They were told that the outcome is unknown, and asked nobody else."""
    for group in GROUPS:
        machines.append(group, [b"x"])
    machines.spoil("n1", "blue")
    machines.world.run_for(1.0)
    assert machines.leader("blue") not in (None, "n1")
    results = machines.ask(
        "blue",
        *[lambda client: client.append(b"hello")] * 6,
        lambda client: client.remove_member("n9"),
        lambda client: client.read_index(),
        lambda client: client.metadata("n1:40911"),
    )
    appended = [int(result) for result in results[:6]]
    assert appended == sorted(dict.fromkeys(appended)), "each once"
    assert results[6].startswith("failed: remove changes the group: it is accepted only from this machine")
    assert int(results[7]) >= appended[-1]
    assert results[8] == "failed: the node of group 'blue' has failed: see its log"
    assert machines.nodes["n1", "green"].status()["voters"] == list(MACHINES), "the other group goes on"


def test_a_client_of_no_group_at_the_port_is_told_which_there_are(machines: Machines) -> None:
    for group in GROUPS:
        machines.append(group, [b"x"])
    results = machines.ask("red", lambda client: client.remove_member("n1"), timeout_s=1.0)
    assert "no group 'red' at this port; there are: blue, green" in results[0]
    assert "unknown" not in results[0]
    results = machines.ask(None, lambda client: client.remove_member("n1"), timeout_s=1.0)
    assert "no group is named; there are: blue, green (name one with --group)" in results[0]
