"""Whole brokers on full disks: the derived files wait for room, and nothing ends."""

from __future__ import annotations

import pytest

from dledger.chaos.machine import World
from tests.broker.sim_group import NAMES
from tests.broker.test_sim_install import Group


def fill(world: World, name: str) -> None:
    disk = world.nodes[name].disk
    disk.room(disk.used())


@pytest.mark.parametrize("who", ["the leader", "a follower", "all"])
def test_brokers_with_full_disks_go_on(who: str) -> None:
    """Known and accepted until a review asked for it: the broker ended, with exit code 70."""
    with World(3) as world:
        group = Group(world)
        leader = group.led()
        group.do(lambda env: group.produce(env, 20, 1000))
        follower = next(name for name in NAMES if name != leader)
        full = {"the leader": [leader], "a follower": [follower], "all": list(NAMES)}[who]
        for name in full:
            fill(world, name)
        group.begin(lambda env: group.produce(env, 300, 2000))
        world.run_for(20)
        assert group.alive() == list(NAMES)
        assert group.idle() == (who != "all"), "the others took the messages"
        for name in full:
            world.nodes[name].disk.room(None)
        world.run_until(group.idle, 60)
        world.run_for(3)
        for name in NAMES:
            store = group.brokers[name].store
            assert (
                store.snapshot_index == store.applied_index == group.brokers[group.led()].store.applied_index
            )
        for name in NAMES:  # what the files hold is what was sent
            world.kill(name)
        for name in NAMES:
            group.start(name)
        leader = group.led()
        group.do(lambda env: group.consume(env, leader))
        assert {offset: group.read[offset] for offset in group.sent if offset >= group.low} == {
            offset: body for offset, body in group.sent.items() if offset >= group.low
        }
        assert len(group.sent) == 320


def test_a_broker_with_a_full_disk_stops_in_good_order() -> None:
    with World(4) as world:
        group = Group(world)
        leader = group.led()
        group.do(lambda env: group.produce(env, 20, 1000))
        follower = next(name for name in NAMES if name != leader)
        fill(world, follower)
        group.do(lambda env: group.produce(env, 5, 1000))
        group.stop(follower)
        world.nodes[follower].disk.room(None)
        group.start(follower)
        world.run_for(2)
        assert group.brokers[follower].store.applied_index == group.brokers[leader].store.applied_index
