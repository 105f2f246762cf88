"""Read points are linearizable: at or above everything acknowledged before the read began, on every node.

The tests run under partitions, stops, kills, hand-overs and clocks that drift within the margin, with and
without leases.
"""

from __future__ import annotations

import random

import node_group
import pytest
from voting_group import Read, VotingGroup

from dledger.chaos.machine import World

STEPS = 150
PAUSES_S = (0.0005, 0.002, 0.01, 0.05, 0.2, 0.45)
RATES = (0.95, 1.0, 1.05)
"""Rates of clocks that are as far apart as the default margin allows: 0.95 / 1.05 > 0.9."""


def check(group: VotingGroup, read: Read) -> None:
    if read.index is not None:
        known = group.acknowledged_before(read.began_ns)
        assert read.index >= known, f"a read got {read.index}, acknowledged before it was {known}"


class Run:
    """One seed of operations and faults."""

    def __init__(self, world: World, seed: int, size: int, lease: bool) -> None:
        self.world = world
        self.group = VotingGroup(world, size, lease_reads=lease)
        self.reads: list[Read] = []
        self._random = random.Random(seed)
        self._stopped: list[str] = []
        for name in self.group.names:
            world.clock_drift(name, self._random.choice(RATES))
        self.group.start_all()
        self.group.await_leader()

    def step(self) -> None:
        group, chance = self.group, self._random.random()
        running = [name for name in group.names if group.alive(name) and name not in self._stopped]
        for name in group.names:
            if name in group.nodes and group.alive(name) and hasattr(group.nodes[name], "_loop"):
                self.reads.append(group.read(name, self._random.choice((0.3, 1.0, 3.0))))
        leader = group.leader()
        if leader in running and self._random.random() < 0.7:
            group.append(leader, b"x" * self._random.randint(1, 500))
        if chance < 0.06 and leader is not None:
            self.world.isolate(leader)
        elif chance < 0.12:
            one, other = self._random.sample(group.names, 2)
            self.world.partition(one, other, directed=self._random.random() < 0.5)
        elif chance < 0.25:
            self.world.heal()
        elif chance < 0.3 and leader in running:
            self.world.stop(leader)
            self._stopped.append(leader)
        elif chance < 0.4 and self._stopped:
            self._continue(self._stopped[0])
        elif chance < 0.45 and running:
            self.world.kill(self._random.choice(running))
        elif chance < 0.6:
            for name in group.names:
                if not group.alive(name):
                    group.start(name)
        elif chance < 0.65 and leader in running:
            self._hand_over(leader)
        self.world.run_for(self._random.choice(PAUSES_S))
        group.look()
        self._check()

    def _continue(self, name: str) -> None:
        self._stopped.remove(name)
        self.world.cont(name)

    def _hand_over(self, leader: str) -> None:
        self.group.hand_over(
            leader, self._random.choice([name for name in self.group.names if name != leader])
        )

    def _check(self) -> None:
        for read in self.reads:
            if read.over:
                check(self.group, read)
        self.reads = [read for read in self.reads if not read.over]

    def finish(self) -> None:
        for name in list(self._stopped):
            self._continue(name)
        self.group.finish()
        last = [self.group.read(name) for name in self.group.names]
        self.world.run_until(lambda: all(read.over for read in last), 2)
        self._check()
        for read in last:
            assert read.index is not None, "no read point in a healthy group"
            check(self.group, read)


def run_seed(seed: int, size: int, lease: bool) -> tuple[int, int]:
    """Play one seed. Returns (rounds sent for reads, reads answered by a lease) of the processes that ran at
    the end."""
    with World(seed, settings=node_group.SETTINGS) as world:
        run = Run(world, seed, size, lease)
        for _ in range(STEPS):
            run.step()
        run.finish()
        points = [node.reads for node in run.group.nodes.values()]
        return sum(point.rounds for point in points), sum(point.by_lease for point in points)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("lease", [False, True])
def test_no_read_is_stale(size: int, lease: bool) -> None:
    totals = [run_seed(seed, size, lease) for seed in range(6)]
    assert sum(rounds for rounds, _ in totals) > 0
    assert (sum(by_lease for _, by_lease in totals) > 0) == lease


@pytest.mark.soak
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("lease", [False, True])
def test_no_read_is_stale_in_many_seeds(size: int, lease: bool) -> None:
    for seed in range(100, 180):
        run_seed(seed, size, lease)


