"""The pure cores under random schedules: messages late, lost and in any order between members, crashes with
and without power, disks that take their time, hand-overs, changes of members. What Raft promises of the whole
group is checked after every step (`dledger.chaos.cores`); in the end the group must come together again."""

from __future__ import annotations

import random

import pytest

from dledger.chaos.cores import CoreGroup, CoreNode

STEPS = 700


class Schedule:
    """One seed."""

    def __init__(self, seed: int, voters: int, learners: int) -> None:
        self.random = random.Random(seed)
        names = [f"n{number}" for number in range(voters + learners)]
        self.group = CoreGroup(
            names[:voters], names[voters:], chances=lambda place: random.Random(f"{seed}/{place}")
        )
        self.proposed = 0
        self.changes = learners > 0
        for name in names:
            self.group.start(name)
        self.group.run_for(self.random.choice((0.0, 2.0)))

    def step(self) -> None:
        """One thing happens."""
        what = self.random.random()
        if what < 0.70:
            self._deliver()
        elif what < 0.80:
            self._pass_time()
        elif what < 0.86:
            self._propose()
        elif what < 0.93:
            self._disks()
        elif what < 0.95:
            self._crash_or_start()
        elif what < 0.97:
            self._network()
        elif what < 0.985:
            self._hint_or_hand_over()
        else:
            self._change_members()
        self.group.check()

    def _deliver(self) -> None:
        """Some messages of one way between two members, in order."""
        bag = self.group.bag
        ways = sorted({(envelope.source, envelope.target): None for envelope in bag})
        if ways:
            way = self.random.choice(ways)
            waiting = [envelope for envelope in bag if (envelope.source, envelope.target) == way]
            for envelope in waiting[: self.random.choice((1, 2, 99))]:
                if envelope in bag:
                    self.group.deliver(envelope)

    def _pass_time(self) -> None:
        group = self.group
        group.now += self.random.choice((0.002, 0.01, 0.03, 0.1))
        due = [node.name for node in group.running() if node.core.deadline <= group.now]
        self.random.shuffle(due)
        for name in due:
            group.tick(name)

    def _leaders(self) -> list[CoreNode]:
        return [node for node in self.group.running() if node.leader is not None]

    def _propose(self) -> None:
        for node in self._leaders():
            self.proposed += 1
            self.group.propose(node.name, [f"x{self.proposed}"] * self.random.randint(1, 4))

    def _disks(self) -> None:
        node = self.random.choice([self.group.nodes[name] for name in self.group.names])
        if node.manual_disk:
            self.group.synced(node.name)
            node.manual_disk = self.random.random() < 0.7
        else:
            node.manual_disk = True

    def _crash_or_start(self) -> None:
        name = self.random.choice(self.group.names)
        if self.group.nodes[name].elector is None:
            self.group.start(name)
        else:
            self.group.stop(name, power=self.random.random() < 0.6)

    def _network(self) -> None:
        group = self.group
        if group.cuts and self.random.random() < 0.6:
            for one, other in sorted(group.cuts):
                group.heal(one, other)
            return
        one, other = self.random.sample(group.names, 2)
        group.cut(one, other, noticed=True)
        group.cut(other, one, noticed=True)

    def _hint_or_hand_over(self) -> None:
        group = self.group
        leaders = self._leaders()
        if leaders and self.random.random() < 0.5:
            node = self.random.choice(leaders)
            group.hand_over(node.name, self.random.choice(group.names))
            return
        for node in group.running():
            gone = node.core.leader_id
            if gone is not None and group.nodes[gone].elector is None:
                group.refused(node.name, gone)

    def _change_members(self) -> None:
        """One member at a time, by a leader that has committed in its term and has no change pending."""
        for node in self._leaders() if self.changes else ():
            log, leader = node.log, node.leader
            assert leader is not None
            pending = any(
                log.entry(index).voters is not None
                for index in range(node.commit_index + 1, log.last_index + 1)
            )
            if pending or node.commit_index < leader.opening_index:
                continue
            voters = self.group.voters(node)
            other = self.random.choice([name for name in self.group.names if name != node.name])
            changed = [name for name in voters if name != other] if other in voters else [*voters, other]
            if len(changed) >= 2:
                self.group.reconfigure(node.name, changed)

    def finish(self) -> None:
        """All faults end; within bounded time there is one leader, and all logs are equal and committed."""
        group = self.group
        for name in group.names:
            node = group.nodes[name]
            node.manual_disk = False
            if node.elector is None:
                group.start(name)
            group.synced(name)
        for one, other in sorted(group.cuts):
            group.heal(one, other)
        group.run_for(15.0)
        (leader,) = self._leaders()
        group.propose(leader.name, ["the last"])
        group.settle()
        for node in group.running():
            assert str(node.log) == str(leader.log)
            assert node.commit_index == leader.log.last_index
        texts = str(leader.log)
        assert all(text in texts for text in group.committed_texts())


def run(seed: int, voters: int, learners: int) -> int:
    """Entries committed under one seed."""
    schedule = Schedule(seed, voters, learners)
    for _ in range(STEPS):
        schedule.step()
    schedule.finish()
    return len(schedule.group.committed_texts())


@pytest.mark.parametrize(("voters", "learners"), [(3, 0), (5, 0), (3, 2), (1, 2), (2, 1)])
@pytest.mark.sample(3)
def test_the_group_keeps_its_promises_under_any_schedule(voters: int, learners: int) -> None:
    committed = sum(run(seed, voters, learners) for seed in range(100))
    assert committed > 1000, "too little was committed to show anything"


@pytest.mark.soak
@pytest.mark.parametrize(("voters", "learners"), [(3, 0), (5, 0), (3, 2), (4, 1)])
def test_the_group_keeps_its_promises_under_many_schedules(voters: int, learners: int) -> None:
    for seed in range(1000, 3000):
        run(seed, voters, learners)
