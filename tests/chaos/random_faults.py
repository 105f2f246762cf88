"""Random operations on three nodes and the simplest oracles. Storms of faults are built on this module."""

from __future__ import annotations

import random

import node_group

from dledger.chaos.machine import World
from dledger.host import Role

PAUSES_S = (0.001, 0.005, 0.02, 0.1, 0.4)


class Run:
    """One seed: a group, the acknowledged entries, and what was observed."""

    def __init__(self, world: World, seed: int, group: node_group.Group | None = None) -> None:
        self.world = world
        self.group = group or node_group.Group(world)
        self.acknowledged: dict[int, bytes] = {}
        self._random = random.Random(seed)
        self._sealed: list[node_group.Sealed] = []
        self._entries: dict[int, tuple[int, int, int, bytes]] = {}
        self._leaders: dict[int, str] = {}
        self._count = 0

    def step(self) -> None:
        """Perform one operation or fault, and let some time pass."""
        chance = self._random.random()
        if chance < 0.5:
            self.append()
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
        """Check what can be observed now."""
        for name in node_group.NAMES:
            for entry in self.group.hosts[name].entries if name in self.group.hosts else ():
                assert self._entries.setdefault(entry[0], entry) == entry, f"{name} differs at {entry[0]}"
            node = self.group.nodes.get(name)
            if node is not None and self._alive(name) and node.role is Role.LEADER:
                assert self._leaders.setdefault(node.term, name) == name, f"two leaders in {node.term}"
        node_group.take_acknowledged(self._sealed, self.acknowledged)

    def finish(self) -> None:
        """Heal and start everything, let the group go on, and compare."""
        self.world.heal()
        for name in node_group.NAMES:
            if not self._alive(name):
                self.group.start(name)
        self.world.run_for(2.0)
        leader = self.group.await_leader()
        last = self.group.append(leader, [b"the last"])
        self.group.await_applied(node_group.NAMES, last)
        self.look()
        logs = [self.group.hosts[name].entries for name in node_group.NAMES]
        assert logs[0] == logs[1] == logs[2]
        for index, body in self.acknowledged.items():
            assert logs[0][index][3] == body, f"acknowledged entry {index} is lost"

    def _alive(self, name: str) -> bool:
        return self.world.nodes[name].process is not None

    def append(self) -> None:
        """Seal a few entries on the leader, if there is one."""
        leader = self.group.leader()
        if leader is None:
            return
        self._count += 1
        size = self._random.randint(1, 3000)
        bodies = [b"%d-%d" % (self._count, part) + bytes(size) for part in range(self._random.randint(1, 8))]
        self.group.seal(leader, bodies, self._sealed)

    def _stop_one(self) -> None:
        alive = [name for name in node_group.NAMES if self._alive(name)]
        if alive:
            stop = self.world.power_cut if self._random.random() < 0.6 else self.world.kill
            stop(self._random.choice(alive))

    def _start_one(self) -> None:
        dead = [name for name in node_group.NAMES if not self._alive(name)]
        if dead:
            self.group.start(self._random.choice(dead))

    def _cut(self) -> None:
        if self._random.random() < 0.5:
            self.world.isolate(self._random.choice(node_group.NAMES))
        else:
            one, other = self._random.sample(node_group.NAMES, 2)
            self.world.partition(one, other, directed=self._random.random() < 0.5)
