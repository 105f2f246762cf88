"""Groups of any size in the simulator, with small segments, whose leaders and terms are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from node_group import ListHost

from dledger.chaos.machine import World
from dledger.config import NodeConfig
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.host import Role
from dledger.node.node import Node
from dledger.node.reads import ReadRefused
from dledger.runtime.env import Env

PROBE_S = 0.01


class VotingGroup:
    """Nodes n0..n<size-1>. `overrides` are NodeConfig fields, for all nodes or for single ones."""

    def __init__(self, world: World, size: int = 3, **overrides: Any) -> None:
        self.world = world
        self.names = tuple(f"n{number}" for number in range(size))
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, ListHost] = {}
        self.own: dict[str, Mapping[str, Any]] = {}
        self.leaders: dict[int, str] = {}
        """term -> the node that led it."""
        self.acknowledged: list[tuple[int, int]] = []
        """(world time, index) of acknowledgements by leaders, both rising."""
        self._overrides = overrides
        for name in self.names:
            world.node(name)

    def start_all(self) -> None:
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        self.nodes.pop(name, None)  # what is seen until it is up again must not be its former life
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
        self.hosts[name] = WatchedHost(partial(self._committed, name))
        self.nodes[name] = Node(env, self.config(name), self.hosts[name])
        await self.nodes[name].run()

    def _committed(self, name: str, index: int) -> None:
        """Note an acknowledgement: a leader that commits an entry of its own acknowledges it at this
        moment."""
        node = self.nodes[name]
        if node.serving and (not self.acknowledged or index > self.acknowledged[-1][1]):
            self.acknowledged.append((self.world.now, index))

    def acknowledged_before(self, when_ns: int) -> int:
        """The last index that was acknowledged before that time; -1 for none."""
        return max((index for when, index in self.acknowledged if when < when_ns), default=-1)

    # What is seen

    def alive(self, name: str) -> bool:
        return self.world.nodes[name].process is not None and name in self.nodes

    def leader(self) -> str | None:
        """The running node that serves in the highest term."""
        serving = [name for name in self.names if self.alive(name) and self.nodes[name].serving]
        return max(serving, key=lambda name: self.nodes[name].term, default=None)

    def await_leader(self, limit_s: float = 10.0) -> str:
        self.world.run_until(self.leader, limit_s)
        name = self.leader()
        assert name is not None
        return name

    def term(self) -> int:
        """The highest term of all running nodes."""
        return max(self.nodes[name].term for name in self.names if self.alive(name))

    def look(self) -> None:
        for name in self.names:
            if self.alive(name) and self.nodes[name].role is Role.LEADER:
                known = self.leaders.setdefault(self.nodes[name].term, name)
                assert known == name, f"two leaders in term {self.nodes[name].term}"

    def run_for(self, seconds: float) -> None:
        """Let time pass and note the leaders."""
        for _ in range(round(seconds / PROBE_S)):
            self.world.run_for(PROBE_S)
            self.look()

    # What is done

    def call(self, name: str, action: Callable[[], None]) -> None:
        """Call an action on a node's loop, in its next turn."""
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(action)

    def append(self, name: str, body: bytes, kind: int = Kind.RAW) -> int | None:
        """Seal one entry. Returns its index, None when the node does not serve."""
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
        """Append an entry and wait until it is committed on this node. Returns its index."""
        index = self.append(name, body)
        assert index is not None
        self.world.run_until(lambda: self.nodes[name].commit_index >= index, 3)
        return index

    def hand_over(self, name: str, target: str) -> None:
        """Ask a node to start an election at once, without waiting until it has everything."""
        node = self.nodes[name]
        self.call(name, lambda: node.elections.perform(node.elector.hand_over(target)))

    def read(self, name: str, timeout_s: float = 1.0) -> Read:
        """Begin a read on a node."""
        node = self.nodes[name]
        read = Read(node, self.world.now)

        def ask() -> None:
            try:
                node.reads.ask(timeout_s, read.done)
            except ReadRefused:
                read.done(None)

        self.call(name, ask)
        return read

    def finish(self, limit_s: float = 10.0) -> None:
        """Heal everything, restart stopped nodes, and check that the group goes on and agrees."""
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


class WatchedHost(ListHost):
    """Notifies the group when it commits."""

    def __init__(self, watch: Callable[[int], None]) -> None:
        super().__init__()
        self._watch = watch

    def on_commit(self, commit_index: int) -> None:
        super().on_commit(commit_index)
        self._watch(commit_index)


class Read:
    """One read: its node, when it began, and its index (None: no answer in time)."""

    def __init__(self, node: Node, began_ns: int) -> None:
        self.node = node
        self.began_ns = began_ns
        self.over = False
        self.index: int | None = None

    def done(self, index: int | None) -> None:
        self.over = True
        self.index = index
        if index is not None:
            assert self.node.applied_index >= index, "a read point that is not applied here"
