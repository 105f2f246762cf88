"""A follower that lags costs the others nothing: no refused append, no memory, only its quota (R6)."""

from __future__ import annotations

from member_group import MemberGroup, Writer

from dledger.chaos.machine import World
from dledger.messages import Code

BODY = bytes(8000)


def lagging(world: World, **settings: int) -> tuple[MemberGroup, str, str, str]:
    group = MemberGroup(
        world,
        pending_bytes=256 * 1024,
        inflight_bytes=128 * 1024,
        push_bytes=32 * 1024,
        throttle_lag_bytes=200_000,
        throttle_bytes_per_s=400_000,
        **settings,
    )
    leader = group.await_leader()
    near, far = (name for name in group.founders if name != leader)
    world.run_for(0.5)
    world.partition(leader, far)
    world.partition(near, far)
    return group, leader, near, far


def test_appends_are_not_refused_for_one_slow_follower() -> None:
    with World(1) as world:
        group, leader, near, far = lagging(world)
        writer = Writer(group, "writer")
        last = group.fill(leader, 300, len(BODY))  # 2.4 MB: ten times what may be pending
        assert group.nodes[leader].commit_index >= last
        assert writer.unknown == 0 and writer.longest_pause() < 0.1
        assert group.nodes[far].log.last_index < 50
        # Without a quorum it is refused, by name, before it is sealed.
        world.kill(near)
        outcomes = [group.begin(lambda client: client.append(BODY * 5), timeout_s=0.5) for _ in range(12)]
        world.run_for(0.6)
        codes = [error.code for outcome in outcomes for _, error in outcome if error is not None]
        assert Code.LEADER_PENDING_FULL in codes
        group.start(near)
        group.settle(group.founders, writer)


def test_a_laggard_is_refilled_at_its_quota_and_the_writers_do_not_notice() -> None:
    with World(2) as world:
        group, leader, _, far = lagging(world)
        writer = Writer(group, "writer", pause_s=0.02)
        last = group.fill(leader, 300, len(BODY))
        world.run_for(1.5)
        world.heal()
        began = world.time
        node = group.nodes[leader]
        world.run_for(0.5)
        assert node.status()["peers"][far]["throttled"]  # type: ignore[index]
        worst = 0
        while group.nodes[far].log.last_index < last:
            world.run_for(0.05)
            worst = max(worst, node.peers.backlog(far))
        took = world.time - began
        assert took > 3.0, f"2.2 MB beyond the limit at 0.4 MB/s took {took} s"
        assert took < 15.0
        assert worst <= 256 * 1024, "bytes waiting for the laggard"
        assert writer.longest_pause() < 0.1 and writer.unknown == 0
        world.run_for(1.0)
        assert not node.status()["peers"][far]["throttled"]  # type: ignore[index]
        group.settle(group.founders, writer)


def test_a_laggard_that_the_quorum_needs_is_refilled_as_fast_as_it_can() -> None:
    with World(3) as world:
        group, leader, near, far = lagging(world)
        last = group.fill(leader, 300, len(BODY))
        world.kill(near)
        world.heal()
        began = world.time
        world.run_until(lambda: group.nodes[far].log.last_index >= last, 3)
        assert world.time - began < 2.5
        group.settle(group.founders)
