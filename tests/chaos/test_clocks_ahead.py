"""A node whose clock is ahead of most clocks of its group does not lead while another one can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from node_group import NAMES, Group

from dledger.chaos.machine import Settings, World
from dledger.chaos.machine.env import SimWallClock
from dledger.messages import Health
from dledger.node import health

HOUR_MS = 3_600_000
IN_STEP = Settings(wall_skew_ms=0)
"""Settings with equal wall clocks, until a test moves one."""


def stamp(group: Group, name: str) -> int:
    """Seal a record on the leader, and wait until all running nodes have it. Returns its store time."""
    stamps: list[int] = []
    indexes: list[int] = []

    def seal() -> None:
        appender = group.nodes[name].appender
        assert appender is not None
        indexes.append(appender.add_system(b"stamped"))
        stamps.append(appender.now_ms())

    process = group.world.nodes[name].process
    assert process is not None
    process.loop.call_soon(seal)
    group.world.run_until(lambda: bool(stamps), 1)
    living = tuple(name for name in NAMES if group.world.nodes[name].process is not None)
    group.await_applied(living, indexes[0])
    return stamps[0]


def true_ms(world: World, name: str, skew_ms: int = 0) -> int:
    """The right time at a node whose clock is ahead by `skew_ms`."""
    process = world.nodes[name].process
    assert process is not None
    return SimWallClock(process).now_ms() - skew_ms


def told(group: Group, name: str, key: str) -> str:
    """All texts of one kind in a node's status."""
    texts = group.nodes[name].status()[key]
    assert isinstance(texts, list)
    return "; ".join(texts)


def others(name: str) -> list[str]:
    return [other for other in NAMES if other != name]


def ahead_from_the_start(group: Group, name: str, ms: int) -> None:
    """Restart a node with a clock that is ahead, so that the node cannot notice a leap of its clock."""
    group.world.kill(name)
    group.world.clock_jump(name, ms)
    group.start(name)


def hand_over(group: Group, leader: str, successor: str, target: str | None = None) -> None:
    """Let the leader hand over. Without a target the leader chooses one."""
    process = group.world.nodes[leader].process
    assert process is not None
    moved = process.loop.create_task(group.nodes[leader].leadership.transfer(target))
    group.world.run_until(moved.done, 5)
    assert moved.result() and group.await_leader() == successor


def test_a_leader_whose_clock_leaps_hands_over_before_anything_is_stamped_ahead() -> None:
    with World(11, settings=IN_STEP) as world:
        group = Group(world)
        leader = group.await_leader()
        before = stamp(group, leader)
        world.clock_jump(leader, HOUR_MS)
        world.run_until(lambda: group.leader() not in (None, leader), 5)
        successor = group.leader()
        assert successor is not None
        assert before <= stamp(group, successor) <= true_ms(world, successor)
        world.run_for(120.0)
        assert group.leader() == successor, "it does not stand, nor is it handed leadership"
        assert stamp(group, successor) <= true_ms(world, successor)
        assert group.nodes[leader].health.flags == Health.CLOCK
        assert "3600 s ahead of those of most members" in told(group, leader, "reasons")
        for name in others(leader):
            assert told(group, name, "reasons") == told(group, name, "warnings") == ""
        world.clock_jump(leader, -HOUR_MS)
        world.run_for(2.0)
        assert group.nodes[leader].health.flags == Health.GOOD and told(group, leader, "reasons") == ""


def test_a_node_that_starts_with_its_clock_ahead_is_not_elected() -> None:
    with World(12, settings=IN_STEP) as world:
        group = Group(world)
        sick = group.await_leader()
        ahead_from_the_start(group, sick, HOUR_MS)
        for _ in range(3):
            world.run_for(3.0)
            leader = group.await_leader()
            assert leader != sick and stamp(group, leader) <= true_ms(world, leader)
            world.kill(leader)
            world.run_for(3.0)
            group.start(leader)
        world.run_for(5.0)
        assert group.await_leader() != sick


def test_a_clock_ahead_leads_while_nobody_else_can_and_says_so() -> None:
    """With two clocks no node knows which one is right. The warning about it ends when there is a third
    clock."""
    with World(13, settings=IN_STEP) as world:
        group = Group(world)
        sick = group.await_leader()
        second, third = others(sick)
        world.kill(third)
        ahead_from_the_start(group, sick, HOUR_MS)
        world.run_for(3.0)
        if group.leader() != sick:  # no third clock is known there: it is elected as any other
            hand_over(group, group.await_leader(), sick, target=sick)
        stamped = stamp(group, sick)
        assert stamped > true_ms(world, sick, HOUR_MS) + HOUR_MS - 10_000
        world.run_for(1.0)
        assert "3600 s ahead of that of another member, and too few clocks" in told(group, sick, "warnings")
        assert "store time of the newest message is" in told(group, second, "warnings")
        group.start(third)  # a third clock tells
        world.run_until(lambda: group.leader() not in (None, sick), 10)
        successor = group.leader()
        assert successor is not None and stamp(group, successor) >= stamped, "store time never goes back"
        for name in NAMES:
            ahead_ms = group.nodes[name].status()["store_time_ahead_ms"]
            assert isinstance(ahead_ms, int) and HOUR_MS - 60_000 < ahead_ms <= HOUR_MS
            assert "store time of the newest message is" in told(group, name, "warnings")


