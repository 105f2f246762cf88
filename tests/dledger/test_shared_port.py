"""Nodes of two groups share one port on each of three machines, in virtual time (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from chaos.sim import World
from dledger import standalone
from dledger.links import PeerConnection
from dledger.messages import Message
from dledger.node import Node
from dledger.standalone import StandaloneConfig
from formats.entry import HEADER_SIZE, Kind, unpack_header
from runtime.env import Env

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
            segment_size=SEGMENT,
            pool_segments=0,
        )
        failures = await standalone.main(env, config, asyncio.Event(), on_ready=partial(self._ready, name))
        assert not failures

    def _ready(self, name: str, nodes: list[Node]) -> None:
        for node in nodes:
            self.nodes[name, node.config.group] = node
            self._watch(node)

    def _watch(self, node: Node) -> None:
        deliver = node.on_message

        def counting(connection: PeerConnection, peer: str, message: Message) -> None:
            assert connection.hello is not None
            key = node.config.group, connection.hello.group
            self.arrived[key] = self.arrived.get(key, 0) + 1
            deliver(connection, peer, message)

        node.on_message = counting  # type: ignore[method-assign]

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

    def move_leader(self, group: str, target: str) -> None:
        """Hand the group's leadership to one machine."""
        name = self.await_leader(group)
        if name == target:
            return
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.create_task(self.nodes[name, group].transfer_leadership(target), name="move")
        self.world.run_until(lambda: self.leader(group) == target, 5)

    def bodies(self, name: str, group: str) -> list[bytes]:
        """Of the RAW entries in a node's log."""
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
