"""Random faults of one disk at a time, with kills and power cuts: nothing acknowledged is lost, all nodes
recover.

In these runs only one disk is bad at a time, and the next one only after all three have been whole. So there
is an intact copy of each committed entry on a majority of the others (the *atlas*).
"""

from __future__ import annotations

import random

import pytest
from disk_group import NAMES, DiskGroup
from node_group import SETTINGS
from random_faults import Run

from dledger.chaos.machine import World

STEPS = 60
MODES = ("prefix", "torn", "none", "all")


class DiskRun(Run):
    """One seed with faults of disks."""

    def __init__(self, world: World, seed: int) -> None:
        disks = DiskGroup(world, scrub_bytes_per_s=20 << 20, scrub_pause_s=2.0, disk_stall_s=0.5)
        super().__init__(world, seed, disks)
        self.group: DiskGroup = disks
        self._chance = random.Random(seed + 1)
        self._bad: str | None = None
        self.kinds: dict[str, int] = {}

    def step(self) -> None:
        """Inject a fault of the disk now and then, otherwise do a step of the other runs."""
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
        """Mend the bad disk, and check that all three nodes agree."""
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
        """Mend all disks, heal everything, and compare."""
        for name in NAMES:
            self.group.disk(name).mend()
        self.world.heal()
        self.group.settle()
        super().finish()


def run_seed(seed: int) -> tuple[int, dict[str, int]]:
    """Play one seed. Returns the number of acknowledged entries, and the faults of the disk by kind."""
    with World(seed, settings=SETTINGS) as world:
        run = DiskRun(world, seed)
        run.group.await_leader()
        for _ in range(STEPS):
            run.step()
        run.finish()
        return len(run.acknowledged), run.kinds


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sample(2)
def test_one_bad_disk_loses_nothing(seed: int) -> None:
    acknowledged, _ = run_seed(seed)
    assert acknowledged > 5


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 300, 50))
def test_one_bad_disk_loses_nothing_in_many_seeds(first: int) -> None:
    assert sum(run_seed(seed)[0] for seed in range(first, first + 50)) > 2000
