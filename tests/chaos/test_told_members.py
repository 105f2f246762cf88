"""Statements of nodes about special members: removed, not admitted, moved, or running twice."""

from __future__ import annotations

from member_group import MemberGroup
from test_leaderless import reasons, written

from dledger.chaos.machine import World
from dledger.election.identity import Hello
from dledger.node.trust import REMOVED
from dledger.peers.doubles import META_KEY, TOLD_FOR_S, Doubles, text

MOVED_TO = 50911


def statements(group: MemberGroup, name: str) -> list[str]:
    told = group.nodes[name].status()["statements"]
    assert isinstance(told, list)
    return told


def test_a_removed_member_that_is_started_again_knows_why_it_stands_still() -> None:
    with World(3) as world:
        group = written(world)
        leader = group.await_leader()
        gone = next(name for name in group.founders if name != leader)
        group.command(lambda client: client.remove_member(gone))
        world.run_until(lambda: REMOVED in reasons(group, gone), 5)
        world.run_for(8)
        assert reasons(group, gone) == [REMOVED]
        world.kill(gone)
        world.run_for(1)
        group.start(gone)
        world.run_for(8)
        assert reasons(group, gone) == [REMOVED] and group.nodes[gone].removed
        assert not group.nodes[leader].removed


def test_a_node_outside_of_the_group_and_the_leader_name_the_command_that_admits_it() -> None:
    with World(4) as world:
        group = MemberGroup(world, ("n0",))
        group.await_leader()
        group.append_some(3)
        world.run_for(1)
        assert statements(group, "n0") == []
        group.seeds["n1"] = group.address("n1")  # both files get the second node by hand
        world.kill("n0")
        group._static["n0"] = dict(group.seeds)
        for name in ("n0", "n1"):
            group.start(name)
        group.await_leader()
        world.run_for(10)
        (outside,) = reasons(group, "n1")
        assert "not a member of the group" in outside and "`dledger member add n1 n1:40911`" in outside
        (known,) = statements(group, "n0")
        assert known.startswith("dLegerPeers names n1, but the group's members are n0")
        assert "`dledger member add n1 n1:40911`" in known
        assert reasons(group, "n0") == []


def test_a_member_at_another_address_and_its_leader_say_so() -> None:
    with World(5) as world:
        group = written(world)
        group.command(lambda client: client.prefer([]))  # the configuration records the addresses
        world.run_for(1)
        leader = group.await_leader()
        moved = next(name for name in group.founders if name != leader)
        world.kill(moved)
        group._static[moved] = {**group.seeds, moved: f"{moved}:{MOVED_TO}"}  # in its own file alone
        group.start(moved)
        world.run_for(10)
        (reason,) = reasons(group, moved)
        assert "none of them reaches it at" in reason and str(MOVED_TO) in reason
        (told,) = statements(group, leader)
        assert told.startswith(f"{moved} reaches this node, but is not reached at {group.address(moved)}")
        assert "`dledger member add`" in told


def hello(process: str | None, node: str = "n1") -> Hello:
    meta = {} if process is None else {META_KEY: process}
    return Hello("g", node, "i1", "c", 1, 2, 1 << 24, True, meta=meta)


def test_two_processes_with_one_store_are_told_apart_from_restarts() -> None:
    doubles = Doubles()
    for at, process in enumerate(["a", "a", "b", "b", "c", None, "d"]):
        assert not doubles.hear(hello(process), at), "each ended before the next began"
    assert doubles.told(9) == []
    assert doubles.hear(hello("c"), 10) and doubles.told(10) == ["n1"]
    assert not doubles.hear(hello("d"), 11), "it is news once"
    assert not doubles.hear(hello("x", "n2"), 12)
    assert doubles.told(12 + TOLD_FOR_S) == []
    assert doubles.hear(hello("c"), 100 + TOLD_FOR_S), "and again when it was over"


def test_a_copied_store_that_runs_beside_its_original_is_named() -> None:
    with World(6) as world:
        group = written(world)
        leader = group.await_leader()
        twice = next(name for name in group.founders if name != leader)
        peers = group.nodes[leader].peers
        known = peers.hellos[twice]
        for process in ("copy", known.meta[META_KEY]):
            peers._doubles.hear(hello(process, twice), world.now)
        assert text(twice) in statements(group, leader)
