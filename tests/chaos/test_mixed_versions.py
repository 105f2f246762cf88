"""Programs of protocol versions 1 and 2 in one group.

They elect, replicate and fail over to each other, and nothing is written that one of them does not know.
"""

from __future__ import annotations

import node_group
import pytest
from voting_group import VotingGroup

from dledger.chaos.machine import World
from dledger.formats.entry import COVERED, Kind, unpack_header
from dledger.protocol import PROTOCOL_MAX
from dledger.versions import KIND_SINCE

UNKNOWN_KIND = 100


def mixed(world: World, old: tuple[str, ...], size: int = 3) -> VotingGroup:
    group = VotingGroup(world, size, protocol_min=1)
    for name in old:
        group.own[name] = {"protocol_max": 1}
    group.start_all()
    return group


def upgrade(group: VotingGroup, name: str) -> None:
    group.own[name] = {}
    group.world.kill(name)
    group.start(name)
    group.run_for(1.0)


@pytest.mark.parametrize("old", [("n0",), ("n1", "n2"), ("n0", "n1", "n2")])
@pytest.mark.sample(1)
def test_old_and_new_nodes_fail_over_to_each_other_and_agree(old: tuple[str, ...]) -> None:
    leaders: dict[bool, int] = {True: 0, False: 0}
    for seed in range(8):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = mixed(world, old)
            for number in range(4):
                leader = group.await_leader()
                leaders[leader in old] += 1
                group.commit(leader, b"entry %d" % number)
                assert group.nodes[leader].membership.group_version() == 1
                world.kill(leader)
                group.run_for(0.3)
                group.start(leader)
                group.run_for(0.3)
            group.finish()
    assert leaders[True] > 0 and (len(old) == 3 or leaders[False] > 0)


def test_a_staged_upgrade_raises_the_group_when_the_last_voter_is_new() -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = mixed(world, ("n0", "n1", "n2"))
        for name in group.names:
            leader = group.await_leader()
            assert group.nodes[leader].membership.group_version() == 1
            group.commit(leader, b"before " + name.encode())
            upgrade(group, name)
        leader = group.await_leader()
        group.run_for(0.5)
        assert [group.nodes[name].membership.group_version() for name in group.names] == [PROTOCOL_MAX] * 3
        assert group.nodes[leader].status()["group_version"] == PROTOCOL_MAX
        gone = next(name for name in group.names if name != leader)
        world.kill(gone)
        group.run_for(0.5)
        assert group.nodes[leader].membership.group_version() == PROTOCOL_MAX, (
            "one that is away counts as it was last heard"
        )
        for name in group.names:
            world.kill(name)
        rest = [name for name in group.names if name != gone]
        for name in rest:
            group.start(name)
        leader = group.await_leader()
        assert group.nodes[leader].membership.group_version() == 1, (
            "one that was never heard counts as the oldest"
        )
        group.start(gone)
        group.run_for(1.0)
        assert group.nodes[leader].membership.group_version() == PROTOCOL_MAX
        group.finish()


def test_read_points_need_a_quorum_that_knows_them() -> None:
    for seed in range(6):
        with World(seed, settings=node_group.SETTINGS) as world:
            group = mixed(world, ("n0",))
            leader = group.await_leader()
            group.run_for(0.3)
            reads = {name: group.read(name, 0.5) for name in group.names}
            world.run_for(1.0)
            assert all(read.over for read in reads.values())
            if leader == "n0":
                assert [read.index for read in reads.values()] == [None] * 3
                why = group.nodes["n1"].reads.why()
                assert why == "the leader n0 speaks an older protocol"
            else:
                assert reads.pop("n0").index is None
                assert None not in [read.index for read in reads.values()]


@pytest.mark.parametrize("old", [(), ("n1",)])
def test_entries_of_an_unknown_kind_are_stored_and_handed_to_the_host_alike(
    old: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(5, settings=node_group.SETTINGS) as world:
        group = mixed(world, old)
        leader = group.await_leader()
        node = group.nodes[leader]
        assert not node.membership.may_write(UNKNOWN_KIND) and node.membership.may_write(Kind.RAW)
        monkeypatch.setattr("dledger.versions.KIND_SINCE", KIND_SINCE | {UNKNOWN_KIND: 1})
        group.append(leader, b"from the future", UNKNOWN_KIND)
        group.commit(leader, b"known")
        world.kill(leader)
        group.await_leader()
        group.finish()
        for name in group.names:
            assert (UNKNOWN_KIND, b"from the future") in kinds(group, name)


def test_a_new_kind_of_entry_waits_for_all_voters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.versions.KIND_SINCE", KIND_SINCE | {UNKNOWN_KIND: 2})
    with World(7, settings=node_group.SETTINGS) as world:
        group = mixed(world, ("n0",))
        leader = group.await_leader()
        group.run_for(0.3)
        node = group.nodes[leader]
        before, appender = node.log.last_index, node.appender
        assert appender is not None
        with pytest.raises(ValueError, match="entries of kind 100 cannot be written yet, as a voter"):
            appender.add((b"too early",), 9, UNKNOWN_KIND)
        group.run_for(0.3)
        assert node.log.last_index == before
        upgrade(group, "n0")
        leader = group.await_leader()
        group.run_for(0.3)
        assert group.append(leader, b"now", UNKNOWN_KIND) is not None
        group.finish()
        assert all((UNKNOWN_KIND, b"now") in kinds(group, name) for name in group.names)


def kinds(group: VotingGroup, name: str) -> list[tuple[int, bytes]]:
    return [(kind, body) for _, _, kind, body in group.hosts[name].entries]


@pytest.mark.parametrize("old", [1, 2])
def test_crcs_cover_the_channel_when_all_voters_know_it_and_from_then_on(old: int) -> None:
    with World(4, settings=node_group.SETTINGS) as world:
        group = VotingGroup(world, protocol_min=1)
        group.own["n2"] = {"protocol_max": old}
        group.start_all()
        leader = group.await_leader()
        group.run_for(0.5)
        group.commit(leader, b"n2 could not read it")
        assert not any(node.log.covered for node in group.nodes.values())
        upgrade(group, "n2")
        leader = group.await_leader()
        group.run_for(0.5)
        group.commit(leader, b"all can read it")
        group.run_for(0.5)
        assert all(node.log.covered for node in group.nodes.values())
        for name in group.names:
            world.kill(name)
        for name in group.names[:2]:
            group.start(name)
        leader = group.await_leader()
        assert group.nodes[leader].membership.group_version() == 1, "the third was never heard in this life"
        group.commit(leader, b"nobody can do without any more")
        group.run_for(0.5)
        pos, size = group.nodes[leader].log.locate(group.nodes[leader].log.last_index)
        view = group.nodes[leader].log.view(pos, size)
        assert view is not None and unpack_header(bytes(view)).channel & COVERED
        group.start(group.names[2])
        group.run_for(1.0)
        group.finish()
