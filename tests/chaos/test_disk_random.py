"""Random faults of one disk at a time, among kills and power cuts: nothing acknowledged is lost, all heal.

The *atlas* of these runs: only one disk is bad at a time, and the next one only after all three have
been whole, so that of each committed entry an intact copy is on a majority of the others.
"""

from __future__ import annotations

import random

import node_group
import pytest
from disk_group import NAMES, DiskGroup
from node_group import SETTINGS

from chaos.sim import World
from dledger.host import Role
from dledger.node import Node
from formats.entry import HEADER_SIZE, Kind

STEPS = 60
PAUSES_S = (0.001, 0.005, 0.02, 0.1, 0.4)
MODES = ("prefix", "torn", "none", "all")


class Run:
    """One seed: a group, what was acknowledged, what was seen."""

    def __init__(self, world: World, seed: int, group: node_group.Group | None = None) -> None:
        self.world = world
        self.group = group or node_group.Group(world)
        self.acknowledged: dict[int, bytes] = {}
        self._random = random.Random(seed)
        self._sealed: list[tuple[Node, int, int, bytes]] = []
        self._entries: dict[int, tuple[int, int, int, bytes]] = {}
        self._leaders: dict[int, str] = {}
        self._count = 0

    def step(self) -> None:
        """One operation or fault, and some time."""
        chance = self._random.random()
        if chance < 0.5:
            self._append()
        elif chance < 0.6:
            self._stop_one()
        elif chance < 0.75:
            self._start_one()
        elif chance < 0.8:
            self._cut()
        elif chance < 0.9:
            self.world.heal()
        self.world.run_for(self._random.choice(PAUSES_S))
        self.look()

    def look(self) -> None:
        """Check what can be seen now."""
        for name in NAMES:
            for entry in self.group.hosts[name].entries if name in self.group.hosts else ():
                assert self._entries.setdefault(entry[0], entry) == entry, f"{name} differs at {entry[0]}"
            node = self.group.nodes.get(name)
            if node is not None and self._alive(name) and node.role is Role.LEADER:
                assert self._leaders.setdefault(node.term, name) == name, f"two leaders in {node.term}"
        for node, term, index, body in list(self._sealed):
            if node.role is Role.LEADER and node.term == term and node.commit_index >= index:
                self.acknowledged[index] = body
                self._sealed.remove((node, term, index, body))

    def finish(self) -> None:
        """Heal, start everything, go on, compare."""
        self.world.heal()
        for name in NAMES:
            if not self._alive(name):
                self.group.start(name)
        self.world.run_for(2.0)
        leader = self.group.await_leader()
        last = self.group.append(leader, [b"the last"])
        self.group.await_applied(NAMES, last)
        self.look()
        logs = [self.group.hosts[name].entries for name in NAMES]
        assert logs[0] == logs[1] == logs[2]
        for index, body in self.acknowledged.items():
            assert logs[0][index][3] == body, f"acknowledged entry {index} is lost"

    def _alive(self, name: str) -> bool:
        return self.world.nodes[name].process is not None

    def _append(self) -> None:
        leader = self.group.leader()
        if leader is None:
            return
        node = self.group.nodes[leader]
        process = self.world.nodes[leader].process
        assert process is not None
        self._count += 1
        size = self._random.randint(1, 3000)
        bodies = [b"%d-%d" % (self._count, part) + bytes(size) for part in range(self._random.randint(1, 8))]

        def seal() -> None:
            appender = node.appender
            for body in bodies if appender is not None else ():
                assert appender is not None
                appender.reserve(HEADER_SIZE + len(body))
                index = appender.add((body,), len(body), Kind.RAW)
                self._sealed.append((node, appender.term, index, body))

        process.loop.call_soon(seal)

    def _stop_one(self) -> None:
        alive = [name for name in NAMES if self._alive(name)]
        if alive:
            stop = self.world.power_cut if self._random.random() < 0.6 else self.world.kill
            stop(self._random.choice(alive))

    def _start_one(self) -> None:
        dead = [name for name in NAMES if not self._alive(name)]
        if dead:
            self.group.start(self._random.choice(dead))

    def _cut(self) -> None:
        if self._random.random() < 0.5:
            self.world.isolate(self._random.choice(NAMES))
        else:
            one, other = self._random.sample(NAMES, 2)
            self.world.partition(one, other, directed=self._random.random() < 0.5)


