"""The target of a hand-over: a node that runs and answers; and what happens if the target goes away."""

from __future__ import annotations

import asyncio

import node_group
import pytest
from disk_group import DiskGroup
from test_disk_faults import fill_up
from voting_group import VotingGroup

from dledger.chaos.machine import World
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.messages import Health

SERVES_WITHIN_S = 0.1
HAND_OVER_S = 2.0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("away", ["killed", "stopped"])
def test_a_full_leader_hands_over_to_the_follower_that_is_there(seed: int, away: str) -> None:
    """The other follower, which has the higher id, died while the group was idle. It held everything and was
    healthy."""
    with World(seed, settings=node_group.SETTINGS) as world:
        group = DiskGroup(world)
        group.fill(20)
        world.run_for(3)
        full = group.await_leader()
        gone = max(group.followers())
        (world.kill if away == "killed" else world.stop)(gone)
        world.run_for(5)
        fill_up(group, full)
        world.run_until(lambda: group.leader() not in (None, full), 15)
        world.run_for(10)
        leader = group.leader()
        assert leader not in (None, full, gone), "who has room leads, and stays"
        assert not group.nodes[leader].elector.health & Health.DISK_FULL


def hand_over(group: VotingGroup, leader: str, target: str | None) -> list[bool]:
    """Begin a hand-over. The list gets its result when it ends."""
    moved: list[bool] = []
    tasks: list[asyncio.Task[None]] = []

    async def transfer() -> None:
        moved.append(await group.nodes[leader].leadership.transfer(target, HAND_OVER_S))

    group.call(leader, lambda: tasks.append(asyncio.get_running_loop().create_task(transfer())))
    return moved


@pytest.mark.parametrize("seed", range(3))
def test_what_was_appended_in_the_turn_of_the_hand_over_reaches_the_target_first(seed: int) -> None:
    """Regression, found in a rolling restart: the entry became part of the log after the target had been
    asked to start an election. Both other nodes refused the target, whose log was shorter by then, and there
    was no leader for 0.8 s."""
    with World(seed, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world)
        group.start_all()
        old = group.await_leader()
        group.commit(old, b"before")
        group.run_for(0.5)
        target = next(name for name in group.names if name != old)
        node = group.nodes[old]
        tasks: list[asyncio.Task[bool]] = []
        indexes: list[int] = []

        def at_once() -> None:
            transfer = node.leadership.transfer(target, HAND_OVER_S)
            tasks.append(asyncio.get_running_loop().create_task(transfer))  # it begins ahead of the sealing
            appender = node.appender
            assert appender is not None
            appender.reserve(HEADER_SIZE + 5)
            indexes.append(appender.add((b"after",), 5, Kind.RAW))

        group.call(old, at_once)
        world.run_for(SERVES_WITHIN_S)
        assert group.leader() == target
        assert group.nodes[target].log.last_index > indexes[0]


def silence_s(group: VotingGroup, but: str = "") -> float:
    """How long no node serves. The node `but` does not count."""
    world = group.world
    began = world.now
    world.run_until(lambda: group.leader() not in (None, but or None), 10)
    return (world.now - began) / 1e9


@pytest.mark.parametrize(("size", "after_s", "slow"), [(3, 0.0002, 1), (5, 0.0002, 1), (3, 0.01, 40)])
def test_a_leader_whose_target_goes_away_serves_again_at_once(size: int, after_s: float, slow: int) -> None:
    """The target goes away before it starts an election, or while its disk (40 times slower) keeps it
    behind."""
    with World(1, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world, size)
        group.start_all()
        leader = group.await_leader()
        group.commit(leader, b"x")
        group.run_for(2)
        target = min(name for name in group.names if name != leader)
        world.nodes[target].disk.slow(slow)
        if slow > 1:
            for _ in range(3):
                group.append(leader, b"y" * 5000)
        moved = hand_over(group, leader, target)
        world.run_for(after_s)
        world.kill(target)
        assert silence_s(group) < SERVES_WITHIN_S
        world.run_for(0.1)
        assert moved == [False] and group.leader() == leader


@pytest.mark.parametrize("seed", [1, 2])
def test_without_a_name_leadership_goes_to_a_follower_that_answers(seed: int) -> None:
    """A stopped process stays connected, was healthy, and holds everything that an idle group has."""
    with World(seed) as world:
        group = VotingGroup(world, 5)
        group.start_all()
        leader = group.await_leader()
        group.commit(leader, b"x")
        group.run_for(2)
        stopped = max(name for name in group.names if name != leader)
        world.stop(stopped)
        group.run_for(3)
        moved = hand_over(group, leader, None)
        assert silence_s(group, but=leader) < SERVES_WITHIN_S
        assert moved == [True] and group.leader() != stopped


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("one_way_s", [0.03, 0.05])
@pytest.mark.sample(2)
def test_on_slow_links_a_killed_leader_costs_one_term(size: int, one_way_s: float) -> None:
    """All followers notice the kill at once; answers take longer than the first pause between two
    pre-votes."""
    for seed in range(5):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = VotingGroup(world, size)
            for number, one in enumerate(group.names):
                for other in group.names[number + 1 :]:
                    world.network.delay(one, other, (one_way_s, one_way_s * 1.1))
            group.start_all()
            group.await_leader()
            group.run_for(3)
            leader = group.await_leader()
            term = group.term()
            world.kill(leader)
            assert silence_s(group) < 20 * one_way_s
            group.run_for(2)
            assert group.term() == term + 1
