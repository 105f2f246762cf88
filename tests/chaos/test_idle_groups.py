"""Faults from which an idle group must recover by itself: there is no append that would repair them on the
way."""

from __future__ import annotations

import node_group
import pytest
from disk_group import DiskGroup
from member_group import MemberGroup

from dledger.chaos.machine import World
from dledger.peers.log_client import DLedgerClient


def test_a_store_that_lacks_nothing_after_a_failed_fsync_votes_again() -> None:
    """All committed entries were known before the leader agreed, so no commit ends the refill."""
    with World(3, settings=node_group.SETTINGS) as world:
        group = DiskGroup(world)
        group.fill(20)
        leader = group.await_leader()
        lost, _ = group.followers()
        world.run_for(0.2)
        world.nodes[lost].disk.fail("fsync", 1, f"/store/dledger-{lost}/index")
        group.append(leader, [b"last"])
        world.run_until(lambda: not group.alive(lost), 5)
        _elects_without(world, group, leader, lost)


@pytest.mark.parametrize("mode", ["none", "all"])
@pytest.mark.parametrize("idle_s", [0.5, 30.0])
def test_a_store_that_lost_power_votes_again_when_it_was_refilled(mode: str, idle_s: float) -> None:
    """ASYNC_FLUSH: after some time the kernel has written the data without an fsync, and nothing is
    missing."""
    with World(3, settings=node_group.SETTINGS) as world:
        group = DiskGroup(world, sync_flush=False)
        group.fill(20)
        world.run_for(idle_s)
        leader = group.await_leader()
        lost, _ = group.followers()
        world.power_cut(lost, mode=mode)
        world.run_for(0.2)
        _elects_without(world, group, leader, lost)


def _elects_without(world: World, group: DiskGroup, leader: str, back: str) -> None:
    """One node comes back and is refilled, then the leader is killed: both other nodes are needed."""
    term = group.nodes[leader].term
    group.start(back)
    world.run_for(5)
    assert group.leader() == leader and group.nodes[leader].term == term
    assert group.nodes[back].elector.may_vote and not group.nodes[back].status()["reasons"]
    world.kill(leader)
    world.run_until(lambda: group.leader() is not None, 5)


@pytest.mark.parametrize("slow", [30, 100, 1000])
def test_who_is_added_again_before_it_knew_of_its_removal_is_promoted(slow: int) -> None:
    """While the node leaves it gets only committed entries. After it is added again, the withheld entries
    must follow."""
    with World(1) as world:
        group = MemberGroup(world, ("n0", "n1"))
        leader = group.await_leader()
        world.run_for(2.0)
        gone = next(name for name in group.founders if name != leader)
        world.nodes[gone].disk.slow(slow)

        async def again(client: DLedgerClient) -> int:
            await client.remove_member(gone)
            return await client.add_member(gone, group.address(gone))

        group.command(again)
        node = group.nodes[leader]
        world.run_until(lambda: gone in node.members.voters and not node.membership.leaving, 20)
        world.run_until(lambda: node.commit_index == node.log.last_index, 5)