@pytest.mark.parametrize("lease", [False, True])
def test_a_deposed_leader_that_is_cut_off_never_answers_stale(lease: bool) -> None:
    for seed in range(10):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = VotingGroup(world, lease_reads=lease)
            group.start_all()
            old = group.await_leader()
            group.commit(old, b"before")
            world.clock_drift(old, 0.95)
            for name in group.names:
                if name != old:
                    world.clock_drift(name, 1.05)
            group.run_for(0.5)
            world.isolate(old)
            reads = []
            until = world.time + 2.0
            while world.time < until:
                reads.append(group.read(old, 0.5))
                world.run_for(0.003)
                new = group.leader()
                if new not in (None, old):
                    group.append(new, b"by the new one")
            world.run_for(1.0)
            assert group.leader() != old
            for read in reads:
                assert read.over
                check(group, read)
            assert any(read.index is None for read in reads)
            assert any(read.index is not None for read in reads) == lease


@pytest.mark.parametrize("lease", [False, True])
@pytest.mark.parametrize("stop_s", [0.2, 0.41, 0.5, 0.9, 10.0])
def test_a_leader_that_was_stopped_reads_the_clock_after_the_request(lease: bool, stop_s: float) -> None:
    for seed in range(5):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = VotingGroup(world, lease_reads=lease)
            group.start_all()
            old = group.await_leader()
            group.commit(old, b"before")
            group.run_for(0.3)
            world.stop(old)
            world.run_for(stop_s / 2)
            reads = [group.read(old, 20.0) for _ in range(3)]
            world.run_for(stop_s / 2)
            new = group.leader()
            if new not in (None, old):
                group.commit(new, b"by the new one")
            reads += [group.read(old, 20.0) for _ in range(3)]
            world.cont(old)
            world.run_for(3.0)
            for read in reads:
                assert read.over and read.index is not None
                check(group, read)


def test_reads_of_one_turn_share_a_round_and_followers_read_too() -> None:
    with World(1, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world)
        group.start_all()
        leader = group.await_leader()
        index = group.commit(leader, b"x")
        before = group.nodes[leader].reads.rounds
        reads = [group.read(name) for name in group.names for _ in range(50)]
        world.run_for(0.02)
        assert all(read.over and read.index is not None and read.index >= index for read in reads)
        assert group.nodes[leader].reads.rounds - before <= 4
        assert group.nodes[leader].status()["read_rounds"] == group.nodes[leader].reads.rounds


def test_a_read_waits_for_a_leader_and_says_why_there_is_none() -> None:
    with World(1, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world)
        group.start("n0")
        world.run_for(0.1)
        read = group.read("n0", 0.2)
        patient = group.read("n0", 5.0)
        world.run_for(0.3)
        assert read.over and read.index is None
        assert group.nodes["n0"].reads.why() == "no leader is known"
        group.start("n1")
        group.start("n2")
        world.run_until(lambda: patient.over, 4)
        assert patient.index is not None


def failover_s(lease: bool) -> float:
    with World(2, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world, lease_reads=lease)
        group.start_all()
        leader = group.await_leader()
        group.run_for(0.5)
        began = world.time
        world.kill(leader)
        world.run_until(lambda: group.leader() not in (None, leader), 3)
        return world.time - began


def test_a_connection_refused_is_no_hint_when_leases_are_on() -> None:
    assert failover_s(lease=False) < 0.1
    assert failover_s(lease=True) >= 0.3


def test_a_voter_that_was_restarted_keeps_the_promise_of_its_former_life() -> None:
    """The leader's lease depends on one voter. That voter dies, returns, and is asked for its vote by the
    third node at once."""
    for seed in range(8):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = VotingGroup(world, lease_reads=True)
            group.start_all()
            old = group.await_leader()
            support, rival = (name for name in group.names if name != old)
            world.partition(old, rival)
            group.run_for(2.0)
            assert group.leader() == old
            world.kill(support)
            world.partition(old, support)
            group.start(support)
            reads = []
            for _ in range(300):
                reads.append(group.read(old, 0.3))
                world.run_for(0.003)
                if group.leader() == rival:
                    group.append(rival, b"x")
            assert group.leader() in (rival, support)
            for read in reads:
                check(group, read)


def test_no_lease_once_a_hand_over_was_tried() -> None:
    for seed in range(8):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = VotingGroup(world, lease_reads=True)
            group.start_all()
            old = group.await_leader()
            target = next(name for name in group.names if name != old)
            group.commit(old, b"before")
            group.run_for(0.5)
            group.hand_over(old, target)
            world.run_for(0.0004)
            world.isolate(old)
            reads = []
            for _ in range(200):
                reads.append(group.read(old, 0.3))
                world.run_for(0.002)
                if group.leader() == target:
                    group.append(target, b"x")
            assert group.leader() == target, "the scenario needs that the hand-over worked"
            for read in reads:
                check(group, read)


def test_each_life_of_a_node_numbers_its_questions_anew() -> None:
    """Otherwise a leader's late answer to a former life could be taken for an answer to this life."""
    with World(3, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world, 3)
        group.start_all()
        group.await_leader()
        first = group.nodes["n0"].reads._number
        world.kill("n0")
        group.start("n0")
        world.run_for(1)
        assert abs(group.nodes["n0"].reads._number - first) > 1 << 32
