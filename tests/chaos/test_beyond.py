"""Beyond the faults that must be survived: so much is damaged that no intact copies are left.

Lost data stays lost. The tests check that no node hides the loss. A node that answers gives what was
acknowledged at an index, or refuses. Nothing new gets the index of something acknowledged. The group waits
where it cannot go on, and says for which entries. When the damage is undone (a backup, the old disk), it goes
on.
"""

from __future__ import annotations

import pytest
from beyond_group import BeyondGroup
from disk_group import NAMES
from node_group import SETTINGS

from dledger.chaos.machine import World
from dledger.host import Role

SEEDS = range(3)
LOG = ("/data/", "/index/")
STORE = ("/",)


def three_entries(group: BeyondGroup, seed: int) -> list[int]:
    """Indexes of three acknowledged entries, two of them neighbours. With one seed they are the last ones."""
    indexes = sorted(group.acknowledged)
    return [indexes[10 + 7 * seed], indexes[11 + 7 * seed], indexes[-1 - 4 * seed]]


def assert_said(group: BeyondGroup, name: str, gone: list[int]) -> None:
    """Check that the node waits for these entries, and says so everywhere: in its status and in its log."""
    ranges = [(gone[0], gone[1]), (gone[2], gone[2])]
    text = ", ".join(f"{first}..{last}" for first, last in ranges)
    absent = [
        f"; no leader: {n} is not reached at {n}:40911, and has not connected to this node"
        for n in NAMES
        if not group.alive(n)
    ]
    assert group.says(name) == "".join(
        [f"entries {text} are corrupt and wait for repair from a peer", *absent]
    )
    status = group.nodes[name].status()
    assert status["faulty"] == [list(one) for one in ranges] and status["faulty_entries"] == 3
    log = "\n".join(group.world.recent_log)
    for first, last in ranges:
        assert f"entries are corrupt: they will be repaired from peers first={first} last={last}" in log


