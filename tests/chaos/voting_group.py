"""Groups of any size in the simulator, with small segments, watched for leaders and terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from node_group import ListHost

from chaos.sim import World
from dledger.config import NodeConfig
from dledger.host import Role
from dledger.node import Node
from dledger.reads import ReadRefused
from formats.entry import HEADER_SIZE, Kind
from runtime.env import Env

PROBE_S = 0.01


class VotingGroup:
    """Nodes n0..n<size-1>. `overrides` are NodeConfig fields, for all or of single nodes."""

    def __init__(self, world: World, size: int = 3, **overrides: Any) -> None:
        self.world = world
        self.names = tuple(f"n{number}" for number in range(size))
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, ListHost] = {}
        self.own: dict[str, Mapping[str, Any]] = {}
        self.leaders: dict[int, str] = {}
        """term -> who led it."""
        self._overrides = overrides
        self._watched: set[str] = set()
        for name in self.names:
            world.node(name)

    def start_all(self) -> None:
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        self.world.restart(name, partial(self._main, name=name))

    def config(self, name: str) -> NodeConfig:
        base = NodeConfig(
            group="g0",
            self_id=name,
            peers={peer: f"{peer}:40911" for peer in self.names},
            store_dir="/store",
            segment_size=64 * 1024,
            max_entry_bytes=16 * 1024,
            index_units_per_file=256,
            pool_segments=1,
        )
        return replace(base, **self._overrides, **self.own.get(name, {}))

    async def _main(self, env: Env, name: str) -> None:
        self.hosts[name] = ListHost()
        self.nodes[name] = Node(env, self.config(name), self.hosts[name])
        await self.nodes[name].run()

    # What is seen

    def alive(self, name: str) -> bool:
        return self.world.nodes[name].process is not None and name in self.nodes

    def leader(self) -> str | None:
        """Who serves, among the living, in the highest term."""
        serving = [name for name in self.names if self.alive(name) and self.nodes[name].serving]
        return max(serving, key=lambda name: self.nodes[name].term, default=None)

    def await_leader(self, limit_s: float = 10.0) -> str:
        self.world.run_until(self.leader, limit_s)
        name = self.leader()
        assert name is not None
        return name

    def term(self) -> int:
        """The highest term of anybody alive."""
        return max(self.nodes[name].term for name in self.names if self.alive(name))

    def look(self) -> None:
        for name in self.names:
            if self.alive(name) and self.nodes[name].role is Role.LEADER:
                known = self.leaders.setdefault(self.nodes[name].term, name)
                assert known == name, f"two leaders in term {self.nodes[name].term}"

    def run_for(self, seconds: float) -> None:
        """Let time pass and note who leads."""
        for _ in range(round(seconds / PROBE_S)):
            self.world.run_for(PROBE_S)
            self.look()

    # What is done

    def call(self, name: str, action: Callable[[], None]) -> None:
        """Have something called on a node's loop, in its next turn."""
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(action)

    def append(self, name: str, body: bytes, kind: int = Kind.RAW) -> int | None:
        """Seal one entry; its index, None when the node does not serve."""
        indexes: list[int | None] = []

        def seal() -> None:
            appender = self.nodes[name].appender
            if appender is None:
                indexes.append(None)
                return
            appender.reserve(HEADER_SIZE + len(body))
            indexes.append(appender.add((body,), len(body), kind))

        self.call(name, seal)
        self.world.run_until(lambda: indexes, 1)
        return indexes[0]

    def commit(self, name: str, body: bytes) -> int:
        """Append and wait until it is committed there."""
        index = self.append(name, body)
        assert index is not None
        self.world.run_until(lambda: self.nodes[name].commit_index >= index, 3)
        return index

    def read(self, name: str, timeout_s: float = 1.0) -> Read:
        """Begin a read on a node."""
        read = Read(self.world.now)
        node = self.nodes[name]

        def ask() -> None:
            try:
                node._reads.ask(timeout_s, partial(read.done, self.world))
            except ReadRefused:
                read.done(self.world, None)

        self.call(name, ask)
        return read

    def finish(self, limit_s: float = 10.0) -> None:
        """Heal everything, restart who is down, and see that the group goes on and agrees."""
        self.world.heal()
        for name in self.names:
            if not self.alive(name):
                self.start(name)
        self.run_for(1.5)
        leader = self.await_leader(limit_s)
        last = self.commit(leader, b"the last")
        self.world.run_until(lambda: all(self.nodes[name].applied_index >= last for name in self.names), 5)
        histories = [self.hosts[name].entries for name in self.names]
        assert all(history == histories[0] for history in histories)


class Read:
    """One read: when it began, when it ended, what it got."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.over = False
        self.index: int | None = None

    def done(self, world: World, index: int | None) -> None:
        self.over = True
        self.index = index
        self.ended_ns = world.now
