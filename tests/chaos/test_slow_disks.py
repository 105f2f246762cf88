"""A disk that works, but slower than the group appends: memory is bounded, and its node does not lead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from node_group import NAMES, Group

from dledger.chaos.machine import World
from dledger.config import PreferredSettings
from dledger.formats.entry import HEADER_SIZE
from dledger.log import flushing
from dledger.messages import Code, Health
from dledger.node import health

BODY = bytes(1000)
BURST = 8
SIZE = len(BODY) + HEADER_SIZE
PUSH, WINDOW, PENDING = 16 * 1024, 64 * 1024, 256 * 1024
TIMES_SLOWER = 300.0


@pytest.fixture(autouse=True)
def small_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make flushes as small as the windows of these tests require."""
    monkeypatch.setattr(flushing, "FLUSH_BYTES", 32 * 1024)


class Load:
    """Writers that stop where they are refused: 400 KB/s, more than a slow disk can take."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.refusals: set[Code] = set()
        self.leaders: list[str] = []
        """The nodes that served, one for each change."""

    def run(self, seconds: float, watch: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / 0.02)):
            leader = self.group.leader()
            if leader is not None:
                if self.leaders[-1:] != [leader]:
                    self.leaders.append(leader)
                process = self.group.world.nodes[leader].process
                assert process is not None
                process.loop.call_soon(self._burst, leader)
            self.group.world.run_for(0.02)
            watch()

    def _burst(self, leader: str) -> None:
        appender = self.group.nodes[leader].appender
        for _ in range(BURST if appender is not None else 0):
            assert appender is not None
            if appender.refusal is not None:
                self.refusals.add(appender.refusal)
                return
            appender.reserve(SIZE)
            appender.add((BODY,), len(BODY), self.group.kind)


def group_of(world: World, **settings: object) -> Group:
    return Group(world, push_bytes=PUSH, inflight_bytes=WINDOW, pending_bytes=PENDING, **settings)


def tail(group: Group, name: str) -> int:
    """Bytes that wait in memory for a node's disk."""
    log = group.nodes[name].log
    return log.end_pos - log.durable_pos


def settle(world: World, group: Group) -> None:
    for name in NAMES:
        world.nodes[name].disk.slow(1)
    last = group.append(group.await_leader(), [b"the last"])
    world.run_until(lambda: all(group.applied(name) >= last for name in NAMES), 20)


@pytest.mark.parametrize("connection", ["stays", "breaks"])
def test_what_a_slow_follower_holds_in_memory_is_bounded_by_the_window(connection: str) -> None:
    with World(1) as world:
        group = group_of(world)
        leader = group.await_leader()
        slow = next(name for name in NAMES if name != leader)
        load, tails = Load(group), [0]
        world.nodes[slow].disk.slow(TIMES_SLOWER)
        for _ in range(10):
            load.run(1.0, lambda: tails.append(tail(group, slow)))
            if connection == "breaks":
                world.network.reset(leader, slow)
        node = group.nodes[leader]
        assert max(tails) <= WINDOW + PUSH + SIZE
        assert max(tails) > WINDOW / 2, "the disk always has something to do"
        assert load.leaders == [leader] and not load.refusals, "the group does not notice"
        lacking = node.commit_index - group.nodes[slow].log.last_index
        assert lacking > 1000 and node.log.last_index - node.commit_index < 3 * BURST
        settle(world, group)


def test_a_slow_leader_hands_over_once_and_holds_no_more_than_what_may_be_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds also for the preferred leader: it leads again when its disk has kept up for a while."""
    monkeypatch.setattr(health, "SLOW_REST_S", 40.0)
    with World(2) as world:
        preferred = PreferredSettings(settle_s=0.5, short_lived_s=1.0, backoff_min_s=1.0)
        group = group_of(world, preferred_leaders=("n0",), preferred=preferred)
        world.run_until(lambda: group.leader() == "n0", 20)
        load, tails, lags = Load(group), [0], [0]

        def look() -> None:
            tails.append(tail(group, "n0"))
            leader = group.leader()
            if leader is not None:
                lags.append(group.nodes[leader].commit_index - group.nodes[leader].applied_index)

        load.run(1.0, look)
        world.nodes["n0"].disk.slow(TIMES_SLOWER)
        load.run(60.0, look)
        assert load.leaders[0] == "n0" and len(load.leaders) == 2, "not back while the disk is slow"
        assert max(tails) <= PENDING + SIZE
        assert max(lags) <= PENDING // SIZE + 1, "what is acknowledged can be read soon"
        assert group.nodes["n0"].status()["health"] == Health.SLOW
        assert group.nodes["n0"].status()["reasons"]
        world.nodes["n0"].disk.slow(1)
        load.run(30.0)
        assert len(load.leaders) == 2
        load.run(30.0)
        assert load.leaders[2:] == ["n0"] and group.nodes["n0"].status()["health"] == Health.GOOD
        settle(world, group)


def test_a_slow_leader_that_nobody_can_relieve_refuses_what_its_disk_cannot_take() -> None:
    with World(3) as world:
        group = group_of(world)
        leader = group.await_leader()
        load, tails = Load(group), [0]
        world.nodes[leader].disk.slow(TIMES_SLOWER)
        # The others say that they are not well either.
        for name in NAMES:
            if name != leader:
                monitor = group.nodes[name].health
                monitor._slow_until = 1e9
        load.run(10.0, lambda: tails.append(tail(group, leader)))
        assert load.leaders == [leader] and load.refusals == {Code.LEADER_PENDING_FULL}
        assert PENDING / 2 < max(tails) <= PENDING + SIZE
        assert group.nodes[leader].status()["health"] == Health.SLOW
        settle(world, group)


@pytest.mark.parametrize("seed", range(3))
def test_where_all_disks_are_equally_slow_leadership_stays(seed: int) -> None:
    with World(seed) as world:
        group = group_of(world)
        leader = group.await_leader()
        load = Load(group)
        for name in NAMES:
            world.nodes[name].disk.slow(TIMES_SLOWER)
        load.run(20.0)
        assert load.leaders == [leader] and load.refusals == {Code.LEADER_PENDING_FULL}
        assert all(group.nodes[name].status()["health"] == Health.GOOD for name in NAMES)
        settle(world, group)


def test_a_store_that_counts_for_nothing_yet_gets_more_than_one_window() -> None:
    """The durable index of the store stays -1 until it has been refilled (S9); the window must not wait for
    that."""
    with World(4) as world:
        group = group_of(world, sync_flush=False)
        leader = group.await_leader()
        victim = next(name for name in NAMES if name != leader)
        load = Load(group)
        load.run(1.0)
        world.power_cut(victim)
        load.run(2.0)
        committed = group.nodes[leader].commit_index
        group.start(victim)
        world.run_until(lambda: victim in group.nodes and group.applied(victim) >= committed, 10)
        settle(world, group)