class DiskRun(Run):
    """One seed."""

    def __init__(self, world: World, seed: int) -> None:
        disks = DiskGroup(world, scrub_bytes_per_s=20 << 20, scrub_pause_s=2.0, disk_stall_s=0.5)
        super().__init__(world, seed, disks)
        self.group: DiskGroup = disks
        self._chance = random.Random(seed + 1)
        self._bad: str | None = None
        self.kinds: dict[str, int] = {}

    def step(self) -> None:
        """A fault of the disk now and then, or what the other runs do."""
        chance = self._chance.random()
        if chance < 0.25 and self._bad is None:
            self._break()
        elif chance < 0.35 and self._bad is not None:
            self._make_whole()
        super().step()

    def _break(self) -> None:
        name = self._chance.choice(NAMES)
        if not self._alive(name) or name not in self.group.nodes:
            return
        log = self.group.nodes[name].log
        disk = self.group.disk(name)
        kind = self._chance.choice(("flip", "flip at rest", "eio", "read", "full", "hang", "slow", "power"))
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self._bad = name
        below = f"/store/dledger-{name}"
        if kind.startswith("flip"):
            if "rest" in kind:
                self.world.kill(name)
            paths = disk.files(f"{below}/data") + disk.files(f"{below}/index") + [f"{below}/hardstate"]
            for _ in range(self._chance.randint(1, 4)):
                path = self._chance.choice(paths)
                size = len(disk.inode(path).content)
                end = min(size, max(1, log.durable_pos % size)) if "/data/" in path else size
                if size:
                    disk.flip(path, self._chance.randrange(end), self._chance.randrange(8))
        elif kind == "eio":
            disk.fail(self._chance.choice(("write", "fsync")), 1, below)
        elif kind == "read":
            disk.fail("read", self._chance.randint(1, 3), f"{below}/data")
        elif kind == "full":
            disk.room(disk.used() + self._chance.choice((0, 70_000, 300_000)))
        elif kind == "hang":
            disk.hang()
        elif kind == "slow":
            disk.slow(self._chance.choice((10, 100)))
        else:
            self.world.power_cut(name, mode=self._chance.choice(MODES))

    def _make_whole(self) -> None:
        """The bad disk is well again, and all three agree."""
        name = self._bad
        assert name is not None
        self.group.disk(name).mend()
        self.world.heal()
        self.world.run_for(0.5)
        self.group.settle()
        self.world.run_for(2.5)  # a pass of the scrub
        self.group.settle()
        self._bad = None

    def finish(self) -> None:
        """Everything is well again."""
        for name in NAMES:
            self.group.disk(name).mend()
        self.world.heal()
        self.group.settle()
        super().finish()


def run_seed(seed: int) -> tuple[int, dict[str, int]]:
    """Entries acknowledged in one seed, and faults of the disk by kind."""
    with World(seed, settings=SETTINGS) as world:
        run = DiskRun(world, seed)
        run.group.await_leader()
        for _ in range(STEPS):
            run.step()
        run.finish()
        return len(run.acknowledged), run.kinds


@pytest.mark.parametrize("seed", range(6))
def test_one_bad_disk_loses_nothing(seed: int) -> None:
    acknowledged, _ = run_seed(seed)
    assert acknowledged > 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 50))
def test_one_bad_disk_loses_nothing_in_many_seeds(first: int) -> None:
    assert sum(run_seed(seed)[0] for seed in range(first, first + 50)) > 2000
