"""A deposed leader has an uncommitted configuration at a higher index than the one that was committed
elsewhere. The index of a configuration alone does not say which members are valid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from member_group import MemberGroup

from dledger.chaos.machine import World
from dledger.formats.entry import Kind
from dledger.node.node import Node


def _deposed(world: World) -> tuple[MemberGroup, str, Node]:
    """Isolate the old leader with 200 entries and a configuration that no other node gets. Then n3 joins the
    others and leads them."""
    group = MemberGroup(world)
    old = group.await_leader()
    world.run_for(0.5)
    world.isolate(old)
    node = group.nodes[old]

    def seal() -> None:
        assert node.appender is not None
        for _ in range(200):
            node.appender.add_system(b"nobody gets this", Kind.RAW)
        node.reconfiguration.prefer(())

    _do(world, old, seal)
    world.run_for(2.0)
    assert node.members.pending(node.commit_index)
    group.grow("n3")
    group.command(lambda client: client.transfer("n3"))
    world.run_for(0.5)
    assert group.leader() == "n3"
    world.heal()
    return group, old, node


def _do(world: World, name: str, work: Callable[[], object]) -> None:
    process = world.nodes[name].process
    assert process is not None
    process.loop.call_soon(work)


@pytest.mark.parametrize("seed", range(3))
def test_it_lets_in_the_new_member_that_leads(seed: int) -> None:
    with World(seed) as world:
        group, _, node = _deposed(world)
        world.run_until(lambda: node.leader_id == "n3", 10.0)
        world.run_until(lambda: node.commit_index == group.nodes["n3"].commit_index, 5.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_majority_that_is_there_elects_somebody(seed: int) -> None:
    """Only n3, which the deposed leader does not know, can lead: it has one entry more than the third
    node."""
    with World(seed) as world:
        group, old, _ = _deposed(world)
        world.run_for(2.0)
        first, second = (name for name in group.founders if name != old)
        world.kill(second)
        appender = group.nodes["n3"].appender
        assert appender is not None
        _do(world, "n3", lambda: appender.add_system(b"on n3 and one more", Kind.RAW))
        world.run_for(0.05)
        world.kill(first)
        world.run_for(1.0)
        group.start(second)
        world.run_until(lambda: group.leader() is not None, 20.0)
