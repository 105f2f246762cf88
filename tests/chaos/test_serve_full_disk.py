"""Stand-alone nodes on full disks: derived files wait like everything else, and no process ends."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from serve_group import ServeGroup

from dledger.chaos.machine import World
from dledger.commands import counting
from dledger.errors import EXIT_START, PASSING
from dledger.formats.store_files import Checkpoint, encode_checkpoint
from dledger.log.retention import RetentionSettings

NAMES = ("n0", "n1", "n2")
WAITS = "cannot save the state"


def warnings(world: World) -> int:
    return sum(WAITS in line for line in world.recent_log)


def test_three_full_disks_end_nobody() -> None:
    """Regression: the file `count`, written once a second, ended the node, and three such nodes the group."""
    with World(2) as world:
        group = ServeGroup(world, NAMES)
        group.append(b"one", b"two")
        world.run_for(2)
        for name in NAMES:
            group.fill(name)
        answers = group.append(*[bytes(6000)] * 12)
        world.run_for(20)
        assert answers[-1] == "DISK_FULL", "what was prepared has room, no more"
        assert all(group.runs(name) for name in NAMES)
        assert warnings(world) == len(NAMES), "once each, not every second"
        for name in NAMES:
            group.disk(name).room(None)
        world.run_for(3)
        assert isinstance(group.append(b"again")[0], int)
        world.run_for(3)
        group.stop(*NAMES)
        states = [group.saved(name) for name in NAMES]
        assert states[0] == states[1] == states[2]
        stored = [
            answer for answer in answers if answer != "DISK_FULL"
        ]  # one of them with an unknown outcome
        assert 9 < len(stored) < 12 and states[0]["count"] == 3 + len(stored)
        assert group.failures == {name: [] for name in NAMES}


def test_a_leader_with_a_full_disk_hands_over_and_goes_on() -> None:
    with World(3) as world:
        group = ServeGroup(world, NAMES)
        group.append(b"one", b"two")
        world.run_for(2)
        leader = group.leader()
        group.fill(leader)
        assert group.append(*[bytes(6000)] * 30)[-1] == "DISK_FULL"
        world.run_for(5)
        assert isinstance(group.append(b"elsewhere")[0], int) and group.leader() != leader
        assert group.runs(leader) and warnings(world) == 1


def test_a_second_full_disk_is_told_again() -> None:
    with World(4) as world:
        group = ServeGroup(world)
        group.append(b"one")
        world.run_for(2)
        for episode in (1, 2):
            group.fill("n0")
            group.append(b"more")
            world.run_for(5)
            assert warnings(world) == episode
            group.disk("n0").room(None)
            world.run_for(5)


def test_a_stop_on_a_full_disk_is_in_order() -> None:
    """Regression: the stop ended in a traceback, and the second group was cut short."""
    groups = ("blue", "green")
    with World(5) as world:
        group = ServeGroup(world, groups=groups)
        for name in groups:
            group.append(b"one", group=name)
        world.run_for(2)
        group.fill("n0")
        for name in groups:
            assert isinstance(group.append(b"late", group=name)[0], int)
        group.stop("n0")
        assert group.failures == {"n0": []}
        assert group.saved("n0", "blue")["count"] == 1
        group.disk("n0").room(None)
        group.start("n0")
        world.run_until(group.all_serve, 10)
        world.run_for(2)
        assert [group.saved("n0", name)["count"] for name in groups] == [2, 2]


@pytest.mark.parametrize("number", [*PASSING, errno.EIO])
def test_what_a_later_try_may_not_meet_is_waited_out(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error ends the node with a reason, also during its stop."""

    async def failing(*arguments: Any) -> None:
        raise OSError(number, "planted")

    with World(6) as world:
        group = ServeGroup(world)
        group.append(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(counting, "publish", failing)
            world.run_for(5)
        if number == errno.EIO:
            assert [failure.exit_code for failure in group.failures["n0"]] == [70]
        else:
            world.run_for(2)
            assert group.runs("n0") and group.saved("n0")["count"] == 1


def test_a_state_that_cannot_be_written_at_the_stop_is_a_failure_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(*arguments: Any) -> None:
        raise OSError(errno.EIO, "planted")

    with World(7) as world:
        group = ServeGroup(world)
        world.run_for(2)
        group.append(b"one")
        monkeypatch.setattr(counting, "publish", failing)
        group.stop("n0")
        assert [failure.exit_code for failure in group.failures["n0"]] == [70]


def test_an_install_does_not_wait_for_room_for_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is taken over at once, and saved later."""

    async def failing(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "planted")

    with World(8) as world:
        at_once = RetentionSettings(reserved_hours=0, delete_hours=tuple(range(24)), interval_s=0.1)
        group = ServeGroup(world, NAMES, retention=at_once)
        group.append(b"one")
        leader = group.leader()
        behind = next(name for name in NAMES if name != leader)
        world.run_for(2)
        world.kill(behind)
        group.append(*[bytes(6000)] * 40)
        world.run_until(lambda: group.nodes[leader][0].log.first_index > 5, 20)
        with monkeypatch.context() as patch:
            patch.setattr(counting, "publish", failing)
            group.start(behind)
            world.run_until(lambda: behind in group.nodes and group.nodes[behind][0].applied_index > 40, 20)
        world.run_for(3)
        assert group.runs(behind) and group.saved(behind) == group.saved(leader)


@pytest.mark.parametrize("prepared", [0, 2])
def test_a_start_that_has_to_note_a_loss_of_power_on_a_full_disk(prepared: int) -> None:
    """Regression: the start ended with exit code 70 ("replace the store"), after which supervisors do not
    start again."""
    with World(2) as world:
        group = ServeGroup(world, NAMES, sync_flush=False, pool_segments=prepared)
        group.append(*[bytes(6000)] * 5)
        world.run_for(5)
        group.fill("n1")
        world.power_cut("n1")
        group.fill("n1")  # what the loss of power gave back is taken, too
        world.run_for(1)
        group.start("n1")
        world.run_for(5)
        if not prepared:
            [failure] = group.failures["n1"]
            assert failure.exit_code == EXIT_START and "make room" in failure.reason
            group.disk("n1").room(None)
            group.start("n1")
        world.run_for(5)
        assert group.runs("n1")
        last = group.append(b"again")[0]
        world.run_for(3)
        group.stop(*NAMES)
        assert group.saved("n1")["applied"] >= last


def test_members_that_cannot_be_saved_are_told_once() -> None:
    """Regression: it was reported each second while the disk was full."""
    with World(6) as world:
        group = ServeGroup(world, NAMES)
        group.append(b"one")
        world.run_for(2)
        leader = group.leader()
        follower = next(name for name in NAMES if name != leader)
        for preferred, episode in ((leader, 1), (follower, 2)):
            group.fill(follower)
            group.prefer(preferred)
            world.run_for(8)
            told = [line for line in world.recent_log if "identity or members not saved" in line]
            assert len(told) == episode
            group.disk(follower).room(None)
            world.run_for(5)


def test_a_segment_that_made_room_for_a_note_is_none_of_the_pool_any_more() -> None:
    """The note is written when the pool is open, too, because more was committed than the log holds."""
    with World(2) as world:
        group = ServeGroup(world, NAMES, pool_segments=2)
        group.append(b"one", b"two")
        world.run_for(6)
        victim = next(name for name in NAMES if name != group.leader())
        world.kill(victim)
        checkpoint = group.disk(victim).inode(f"/store/g/dledger-{victim}/checkpoint")
        checkpoint.content[:] = encode_checkpoint(Checkpoint(1000, 1000))
        group.fill(victim)
        group.start(victim)
        world.run_for(1)
        pool = [path for path in group.disk(victim).files("/store") if "/pool/" in path]
        assert group.runs(victim) and len(pool) == group.nodes[victim][0].log.pool.ready == 1
        group.disk(victim).room(None)
        last = group.append(*[bytes(6000)] * 30)[-1]
        world.run_for(3)
        assert group.runs(victim), group.failures
        group.stop(*NAMES)
        assert group.saved(victim)["applied"] >= last
