"""Three real nodes (`dledger.node`) in one simulated world, each with a host that keeps the committed
entries.

Run as a script it prints the trace of `scenario`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from dledger.chaos.machine import Settings, Trace, World
from dledger.chaos.machine.node import Node as Machine
from dledger.config import NodeConfig
from dledger.formats.entry import HEADER_SIZE, Kind, unpack_header
from dledger.host import Chunk, LogReader, Role
from dledger.node.node import Node
from dledger.runtime.env import Env

NAMES = ("n0", "n1", "n2")
SEGMENT = 8 * 1024 * 1024 + 256 * 1024
SETTINGS = Settings()
OPERATORS = ("10.0.9.0/24",)
"""Addresses of operators' machines, which do not belong to the group (`allowed_sources`)."""


def operator_machine(world: World, number: int) -> Machine:
    """An operator's machine, for one command."""
    return world.foreign_node(f"operator{number}", 9 * 250 + number)


class ListHost:
    """The simplest replicated state machine: a list of (index, term, kind, body). It is rebuilt at every
    start.

    Its snapshot has the length of the list and a digest of it, and not the list itself. So after an install
    `entries` starts at `begins`, and the digest still says whether everything before was the same.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int, bytes]] = []
        self.committed = -1
        self.begins = 0
        """Index of the first entry of the list."""
        self.digest = b""
        self.restores = 0

    async def open(self, log: LogReader) -> int:
        return -1

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        count = b"%d" % (self.begins + len(self.entries))
        return [("count", count), ("digest", self.digest), ("empty", b"")]

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        assert int(parts["count"]) == index + 1 and parts["empty"] == b""
        self.entries.clear()
        self.begins = index + 1
        self.digest = parts["digest"]
        self.restores += 1

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        assert int(parts["count"]) == index + 1

    async def kept_from(self) -> int | None:
        return None

    def apply(self, chunk: Chunk) -> None:
        offset = 0
        for number in range(chunk.count):
            header = unpack_header(chunk.data, offset)
            assert header.index == chunk.first_index + number == self.begins + len(self.entries)
            body = bytes(chunk.data[offset + HEADER_SIZE : offset + header.size])
            self.entries.append((header.index, header.term, header.kind, body))
            self.digest = sha256(self.digest + b"%d %d %d " % self.entries[-1][:3] + body).digest()
            offset += header.size

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        pass

    def on_serving(self, term: int) -> None:
        pass

    def on_commit(self, commit_index: int) -> None:
        self.committed = commit_index

    def on_stopped_serving(self, term: int) -> None:
        pass


Sealed = tuple[Node, int, int, bytes]
"""Node, term of its leadership, index, body."""


def take_acknowledged(sealed: list[Sealed], acknowledged: dict[int, bytes]) -> None:
    """Move entries that a leader reports as committed, in the term in which they were sealed, to
    `acknowledged`."""
    for node, term, index, body in list(sealed):
        if node.role is Role.LEADER and node.term == term and node.commit_index >= index:
            acknowledged[index] = body
            sealed.remove((node, term, index, body))


class Group:
    """The machines, and the current `Node` and host of each."""

    def __init__(self, world: World, make_host: Callable[[], ListHost] = ListHost, **settings: Any) -> None:
        """`settings`: fields of NodeConfig whose values differ from the defaults here."""
        self.world = world
        self.make_host = make_host
        self.settings = settings
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, ListHost] = {}
        self.kind = Kind.RAW
        """Kind of the entries that `append` writes. A broker writes kind MESSAGE, for which fewer special
        cases apply."""
        for name in NAMES:
            world.node(name)
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        self.world.restart(name, partial(self._main, name=name))

    async def _main(self, env: Env, name: str) -> None:
        defaults = {
            "segment_size": SEGMENT,
            "index_units_per_file": 1000,
            "pool_segments": 1,
            "lag_probe_s": 1.0,
        }
        config = NodeConfig(
            group="g0",
            self_id=name,
            peers={peer: f"{peer}:40911" for peer in NAMES},
            store_dir="/store",
            **(defaults | self.settings),
        )
        self.hosts[name] = self.make_host()
        self.nodes[name] = Node(env, config, self.hosts[name])
        await self.nodes[name].run()

    def leader(self) -> str | None:
        """The running node that serves."""
        for name in NAMES:
            if self.world.nodes[name].process is not None and name in self.nodes and self.nodes[name].serving:
                return name
        return None

    def await_leader(self) -> str:
        """Let time pass until a node serves."""
        self.world.run_until(self.leader, 10)
        name = self.leader()
        assert name is not None
        return name

    def append(self, name: str, bodies: list[bytes]) -> int:
        """Seal entries on the leader, in one turn. Returns the index of the last one, -1 when the leader was
        killed before."""
        indexes: list[int] = []

        def seal() -> None:
            appender = self.nodes[name].appender
            assert appender is not None
            for body in bodies:
                appender.reserve(HEADER_SIZE + len(body))
                indexes.append(appender.add((body,), len(body), self.kind))

        process = self.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(seal)
        self.world.run_until(lambda: indexes or self.world.nodes[name].process is not process, 1)
        return indexes[-1] if indexes else -1

    def seal(self, name: str, bodies: list[bytes], sealed: list[Sealed]) -> None:
        """Seal entries of kind RAW in a later turn of this node, if it serves then; `sealed` notes them."""
        node = self.nodes[name]
        process = self.world.nodes[name].process
        assert process is not None

        def add() -> None:
            appender = node.appender
            for body in bodies if appender is not None else ():
                assert appender is not None
                appender.reserve(HEADER_SIZE + len(body))
                index = appender.add((body,), len(body), Kind.RAW)
                sealed.append((node, appender.term, index, body))

        process.loop.call_soon(add)

    def await_applied(self, names: tuple[str, ...], index: int) -> None:
        """Let time pass until all of these nodes have applied an entry."""
        self.world.run_until(lambda: all(self.applied(name) >= index for name in names), 3)

    def applied(self, name: str) -> int:
        """Index of the last entry that a node's host has; -1 for none."""
        host = self.hosts[name]
        return host.begins + len(host.entries) - 1


def scenario(world: World) -> Group:
    """Elect, append, kill the leader, append, restart it, wait until all three hold everything."""
    group = Group(world)
    first = group.await_leader()
    for start in range(0, 50, 10):
        last = group.append(first, [b"before %d" % number for number in range(start, start + 10)])
        group.await_applied((first,), last)
    world.kill(first)
    second = group.await_leader()
    assert second != first
    for start in range(50, 100, 10):
        last = group.append(second, [b"after %d" % number for number in range(start, start + 10)])
        group.await_applied((second,), last)
    group.start(first)
    world.run_until(lambda: first in group.nodes and group.hosts[first].entries, 10)
    group.await_applied(NAMES, last)
    return group


def run(seed: int) -> list[str]:
    """The trace of one world."""
    trace = Trace()
    with World(seed, settings=SETTINGS, trace=trace) as world:
        scenario(world)
        return list(trace.lines)


if __name__ == "__main__":
    sys.stdout.write("\n".join(run(int(sys.argv[1]))))
