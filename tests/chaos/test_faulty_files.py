"""The switches of a broker's disk and clock, and the bits that rot."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.chaos.trials.extents import has_room
from dledger.chaos.trials.faulty_files import FaultyFile, FaultyFiles
from dledger.chaos.trials.rot import KINDS, flip_bit
from dledger.chaos.trials.surroundings import Surroundings
from dledger.chaos.trials.switches import DiskFault, Switches
from dledger.formats.entry import encode_entry
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles

ALLOCATED = 64 * 1024


class Bed:
    """A file on a disk whose switches are in the test's hands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.switches = Switches(directory / "switches")
        # the broker maps the file itself
        self.files = FaultyFiles(Switches(directory / "switches"), None)
        self.file: FaultyFile = self.files.open(self.path("a"), create=True)
        self.file.allocate(ALLOCATED)
        self.file.pwritev([b"content"], 0)

    def path(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.file.close()


READS: dict[str, Callable[[Bed], object]] = {
    "pread": lambda bed: bed.file.pread(4, 0),
    "pread_now": lambda bed: bed.file.pread_now(4, 0),
}
WRITES: dict[str, Callable[[Bed], object]] = {
    "pwritev": lambda bed: bed.file.pwritev([b"x"], 0),
    "pwritev_synced": lambda bed: bed.file.pwritev_synced([b"x"], 0),
    "allocate": lambda bed: bed.file.allocate(2 * ALLOCATED),
    "truncate": lambda bed: bed.file.truncate(1),
    "create": lambda bed: bed.files.open(bed.path("new"), create=True),
    "mkdir": lambda bed: bed.files.mkdir(bed.path("new")),
    "rename": lambda bed: bed.files.rename(bed.path("a"), bed.path("b")),
}
SYNCS: dict[str, Callable[[Bed], object]] = {
    "fdatasync": lambda bed: bed.file.fdatasync(),
    "pwritev_synced": lambda bed: bed.file.pwritev_synced([b"x"], 0),
    "sync_dir": lambda bed: bed.files.sync_dir(str(bed.directory)),
}
GROWS: dict[str, Callable[[Bed], object]] = {
    "write behind the end": lambda bed: bed.file.pwritev([b"x"], ALLOCATED),
    "allocate": lambda bed: bed.file.allocate(2 * ALLOCATED),
    "create": lambda bed: bed.files.open(bed.path("new"), create=True),
    "mkdir": lambda bed: bed.files.mkdir(bed.path("new")),
}


def cases(
    fault: DiskFault, code: int, operations: dict[str, Callable[[Bed], object]]
) -> list[tuple[DiskFault, int, Callable[[Bed], object]]]:
    return [pytest.param(fault, code, one, id=f"{fault.name}-{name}") for name, one in operations.items()]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fault", "code", "operation"),
    [
        *cases(DiskFault.READ_ERROR, errno.EIO, READS),
        *cases(DiskFault.WRITE_ERROR, errno.EIO, WRITES),
        *cases(DiskFault.SYNC_ERROR, errno.EIO, SYNCS),
        *cases(DiskFault.FULL, errno.ENOSPC, GROWS),
    ],
)
def test_an_operation_fails_until_the_fault_is_over(
    bed: Bed, fault: DiskFault, code: int, operation: Callable[[Bed], object]
) -> None:
    bed.switches.disk = fault
    with pytest.raises(OSError) as error:
        operation(bed)
    assert error.value.errno == code
    assert bed.switches.struck == 1
    bed.switches.disk = DiskFault(0)
    operation(bed)


def test_a_full_disk_takes_writes_that_need_no_room(bed: Bed) -> None:
    bed.file.truncate(100 * ALLOCATED)  # a hole behind what is allocated
    bed.switches.disk = DiskFault.FULL
    bed.file.pwritev([b"x" * 100], ALLOCATED - 100)
    bed.file.allocate(ALLOCATED)
    assert bed.files.usage(str(bed.directory)).free == 0
    if has_room(bed.file._fd, ALLOCATED, ALLOCATED + 1):
        pytest.skip("this file system does not say which parts of a file have room")
    with pytest.raises(OSError, match="No space"):
        bed.file.pwritev([b"x"], 10 * ALLOCATED)


