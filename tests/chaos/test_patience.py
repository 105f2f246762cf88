"""What a node notices about its machine and reports: it lacks cores, or its clock differs from those of its
peers."""

from __future__ import annotations

from node_group import NAMES, SETTINGS, Group

from dledger.chaos.machine import World


def test_a_node_is_patient_while_it_lacks_cores_and_a_while_longer() -> None:
    with World(3, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        term = group.nodes[leader].elector.term
        follower = next(name for name in NAMES if name != leader)
        node = group.nodes[follower]
        node.metrics.core_wait_s = 0.3
        world.run_for(1.0)
        patience_ms = node.status()["election_patience_ms"]
        assert isinstance(patience_ms, int) and 800 < patience_ms < 900
        assert node.elector.deadline - world.nodes[follower].process.loop.time() > 1.0  # type: ignore[union-attr]
        world.run_for(50.0)
        assert node.status()["election_patience_ms"] == 0
        assert group.nodes[leader].elector.term == term


def test_a_clock_that_was_ahead_from_the_start_is_told_from_those_of_the_peers() -> None:
    with World(4, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        follower = next(name for name in NAMES if name != leader)
        world.kill(follower)
        world.clock_jump(follower, 3_600_000)
        group.start(follower)
        world.run_for(1.0)
        off_ms = group.nodes[follower].status()["clock_off_ms"]
        assert isinstance(off_ms, int) and abs(off_ms - 3_600_000) < 1000
        assert all(group.nodes[name].status()["clock_off_ms"] == 0 for name in NAMES if name != follower)
        world.clock_jump(follower, -3_600_000)
        world.run_for(1.0)
        assert group.nodes[follower].status()["clock_off_ms"] == 0
