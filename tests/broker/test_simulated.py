"""Three whole brokers and a client in one simulated world: crash, failover, restart, one course per seed."""

from __future__ import annotations

from functools import partial

import pytest

from dledger.chaos.machine import Settings, Trace, World
from dledger.messages import Code
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env
from tests.broker.sim_group import BIG_SEGMENT, NAMES, SimGroup

SETTINGS = Settings()


def scenario(world: World, power: bool) -> SimGroup:
    """Produce, lose the leader in the middle, go on, bring it back, read everything from each leader."""
    group = SimGroup(world, segment_size=BIG_SEGMENT)
    group.led()
    group.begin(partial(group.produce, count=60))
    world.run_until(lambda: len(group.sent) >= 30, 10)
    first = group.led()
    if power:
        world.power_cut(first)
    else:
        world.kill(first)
    world.run_until(group.idle, 20)
    group.start(first)
    world.run_until(lambda: first in group.brokers and caught_up(group), 10)
    world.run_for(0.5)  # snapshots
    second = group.leader
    assert second is not None and second != first
    world.kill(second)
    world.run_until(lambda: group.leader not in (None, second), 10)
    group.check(group.led())
    return group


def caught_up(group: SimGroup) -> bool:
    return len({broker.store.applied_index for broker in group.brokers.values()}) == 1


@pytest.mark.parametrize(("seed", "power"), [(1, False), (2, True), (3, True)])
def test_nothing_acknowledged_is_lost_or_moved(seed: int, power: bool) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = scenario(world, power)
        assert group.low == 0 and len(group.sent) == 60


def test_one_seed_is_one_course_of_events() -> None:
    traces = []
    for _ in range(2):
        trace = Trace()
        with World(11, settings=SETTINGS, trace=trace) as world:
            scenario(world, power=True)
        traces.append(list(trace.lines))
    assert traces[0] == traces[1] and len(traces[0]) > 1000


def test_raw_appends_are_refused_by_leader_and_followers() -> None:
    """`dledger append` with the peers of brokers put entries into their log that nobody reads."""
    refusals: list[RequestFailed] = []

    async def append(env: Env) -> None:
        for name in NAMES:
            async with DLedgerClient(env, {name: f"{name}:40911"}) as client:
                try:
                    await client.append(b"no message")
                except RequestFailed as error:
                    refusals.append(error)

    with World(5, settings=SETTINGS) as world:
        group = SimGroup(world, segment_size=BIG_SEGMENT)
        log = group.brokers[group.led()].node.log
        world.run_for(1)
        before = log.last_index
        group.do(append)
        assert log.last_index == before
        assert [error.code for error in refusals] == [Code.UNEXPECTED_ARGUMENT] * 3
        assert all("nothing was stored" in str(error) and "listenPort" in str(error) for error in refusals)
