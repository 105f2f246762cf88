"""A node without a leader says why in `reasons`: which node refuses, is not reached, or has lost its
store."""

from __future__ import annotations

from disk_group import DiskGroup
from member_group import MemberGroup

from dledger.chaos.machine import World
from dledger.commands.recover import force_single
from dledger.host import Role
from dledger.runtime.env import Env

ADMIT = (
    "no leader: the group has not recorded this store for any voter; this node waits for a "
    "leader that admits it"
)


def reasons(group: MemberGroup | DiskGroup, name: str) -> list[str]:
    told = group.nodes[name].status()["reasons"]
    assert isinstance(told, list)
    return told


def written(world: World) -> MemberGroup:
    """A group of three nodes with entries in their logs."""
    group = MemberGroup(world)
    group.await_leader()
    group.append_some(3)
    world.run_for(1)
    assert not any(reasons(group, name) for name in group.founders)
    return group


def test_two_of_three_that_are_wiped_and_the_third_say_that_no_leader_comes() -> None:
    with World(1) as world:
        group = written(world)
        old = {name: group.wipe(name) for name in ("n1", "n2")}
        for name in old:
            group.start(name)
        world.run_for(2)
        assert not any(reasons(group, name) for name in group.founders), "that may be over in a moment"
        world.run_for(6)
        for name in group.founders:
            (text,) = [reason for reason in reasons(group, name) if reason != ADMIT]
            assert "the stores of n1, n2 are empty or restored" in text and "Needed: 1 of" in text
            assert "recover --force-single" in text and "docs/howto/lost-majority.md" in text
            assert (ADMIT in reasons(group, name)) is (name in old)
        world.power_cut("n1")
        world.nodes["n1"].disk = old["n1"]
        group.start("n1")
        group.await_leader()
        world.run_for(3)
        assert not any(reasons(group, name) for name in group.founders)


def test_one_blank_store_waits_for_its_leader_and_says_so() -> None:
    with World(2) as world:
        group = written(world)
        world.kill("n0")
        world.kill("n1")
        group.wipe("n2")
        group.start("n2")
        group.start("n0")
        world.run_for(8)
        assert ADMIT in reasons(group, "n2") and ADMIT not in reasons(group, "n0")
        for name in ("n0", "n2"):
            assert "no leader: n1 is not reached at n1:40911, and has not connected to this node" in reasons(
                group, name
            )
            assert not any("recover" in reason for reason in reasons(group, name)), "n1 may come back"
        group.start("n1")
        group.await_leader()
        world.run_for(3)
        assert not any(reasons(group, name) for name in group.founders)


def test_two_stores_that_must_be_refilled_are_named() -> None:
    with World(3) as world:
        group = DiskGroup(world)
        group.fill(20)
        failed = group.followers()
        for name in failed:
            group.disk(name).fail("fsync")
        group.append(group.await_leader(), [b"x" * 100])
        world.run_until(lambda: not any(group.alive(name) for name in failed), 5)
        world.kill(group.await_leader())
        for name in ("n0", "n1", "n2"):
            group.disk(name).mend()
            group.start(name)
        world.run_for(8)
        for name in ("n0", "n1", "n2"):
            text = reasons(group, name)[-1]
            assert f"{', '.join(failed)} must be refilled by a leader" in text and "Needed: 1 of" in text


def test_a_node_with_another_flush_mode_says_who_refuses_it() -> None:
    with World(4) as world:
        group = written(world)
        for name in group.founders:
            world.kill(name)
        group.start("n0")
        for name in ("n1", "n2"):
            group.start(name, sync_flush=False)
        world.run_for(3)
        assert group.leader() in ("n1", "n2") and group.nodes["n0"].role is Role.CANDIDATE
        assert reasons(group, "n0") == [
            f"no leader: {peer} at {peer}:40911 refuses this node: "
            f"flushDiskType SYNC_FLUSH is False on {peer} and True on n0: it must be the same"
            for peer in ("n1", "n2")
        ]
        world.kill("n1")
        world.run_for(2)
        assert (
            reasons(group, "n0")[0]
            == "no leader: n1 is not reached at n1:40911, and has not connected to this node"
        )
        world.power_cut("n2")  # a machine that is off does not even refuse
        world.run_for(20)
        assert (
            reasons(group, "n0")[1]
            == "no leader: n2 is not reached at n2:40911, and has not connected to this node"
        )
        world.kill("n0")
        for name in group.founders:
            group.start(name, sync_flush=False)
        group.await_leader()
        world.run_for(3)
        assert not any(reasons(group, name) for name in group.founders)


def test_a_node_that_was_removed_while_it_was_down_says_so() -> None:
    with World(5) as world:
        group = written(world)
        gone = next(name for name in group.founders if name != group.leader())
        world.kill(gone)
        world.run_for(1)
        group.command(lambda client: client.remove_member(gone))
        group.start(gone)
        world.run_for(3)
        told = reasons(group, gone)
        assert len(told) == 2 and all(f"refuses this node: {gone} is not a member" in text for text in told)
        assert all("it was removed, or must be added" in text for text in told)


def test_a_blank_node_with_another_segment_size_says_what_the_group_answers() -> None:
    """Regression: the node said that the peers are not reached."""
    with World(6) as world:
        group = written(world)
        group.wipe("n2")
        group.start("n2", segment_size=512 * 1024)
        world.run_for(3)
        assert reasons(group, "n2") == [
            f"no group yet: {peer} at {peer}:40911 refuses this node: "
            f"mapedFileSizeCommitLog is 262144 on {peer} and 524288 on n2: it must be the same"
            for peer in ("n0", "n1")
        ]


def test_an_old_member_beside_a_recovered_one_says_that_it_is_of_another_cluster() -> None:
    with World(7) as world:
        group = written(world)
        for name in group.founders:
            world.kill(name)

        async def recover(env: Env) -> None:
            await force_single(env, "/store", yes=True)

        world.restart("n0", recover)
        world.run_until(lambda: world.nodes["n0"].process is None, 10)
        for name in ("n0", "n1"):
            group.start(name)
        world.run_for(3)
        assert group.leader() == "n0" and not reasons(group, "n0")
        told = reasons(group, "n1")
        assert "no leader: n0 at n0:40911 refuses this node: n1 belongs to cluster" in told[0]
        assert told[1:] == ["no leader: n2 is not reached at n2:40911, and has not connected to this node"]


def test_another_node_at_a_peers_address_is_named() -> None:
    with World(8) as world:
        group = MemberGroup(world, founders=())
        peers = {name: f"{name}:40911" for name in ("n0", "n1", "n2")}
        group._static = {"n0": peers | {"n1": "n2:40911"}, "n2": peers}
        for name in ("n0", "n2"):
            group.start(name)
        world.run_for(3)
        assert reasons(group, "n0") == [
            "no group yet: this node refuses n1 at n2:40911: "
            "n1 was dialled, but n2 answers: check dLegerPeers"
        ]
        assert reasons(group, "n2") == [
            "no group yet: n1 is not reached at n1:40911, and has not connected to this node"
        ]
