"""The file `lock`: what a start learns of the run before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.files.run_lock import LastRun, RunLock
from dledger.runtime.files import OsFiles


def take(directory: Path, boot: str = "b1") -> RunLock:
    return RunLock.take(OsFiles(), str(directory), boot)


def last_run(directory: Path, boot: str = "b1") -> LastRun:
    lock = take(directory, boot)
    try:
        return lock.last_run()
    finally:
        lock.close()


def test_nothing_is_known_of_a_new_store(tmp_path: Path) -> None:
    assert last_run(tmp_path) == LastRun(True, False, None, None)


@pytest.mark.parametrize("sync", [True, False])
def test_a_run_says_its_mode_and_how_far_it_has_written(tmp_path: Path, sync: bool) -> None:
    lock = take(tmp_path)
    lock.note_written(5)
    assert lock.last_run().written is None, "not of this run yet"
    lock.note_run(sync, -1)
    assert lock.last_run() == LastRun(False, False, sync, -1)
    lock.note_written(0)
    lock.note_written(77)
    lock.note_written(12)  # a cut
    lock.close()
    assert last_run(tmp_path) == LastRun(False, False, sync, 12)
    assert last_run(tmp_path, "b2") == LastRun(True, False, sync, None), "power may have been lost"
    assert (tmp_path / "lock").stat().st_size == 128


def test_two_processes(tmp_path: Path) -> None:
    lock = take(tmp_path)
    with pytest.raises(BlockingIOError):
        take(tmp_path)
    lock.close()
    take(tmp_path).close()


def test_the_note_of_a_clean_end(tmp_path: Path) -> None:
    lock = take(tmp_path)
    lock.note_run(False, 9)
    lock.note_clean()
    assert lock.last_run() == LastRun(False, True, None, None)
    lock.clear_clean()
    assert lock.last_run() == LastRun(False, False, None, None)
    lock.close()


def test_what_an_older_program_or_rot_leaves_is_no_note(tmp_path: Path) -> None:
    lock = take(tmp_path)
    lock.note_run(True, 9)
    lock.close()
    path = tmp_path / "lock"
    whole = path.read_bytes()
    path.write_bytes(whole[:64] + b"SYNC_FLUSH".ljust(64, b"\0"))
    assert last_run(tmp_path) == LastRun(False, False, True, None)
    for place in range(80, 92):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert last_run(tmp_path).written is None
    path.write_bytes(whole[:64] + b"ASYNC_FLUSH".ljust(16, b"\0") + whole[80:])
    assert last_run(tmp_path) == LastRun(False, False, False, None), "the note of another run"


def test_recover_forgets_how_far_the_node_had_written(tmp_path: Path) -> None:
    lock = take(tmp_path)
    lock.note_run(True, 9)
    lock.forget_written()
    lock.note_boot()
    assert lock.last_run() == LastRun(False, False, True, None)
    lock.close()
    other = take(tmp_path, "b2")
    other.note_boot()
    assert not other.last_run().other_boot
    other.close()


def test_who_removes_the_file_does_not_let_others_in(tmp_path: Path) -> None:
    """Found by use: a second process began on the store of a running one, and removed files of it."""
    lock = take(tmp_path)
    (tmp_path / "lock").unlink()
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            take(tmp_path)
    lock.close()
    take(tmp_path).close()
