"""A `node_group.Group` with small segments whose nodes may end with NodeFailed; tools to damage a store."""

from __future__ import annotations

from functools import partial
from typing import Any

import node_group

from dledger.chaos.machine import World
from dledger.config import NodeConfig
from dledger.errors import NodeFailed
from dledger.formats.entry import CHANNEL_OFFSET, HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, unpack_header
from dledger.node.node import Node
from dledger.runtime.env import Env

SEGMENT = 64 * 1024
MAX_ENTRY = 16 * 1024
UNITS = 256
NAMES = node_group.NAMES


class DiskGroup(node_group.Group):
    """Three nodes with segments of 64 KiB. `changes` are fields of NodeConfig."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.changes = changes
        self.failures: dict[str, NodeFailed] = {}
        super().__init__(world)

    def start(self, name: str) -> None:
        self.failures.pop(name, None)
        self.world.restart(name, partial(self._main, name=name), may_raise=(NodeFailed,))

    async def _main(self, env: Env, name: str) -> None:
        fields: dict[str, Any] = {
            "segment_size": SEGMENT,
            "max_entry_bytes": MAX_ENTRY,
            "index_units_per_file": UNITS,
            "pool_segments": 1,
            "scrub_bytes_per_s": 0,
            "allowed_sources": node_group.OPERATORS,
        }
        config = NodeConfig(
            group="g0",
            self_id=name,
            peers={peer: f"{peer}:40911" for peer in NAMES},
            store_dir="/store",
            **(fields | self.changes),
        )
        self.hosts[name] = node_group.ListHost()
        self.nodes[name] = Node(env, config, self.hosts[name])
        try:
            await self.nodes[name].run()
        except NodeFailed as failure:
            self.failures[name] = failure
            raise

    def fill(self, count: int, size: int = 1000, *, tag: str = "entry", without: str = "") -> int:
        """Append `count` entries through the leader. Returns the index of the last one, which all running
        nodes have applied."""
        last = -1
        for start in range(0, count, 10):
            leader = self.await_leader()
            bodies = [
                b"%s %d " % (tag.encode(), n) + bytes([n % 251]) * size for n in range(start, start + 10)
            ]
            last = self.append(leader, bodies)
            self.world.run_until(
                lambda leader=leader, last=last: self.applied(leader) >= last or self.leader() != leader, 3
            )
        self.await_applied(tuple(name for name in NAMES if self.alive(name) and name != without), last)
        return last

    def alive(self, name: str) -> bool:
        """Whether the node runs."""
        return self.world.nodes[name].process is not None

    def followers(self) -> list[str]:
        """The running nodes other than the leader."""
        leader = self.await_leader()
        return [name for name in NAMES if name != leader and self.alive(name)]

    def settle(self) -> None:
        """Let time pass until all three nodes hold the same log and nothing is faulty."""
        for name in NAMES:
            if not self.alive(name):
                self.start(name)
        self.world.run_for(0.3)
        leader = self.await_leader()
        last = self.append(leader, [b"the last"])

        def settled() -> bool:
            applied = {self.applied(name) for name in NAMES}  # a promotion may follow "the last"
            return (
                len(applied) == 1
                and min(applied) >= last
                and not any(self.nodes[name].log.faulty for name in NAMES)
            )

        self.world.run_until(settled, 15)
        one, other, third = (self.hosts[name].entries for name in NAMES)
        assert one == other == third
        assert [entry[0] for entry in one] == list(range(len(one)))

    def kill_after_an_fsync(self) -> tuple[str, int, int]:
        """Kill a follower and isolate its peers. Returns the follower, the index of the entry that it
        acknowledged last (3000 bytes, without an index unit yet), and where its log ended."""
        world = self.world
        self.fill(30)
        world.run_for(2)
        victim = self.followers()[0]
        last = self.append(self.await_leader(), [b"x" * 3000])
        log = self.nodes[victim].log
        world.run_until(lambda: log.durable_index >= last, 3)
        assert log._unindexed, "no index unit tells that the entry was there"
        end = log.end_pos
        world.kill(victim)
        world.run_for(0.5)
        for name in NAMES:
            if name != victim:
                world.isolate(name)
        return victim, last, end

    # Damage

    def disk(self, name: str) -> Any:
        """The disk of one machine."""
        return self.world.nodes[name].disk

    def entry(self, name: str, index: int) -> tuple[str, int, int]:
        """Segment file, offset in it and size of an entry."""
        pos, size = self.unit(name, index)
        return f"/store/dledger-{name}/data/{pos - pos % SEGMENT:020d}", pos % SEGMENT, size

    def unit_place(self, name: str, index: int) -> tuple[str, int]:
        """Index file and offset in it of an entry's unit."""
        at = index * INDEX_UNIT_SIZE
        start = at - at % (UNITS * INDEX_UNIT_SIZE)
        return f"/store/dledger-{name}/index/{start:020d}", at - start

    def unit(self, name: str, index: int) -> tuple[int, int]:
        """(pos, size) of an entry, from its index unit."""
        path, offset = self.unit_place(name, index)
        unit = INDEX_UNIT.unpack(self.disk(name).inode(path).read(offset, INDEX_UNIT_SIZE))
        assert unit[3] == index, f"{name} has no unit of {index}"
        return unit[1], unit[2]

    def damage(self, name: str, index: int, what: str) -> None:
        """Flip a bit: "body", "header", "chain", "kind", "batch", "unit", or both "header and unit"."""
        path, offset, _ = self.entry(name, index)
        place = self.unit_place(name, index)
        if "body" in what:
            self.disk(name).flip(path, offset + HEADER_SIZE + 100, 3)
        if "header" in what:
            self.disk(name).flip(path, offset + 11, 5)  # the index
        if "chain" in what:
            self.disk(name).flip(path, offset + 38, 5)
        if "kind" in what:
            self.disk(name).flip(path, offset + CHANNEL_OFFSET, 2)
        if "batch" in what:
            self.disk(name).flip(path, offset + CHANNEL_OFFSET + 3, 0)  # as if the next one belonged to it
        if "unit" in what:
            self.disk(name).flip(*(place[0], place[1] + 23), 1)  # the index

    def bytes_of(self, name: str, index: int) -> bytes:
        """The bytes of an entry on the disk."""
        path, offset, size = self.entry(name, index)
        data: bytes = self.disk(name).inode(path).read(offset, size)
        assert unpack_header(data).index == index
        return data
