"""kill -9 in the middle of a write to the log, which the kernel then ends between two pages (decision 16).

The entries of that write were not acknowledged: they are a torn tail. Acknowledged entries never count as
one.
"""

from __future__ import annotations

import pytest
from disk_group import NAMES, SEGMENT, DiskGroup
from node_group import SETTINGS

from dledger.chaos.machine import World
from dledger.commands.recover import RecoverRefused, force_single
from dledger.formats.entry import HEADER_SIZE
from dledger.runtime.env import Env


def kill_all_in_write(group: DiskGroup) -> None:
    """Kill all nodes while they write the same entries, then start them again."""
    world = group.world
    for name in NAMES:
        world.kill_in_write(name, "/data/")
    group.append(group.await_leader(), [bytes([n]) * 5000 for n in range(8)])
    world.run_until(lambda: not any(group.alive(name) for name in NAMES), 5)
    for name in NAMES:
        del group.nodes[name]  # what it was before is not to be asked
        group.start(name)


@pytest.mark.parametrize("sync_flush", [True, False])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sample(4)
def test_a_group_that_dies_in_its_writes_goes_on(seed: int, sync_flush: bool) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = DiskGroup(world, sync_flush=sync_flush)
        last = group.fill(30)
        before = [entry[3] for entry in group.hosts["n0"].entries]
        kill_all_in_write(group)
        world.run_until(lambda: group.leader() is not None, 5)
        assert all(group.nodes[name].elector.may_vote for name in NAMES), "nothing told is missing"
        assert world.faults["torn_write"] >= 1
        group.settle()
        entries = group.hosts["n0"].entries
        assert [entry[3] for entry in entries[: last + 1]] == before[: last + 1]


def test_again_and_again() -> None:
    with World(11, settings=SETTINGS) as world:
        group = DiskGroup(world)
        last = -1
        for _ in range(8):
            last = max(last, group.fill(10))
            kill_all_in_write(group)
            world.run_until(lambda: group.leader() is not None, 5)
        group.settle()
        assert group.nodes["n0"].log.last_index > last


def told_and_killed(group: DiskGroup) -> tuple[str, int, str, int]:
    """See `DiskGroup.kill_after_an_fsync`. Returns also the file of that entry, and its offset there."""
    victim, last, end = group.kill_after_an_fsync()
    pos = end - 3000 - HEADER_SIZE
    return victim, last, f"/store/dledger-{victim}/data/{pos - pos % SEGMENT:020d}", pos % SEGMENT


@pytest.mark.parametrize("sync_flush", [True, False])
@pytest.mark.parametrize("what", ["body", "header", "all of it"])
def test_what_was_told_is_no_torn_tail(what: str, sync_flush: bool) -> None:
    """Regression: zeros where the entry began were taken for the end of the log."""
    with World(3, settings=SETTINGS) as world:
        group = DiskGroup(world, sync_flush=sync_flush)
        victim, last, path, offset = told_and_killed(group)
        if what == "body":
            group.disk(victim).flip(path, offset + HEADER_SIZE + 50, 3)
        else:
            group.disk(victim).zero(path, offset, HEADER_SIZE if what == "header" else HEADER_SIZE + 3000)
        group.start(victim)
        world.run_for(1)
        node = group.nodes[victim]
        assert node.log.last_index < last and not node.elector.may_vote
        world.kill(victim)  # it does not forget that
        group.start(victim)
        world.run_for(1)
        assert not group.nodes[victim].elector.may_vote
        world.heal()
        group.settle()
        assert group.nodes[victim].elector.may_vote


def test_recover_tells_of_what_was_told_and_is_gone() -> None:
    """An operator who compares the remaining stores must learn that this one lost something."""
    with World(3, settings=SETTINGS) as world:
        group = DiskGroup(world)
        victim, last, path, offset = told_and_killed(group)
        group.disk(victim).zero(path, offset, HEADER_SIZE)
        said: list[str] = []

        async def recover(env: Env) -> None:
            try:
                await force_single(env, "/store", yes=True)
            except RecoverRefused as refused:
                said.append(str(refused))
            await force_single(env, "/store", yes=True, cut_damage=True)

        world.restart(victim, recover)
        world.run_until(lambda: world.nodes[victim].process is None, 5)
        assert len(said) == 1 and f"entries {last}..{last} were stored here" in said[0]


def test_what_a_leader_had_cut_is_not_missed() -> None:
    """The cut also lowers the note of what was acknowledged. Otherwise a kill would leave the node in
    doubt."""
    with World(5, settings=SETTINGS) as world:
        group = DiskGroup(world)
        group.fill(20)
        old = group.await_leader()
        world.isolate(old)
        log = group.nodes[old].log
        length = group.append(old, [b"never committed"] * 10)
        world.run_until(lambda: log.durable_index == length, 3)
        world.run_until(lambda: group.leader() not in (None, old), 5)
        world.heal()
        world.run_until(lambda: log.last_index < length, 5)
        del group.nodes[old]
        world.kill(old)
        world.isolate(old)
        group.start(old)
        world.run_for(0.2)
        assert group.nodes[old].elector.may_vote
        world.heal()
        group.settle()


def test_a_store_of_an_older_program_is_judged_as_before() -> None:
    """An older program did not note how far it had written, so damage behind the last index unit is
    doubtful."""
    with World(7, settings=SETTINGS) as world:
        group = DiskGroup(world)
        group.fill(30)
        world.run_for(1)
        for name in NAMES:
            world.kill_in_write(name, "/data/")
        group.append(group.await_leader(), [bytes([n]) * 5000 for n in range(8)])
        world.run_until(lambda: not any(group.alive(name) for name in NAMES), 5)
        for name in NAMES:
            group.disk(name).zero(f"/store/dledger-{name}/lock", 80, 12)
            group.start(name)
        world.run_for(2)
        assert not all(group.nodes[name].elector.may_vote for name in NAMES)