# Rot of the same entries


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["body", "header", "chain", "header and unit"])
def test_rot_of_all_copies_is_not_served_and_not_replaced(what: str, seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(60, "entry")
        # Of the very last entry, header and unit are all that says that it was there: the next test.
        gone = three_entries(group, seed + 1 if "unit" in what else seed)
        backup = group.device(NAMES[seed], *LOG)
        group.all_down(("", "prefix", "torn")[seed])
        group.rot(NAMES, gone, what)
        group.up()
        for name in NAMES:
            assert_said(group, name, gone)
            assert group.applied(name) < gone[0]
            assert group.nodes[name].role is Role.FOLLOWER, "who cannot send its log does not stand"
        assert not group.assert_waits() & set(gone)
        world.kill(NAMES[seed])
        group.put_device(NAMES[seed], backup, *LOG)
        group.assert_whole()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_last_entry_of_which_nothing_is_left_anywhere_elects_nobody(seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(60, "entry")
        last = max(group.acknowledged)
        group.all_down()
        group.rot(NAMES, [last], "header and unit")
        group.up()
        for name in NAMES:
            assert f"at index {last}" in group.says(name)
            assert not group.nodes[name].elector.may_vote
        assert last not in group.assert_waits()


@pytest.mark.parametrize("seed", SEEDS)
def test_rot_of_two_copies_waits_for_the_third(seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(60, "entry")
        gone = three_entries(group, seed)
        group.all_down()
        bad = [name for name in NAMES if name != NAMES[seed]]
        group.rot(bad, gone)
        group.up(bad)
        for name in bad:
            assert_said(group, name, gone)
        assert not group.assert_waits() & set(gone)
        group.assert_whole()


@pytest.mark.parametrize("seed", SEEDS)
def test_rot_of_all_copies_while_they_serve(seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(60, "entry")
        gone = three_entries(group, seed)
        group.rot(NAMES, gone)
        assert group.judge() == (set(group.acknowledged) - set(gone), 3)
        world.run_for(3)  # the nodes have asked each other
        assert not group.takes(), "what is behind the rot is not acknowledged as durable"
        assert group.judge()[0] == set(group.acknowledged) - set(gone)
        assert any(f"entries {gone[0]}.." in group.says(name) for name in NAMES)
        group.all_down()
        group.up()
        assert not group.assert_waits() & set(gone)
        world.kill(NAMES[seed])
        group.rot([NAMES[seed]], gone)
        group.assert_whole()


# Disks that said fsynced and had not


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_that_all_disks_lost_are_known_to_be_missing_by_their_index(seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(40, "kept")
        before = {name: group.device(name, "/data/") for name in NAMES}
        kept = set(group.acknowledged)
        group.write(30 * (seed + 1), "lost")  # with the third seed also in a further segment
        whole = group.device(NAMES[seed], "/data/")
        group.all_down(("", "all", "all")[seed])
        for name in NAMES:
            group.put_device(name, before[name], "/data/")
        group.up()
        first, last = max(kept) + 1, max(group.acknowledged)
        for name in NAMES:
            assert group.says(name) == f"entries {first}..{last} are corrupt and wait for repair from a peer"
        assert group.assert_waits() <= kept
        world.kill(NAMES[seed])
        group.put_device(NAMES[seed], whole, "/data/")
        group.assert_whole()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [2, 3])
def test_a_log_that_ends_before_what_its_checkpoint_says_elects_nobody(count: int, seed: int) -> None:
    """Log and index went back together, to a shorter log that is valid in itself. Two such nodes are a
    majority."""
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(40, "kept")
        before = {name: group.device(name, *LOG) for name in NAMES}
        kept = max(group.acknowledged)
        group.write(30, "lost")
        whole = {name: group.device(name, *LOG) for name in NAMES}
        gone = [*NAMES[seed:], *NAMES[:seed]][:count]
        group.all_down("all")
        for name in gone:
            group.put_device(name, before[name], *LOG)
        group.up()
        for name in gone:
            missing = f"the log ends at {kept}, but {max(group.acknowledged)} was committed"
            assert group.says(name) == f"{missing}: it does not vote until a leader has refilled it"
        answered = group.assert_waits()
        assert count == 2 or max(answered) <= kept
        for name in NAMES:
            assert f"{', '.join(sorted(gone))} must be refilled by a leader" in group.says(name)
        for name in gone[:2]:
            world.power_cut(name, "all")
            group.disk(name).lose(f"/store/dledger-{name}/refill")
            group.put_device(name, whole[name], *LOG)
        group.assert_whole()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_index_costs_nothing(seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(40, "kept")
        before = {name: group.device(name, "/index/") for name in NAMES}
        group.write(30, "unindexed")
        group.all_down("all")
        for name in NAMES:
            group.put_device(name, before[name], "/index/")
        group.assert_whole()


def all_of_it_gone_back(group: BeyondGroup, names: tuple[str, ...]) -> int:
    """Let disks hold, in every file, their content of an earlier time. Returns the last index of that time.

    These nodes are started before the others.
    """
    group.write(40, "kept")
    before = {name: group.device(name, *STORE) for name in names}
    kept = max(group.acknowledged)
    group.write(30, "lost")
    group.all_down("all")
    for name in names:
        group.put_device(name, before[name], *STORE)
    group.up(names)
    for name in NAMES:
        if not group.alive(name):
            group.up([name])
    return kept


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="docs/explanation/guarantees.md, Assumed: fsync means what it says. A majority whose disks went "
    "back as a whole has nothing left that tells of what came later, and goes on from there",
)
def test_a_majority_of_disks_that_went_back_as_a_whole_is_not_seen(count: int, seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        all_of_it_gone_back(group, NAMES[:count])
        group.takes()
        group.judge()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_node_knows_to_be_committed_it_does_not_cut_for_a_majority_that_forgot(seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        kept = all_of_it_gone_back(group, NAMES[:2])
        last = max(group.acknowledged)
        assert group.failures[NAMES[2]].reason == (
            f"invariant broken: the leader {group.leader()} of term {group.nodes[NAMES[0]].term} asks to cut "
            f"index {kept + 1}, but {last} is committed here"
        )
        world.isolate(NAMES[0])
        world.isolate(NAMES[1])
        group.up([NAMES[2]])
        assert group.alive(NAMES[2]) and group.nodes[NAMES[2]].log.last_index >= last


# Wiped disks


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("third", ["leads", "follows", "is down"])
def test_two_nodes_that_are_wiped_at_once_are_nobodys_majority(third: str, seed: int) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = BeyondGroup(world)
        group.write(60, "entry")
        followers = group.followers()
        left = followers[0] if third == "follows" else group.await_leader()
        gone = [name for name in NAMES if name != left]
        if third == "is down":
            world.kill(left)
        old = {name: group.wipe(name) for name in gone}
        group.up(gone)
        group.assert_waits()
        if third == "is down":
            assert not any(group.nodes[name].members.identity.cluster for name in gone), (
                "they founded a new group"
            )
            group.up([left])
            group.assert_waits()
        for name in gone:
            assert group.nodes[name].role is Role.LEARNER
        back = gone[seed % 2]
        group.put_back(back, old[back])
        group.assert_whole()