def test_other_faults_leave_reads_alone(bed: Bed) -> None:
    bed.switches.disk = ~DiskFault.READ_ERROR & ~DiskFault.HANG
    assert bed.file.pread(7, 0) == b"content"


def test_a_slow_disk_takes_its_time(bed: Bed) -> None:
    bed.switches.slow_ms = 50
    bed.switches.disk = DiskFault.SLOW
    began = time.monotonic()
    bed.file.pwritev([b"x"], 0)
    bed.file.fdatasync()
    assert time.monotonic() - began >= 0.1
    assert bed.switches.struck == 2


def test_a_hanging_write_ends_when_the_fault_is_over(bed: Bed) -> None:
    bed.switches.disk = DiskFault.HANG
    writer = threading.Thread(target=bed.file.pwritev, args=([b"new"], 0))
    writer.start()
    deadline = time.monotonic() + 20
    while not bed.switches.struck:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert bed.file.pread(7, 0) == b"content"
    bed.switches.disk = DiskFault(0)
    writer.join(20)
    assert bed.file.pread(3, 0) == b"new"


def test_the_surroundings_give_a_broker_their_clock_and_their_boots(tmp_path: Path) -> None:
    place = Surroundings.create(tmp_path / "n0", journal=True)
    real = production_env("test")
    try:
        env = Surroundings(tmp_path / "n0").env(real)
        assert isinstance(env.files, FaultyFiles)
        place.switches.clock_ms = -3_600_000
        assert abs(env.wall.now_ms() + 3_600_000 - real.wall.now_ms()) < 60_000
        place.boot_again()
        assert Surroundings(tmp_path / "n0").env(real).boot_id != env.boot_id
    finally:
        real.workers.close()


def test_without_a_journal_the_broker_records_nothing(tmp_path: Path) -> None:
    place = Surroundings.create(tmp_path / "n0", journal=False)
    assert not place.loses_power
    assert not place.journal.exists()


# Rot


def store_with_everything(directory: Path) -> Path:
    node = directory / "dledger-n0"
    files = {
        node / "hardstate": b"\1" * 5120,
        node / "checkpoint": b"1 2",
        node / "members": b"{}",
        node / "index/00000000000000000000": b"\1" * 64,
        directory / "consumequeue/t/0/00000000000000000000": b"\1" * 40,
        directory / "index/20260101000000000": b"\1" * 40,
        directory / "state/snapshot": b"\1" * 40,
        directory / "config/topics.json": b"{}",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content + bytes(100))
    (node / "data").mkdir()
    entries = b"".join(encode_entry(number, 1, 55 * number, b"message", 0, 0) for number in range(3))
    (node / "data/00000000000000000000").write_bytes(entries + bytes(1000))
    return directory


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", range(len(KINDS)), ids=list(KINDS))
def test_each_flip_changes_one_bit_of_its_kind_of_file(tmp_path: Path, number: int) -> None:
    store = store_with_everything(tmp_path)
    before = contents(store)
    damage = flip_bit(store, number + len(KINDS), random.Random(7))
    assert damage.kind == list(KINDS)[number]
    changed = {path: now for path, now in contents(store).items() if now != before[path]}
    ((path, now),) = changed.items()
    assert os.path.relpath(path, store) in damage.text
    assert sum((a ^ b).bit_count() for a, b in zip(before[path], now, strict=True)) == 1


def test_a_store_without_such_a_file_loses_a_bit_of_an_entry(tmp_path: Path) -> None:
    store = store_with_everything(tmp_path)
    (store / "dledger-n0/members").unlink()
    damage = flip_bit(store, list(KINDS).index("members"), random.Random(7))
    assert damage.kind == "body of an entry"


def test_an_empty_store_has_nothing_to_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no entry yet"):
        flip_bit(tmp_path, 0, random.Random(7))


def test_the_files_are_those_of_the_operating_system(bed: Bed) -> None:
    assert OsFiles().open_read(bed.path("a")).pread(7, 0) == b"content"
