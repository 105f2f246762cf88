"""Members come, go and lose their disks under kills, power cuts and partitions: nothing acknowledged is
lost."""

from __future__ import annotations

import random

import pytest
from member_group import MemberGroup, Writer

from dledger.chaos.machine import World

STEPS = 90
PAUSES_S = (0.002, 0.02, 0.1, 0.3, 0.8)
NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")


class Run:
    """One seed: a group of one, three or five, two writers, an operator, and random faults."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self._random = random.Random(seed)
        founders = NAMES[: self._random.choice((1, 3, 3, 5))]
        self.group = MemberGroup(world, founders)
        self.group.await_leader()
        self.writers = [Writer(self.group, f"writer{number}", 0.02) for number in range(2)]
        self.done = {"change": 0, "wipe": 0, "crash": 0, "cut": 0}
        self._outcomes: list[list[object]] = []

    def step(self) -> None:
        """Perform one fault or command, and let some time pass."""
        actions = (
            (0.25, self._change),
            (0.2, self._crash),
            (0.25, self._start),
            (0.1, self._cut),
            (0.15, self.world.heal),
            (0.05, self._wipe),
        )
        ((action,),) = self._random.choices([a[1:] for a in actions], [a[0] for a in actions])
        action()
        self.world.run_for(self._random.choice(PAUSES_S))
        self.group.look()

    def _change(self) -> None:
        name = self._random.choice(NAMES)
        kind = self._random.choice(("add", "add", "remove", "promote", "transfer", "prefer"))
        address = self.group.address(name)
        if kind == "add":
            stays = self._random.random() < 0.2
            self._outcomes.append(self.group.begin(lambda c: c.add_member(name, address, stays=stays), 2.0))  # type: ignore[arg-type]
            if name not in self.group.nodes:
                self.group.start(name)
        elif kind == "remove":
            self._outcomes.append(self.group.begin(lambda c: c.remove_member(name), 2.0))  # type: ignore[arg-type]
        elif kind == "promote":
            self._outcomes.append(self.group.begin(lambda c: c.promote_member(name), 2.0))  # type: ignore[arg-type]
        elif kind == "transfer":
            self._outcomes.append(self.group.begin(lambda c: c.transfer(name), 2.0))  # type: ignore[arg-type]
        else:
            self._outcomes.append(self.group.begin(lambda c: c.prefer([name]), 2.0))  # type: ignore[arg-type]

    def _crash(self) -> None:
        alive = self.group.alive()
        if alive:
            stop = self.world.power_cut if self._random.random() < 0.5 else self.world.kill
            stop(self._random.choice(alive))
            self.done["crash"] += 1

    def _start(self) -> None:
        dead = [name for name in sorted(self.group.nodes) if self.world.nodes[name].process is None]
        if dead:
            self.group.start(self._random.choice(dead))

    def _cut(self) -> None:
        names = sorted(self.group.nodes)
        self.done["cut"] += 1
        if self._random.random() < 0.5 or len(names) < 2:
            for other in names:
                name = self._random.choice(names)
                if other != name:
                    self.world.partition(name, other)
        else:
            one, other = self._random.sample(names, 2)
            self.world.partition(one, other, directed=self._random.random() < 0.5)

    def _wipe(self) -> None:
        """Wipe a disk while all other nodes hold everything (not more than a minority may be lost)."""
        leader = self.group.leader()
        if leader is None or not all(self._outcomes):
            return  # a removal on its way takes another one
        node = self.group.nodes[leader]
        replication = node.replicator.leader
        if replication is None or node.members.pending(node.commit_index) or len(node.members.voters) < 3:
            return
        for voter in node.members.voters:
            if voter == leader:
                continue
            whole = node.membership.acknowledges(voter) and self.world.nodes[voter].process is not None
            if not whole or replication.progress[voter].durable < node.commit_index:
                return
        self.group.wipe(self._random.choice(node.members.voters))
        self.done["wipe"] += 1

    def finish(self) -> None:
        """Heal and start everything; the members of the last configuration agree."""
        for writer in self.writers:
            writer.stopped = True
        self.world.heal()
        for name in sorted(self.group.nodes):
            if self.world.nodes[name].process is None:
                self.group.start(name)
        self.world.run_for(5.0)
        leader = self.group.await_leader(20)
        self.world.run_until(self.group.voters, 20)
        leader = self.group.await_leader()
        node = self.group.nodes[leader]
        members = [name for name in node.members.current.members if name in self.group.nodes]
        self.group.settle(sorted(members), *self.writers)
        self.done["change"] = sum(1 for outcome in self._outcomes for result in outcome if result[1] is None)  # type: ignore[index]


def run_seed(seed: int) -> dict[str, int]:
    """Play one seed. Returns how often each kind of event happened."""
    with World(seed) as world:
        run = Run(world, seed)
        for _ in range(STEPS):
            run.step()
        run.finish()
        return {**run.done, "acknowledged": sum(len(writer.acknowledged) for writer in run.writers)}


def sums(seeds: range) -> dict[str, int]:
    """The sums over many seeds."""
    results = [run_seed(seed) for seed in seeds]
    return {name: sum(result[name] for result in results) for name in results[0]}


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [0, 2, 4])
def test_changes_of_members_under_faults_lose_nothing(first: int) -> None:
    happened = sums(range(first, first + 2))
    assert happened["acknowledged"] > 100 and happened["change"] > 3 and happened["crash"] > 16, happened


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_changes_of_members_under_faults_lose_nothing_in_many_seeds(first: int) -> None:
    happened = sums(range(first, first + 50))
    assert happened["wipe"] > 5 and happened["change"] > 100, happened
