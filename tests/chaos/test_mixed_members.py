"""Members change while some nodes run older programs: no entry is written that a voter cannot read.

The rules are in docs/reference/protocol.md.

The configuration of the founders is in no entry. The first recorded configuration has a version that programs
of protocol 1 cannot read, so it waits for every voter. Each later one waits for the voter that it adds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from member_group import MemberGroup

from dledger.chaos.machine import World
from dledger.messages import Code
from dledger.peers.log_client import DLedgerClient, RequestFailed

TOO_OLD = (
    "{} has not connected, or its version cannot read the new configuration: start or upgrade it, "
    "or remove it first (with --force if several are gone)"
)
FIVE = ("n0", "n1", "n2", "n3", "n4")


def assert_refused(group: MemberGroup, work: Callable[[DLedgerClient], Awaitable[Any]], old: str) -> None:
    """Check that a command is refused because of this node, and that nothing was written."""
    leader = group.nodes[group.await_leader()]
    end = leader.log.last_index
    with pytest.raises(RequestFailed) as refused:
        group.command(work)
    assert refused.value.code is Code.CONFIG_REFUSED and str(refused.value) == TOO_OLD.format(old)
    assert leader.log.last_index == end


def changes(preferred: str) -> list[Callable[[DLedgerClient], Awaitable[Any]]]:
    return [
        lambda client: client.add_member("n3", "n3:40911"),
        lambda client: client.prefer([preferred]),
    ]


@pytest.mark.parametrize("how", ["upgraded", "removed"])
@pytest.mark.parametrize("seed", range(2))
def test_the_first_recorded_configuration_waits_for_a_voter_with_an_old_program(seed: int, how: str) -> None:
    with World(seed) as world:
        group = MemberGroup(world, protocol_min=1)
        leader = group.await_leader()
        old, other = (name for name in group.founders if name != leader)
        world.kill(old)
        group.start(old, protocol_max=1)
        world.run_for(1.0)
        assert group.nodes[leader].membership.group_version() == 1
        for work in changes(other):
            assert_refused(group, work, old)
        assert_refused(group, lambda client: client.remove_member(other), old)
        assert [node.members.index for node in group.nodes.values()] == [-1] * 3
        assert group.leader() == leader and group.command(lambda client: client.append(b"goes on")) > 0
        if how == "upgraded":
            world.kill(old)
            group.start(old)
            world.run_for(1.0)
        else:
            group.command(lambda client: client.remove_member(old))
            group.await_voters(*sorted((leader, other)))
        for work in changes(other):
            assert group.insist(work) > 0
        group.settle([leader, other])


def test_the_first_recorded_configuration_waits_for_a_voter_that_was_never_heard() -> None:
    with World(3) as world:
        group = MemberGroup(world, protocol_min=1)
        group.await_leader()
        world.run_for(0.5)
        for name in group.founders:
            world.kill(name)
        for name in ("n0", "n1"):
            group.start(name)
        world.run_for(0.1)
        group.await_leader()
        for work in changes("n0"):
            assert_refused(group, work, "n2")
        group.start("n2")
        world.run_for(1.0)
        for work in changes("n0"):
            assert group.insist(work) > 0
        # From now on it is recorded: n2 has it, and need not be there for the next one.
        world.kill("n2")
        for name in ("n0", "n1"):
            world.kill(name)
            group.start(name)
        world.run_for(0.1)
        group.await_leader()
        assert group.insist(lambda client: client.prefer([])) > 0
        group.settle(group.founders)


def two_lost(world: World, protocol_min: int) -> MemberGroup:
    """Let five founders lose power, two of them for good: no running node has been connected to these two."""
    group = MemberGroup(world, FIVE, protocol_min=protocol_min)
    group.await_leader()
    world.run_for(1.0)
    for name in FIVE:
        world.power_cut(name)
    for name in FIVE[:3]:
        group.start(name)
    group.await_leader()
    world.run_for(1.0)
    return group


def test_two_of_five_that_nobody_has_seen_can_be_replaced() -> None:
    """Regression: each removal was refused because of the other lost node, although programs of protocol 1
    are not allowed here."""
    with World(5) as world:
        group = two_lost(world, protocol_min=2)
        for lost, new in (("n3", "n5"), ("n4", "n6")):
            assert group.insist(lambda client, lost=lost: client.remove_member(lost)) > 0
            group.grow(new)
        group.await_voters("n0", "n1", "n2", "n5", "n6")
        group.settle(("n0", "n1", "n2", "n5", "n6"))


def test_where_old_programs_are_let_in_two_lost_voters_are_removed_by_force() -> None:
    with World(6) as world:
        group = two_lost(world, protocol_min=1)
        assert_refused(group, lambda client: client.remove_member("n3"), "n4")
        assert_refused(group, lambda client: client.remove_member("n4"), "n3")
        assert group.command(lambda client: client.remove_member("n3", force=True)) > 0
        assert group.insist(lambda client: client.remove_member("n4")) > 0, "what is recorded needs no force"
        group.await_voters("n0", "n1", "n2")
        group.settle(("n0", "n1", "n2"))


def test_a_learner_with_an_old_program_is_not_promoted() -> None:
    with World(4) as world:
        group = MemberGroup(world, protocol_min=1)
        leader = group.nodes[group.await_leader()]
        group.start("n3", protocol_max=1)
        group.insist(lambda client: client.add_member("n3", "n3:40911"))
        world.run_for(5.0)
        peers = leader.status()["peers"]
        assert isinstance(peers, dict) and peers["n3"]["lag_entries"] == 0
        assert group.voters() == group.founders, "it has caught up, and waits"
        assert sum(TOO_OLD.format("n3") in line for line in world.recent_log) == 1, "said, and once"
        assert_refused(group, lambda client: client.promote_member("n3"), "n3")
        world.kill("n3")
        group.start("n3")
        group.await_voters("n0", "n1", "n2", "n3")
        group.settle(("n0", "n1", "n2", "n3"))