def test_a_clock_ahead_does_not_keep_a_group_without_a_leader() -> None:
    """The other running node is not fit to lead either."""
    with World(14, settings=IN_STEP) as world:
        group = Group(world)
        sick = group.await_leader()
        world.clock_jump(sick, HOUR_MS)
        world.run_until(lambda: group.leader() not in (None, sick), 5)
        successor = group.await_leader()
        (unfit,) = (name for name in others(sick) if name != successor)
        node = group.nodes[unfit]
        look = node.health.look

        def rotten() -> None:
            look()
            node.elector.feels(int(Health.FAULTY), may_stand=False)

        node.health.look = rotten  # type: ignore[method-assign]
        world.run_for(1.0)
        world.kill(successor)
        world.run_until(lambda: group.leader() == sick, 20)
        world.run_for(20.0)
        assert group.leader() == sick
        stamp(group, sick)
        assert "leads only while no other member can" in told(group, sick, "reasons")


def test_a_group_with_two_clocks_ahead_stays_available() -> None:
    """Most clocks agree, so the group follows them; the node with the right clock warns that it is behind."""
    with World(15, settings=IN_STEP) as world:
        group = Group(world)
        right, *wrong = NAMES
        for name in wrong:
            ahead_from_the_start(group, name, HOUR_MS)
        world.run_for(5.0)
        terms = group.nodes[group.await_leader()].term
        world.run_for(60.0)
        leader = group.await_leader()
        assert group.nodes[leader].term == terms, "leadership does not bounce"
        stamp(group, leader)
        assert all(group.nodes[name].health.flags == Health.GOOD for name in NAMES)
        assert "3600 s behind those of its peers" in told(group, right, "warnings")


def test_a_clock_that_is_set_right_at_the_peers_is_believed_without_a_new_connection() -> None:
    """The clocks of the others were an hour behind, and are set right. Then this leader is no longer
    ahead."""
    with World(16, settings=IN_STEP) as world:
        group = Group(world)
        leader = group.await_leader()
        for name in others(leader):
            world.clock_jump(name, -HOUR_MS)
        world.run_until(lambda: group.nodes[leader].health.flags == Health.CLOCK, 5)
        for name in others(leader):
            world.clock_jump(name, HOUR_MS)
        successor = group.await_leader()
        world.run_for(3.0)
        node = group.nodes[successor]
        assert node.status()["clock_off_ms"] == 0 and node.health.flags == Health.GOOD


@pytest.mark.parametrize(("limit_ms", "hands_over"), [(0, False), (2 * HOUR_MS, False), (1000, True)])
def test_the_limit_is_a_setting_and_0_switches_it_off(limit_ms: int, hands_over: bool) -> None:
    with World(17, settings=IN_STEP) as world:
        group = Group(world, max_clock_skew_ms=limit_ms)
        leader = group.await_leader()
        world.clock_jump(leader, HOUR_MS)
        world.run_for(10.0)
        assert (group.leader() != leader) is hands_over
        assert (group.nodes[leader].health.flags == Health.CLOCK) is hands_over
        if not hands_over:
            assert "3600 s ahead of those of its peers" in told(group, leader, "warnings")
            world.run_for(90.0)  # the leap is believed by now
            stamp(group, leader)
            world.clock_jump(leader, -HOUR_MS)
            world.run_for(1.0)
            assert told(group, leader, "warnings") == "", "0, or a limit above, warns of no store time"


def test_a_leader_that_does_not_know_a_flag_prefers_others_and_takes_such_a_node_where_it_must() -> None:
    """A newer follower reports a flag that this program does not know, just as older programs do not know
    CLOCK."""
    unknown = 1 << 9

    def says(group: Group, name: str) -> Callable[[], None]:
        node = group.nodes[name]
        look = node.health.look

        def newer() -> None:
            look()
            node.elector.health |= unknown

        return newer

    with World(18, settings=IN_STEP) as world:
        group = Group(world)
        leader = group.await_leader()
        odd, fit = others(leader)
        group.nodes[odd].health.look = says(group, odd)  # type: ignore[method-assign]
        world.run_for(2.0)
        assert group.nodes[leader].elector.health_of(odd) == unknown
        hand_over(group, leader, fit)
        world.kill(leader)
        world.run_for(2.0)
        hand_over(group, fit, odd)  # nobody else is left


def test_names_of_flags() -> None:
    assert health.health_text(0) == "GOOD"
    assert health.health_text(Health.SLOW | Health.CLOCK) == "SLOW+CLOCK"
    assert health.health_text(Health.CLOCK | 512) == "CLOCK+unknown (512)"
