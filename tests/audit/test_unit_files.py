"""Directories of fixed-size units: where they end, and what was never written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.audit.unit_files import UnitFiles
from dledger.runtime.files import OsFiles


def units(directory: Path) -> UnitFiles:
    return UnitFiles(OsFiles(), str(directory), 20)


def unit(number: int) -> bytes:
    return number.to_bytes(8, "big") + (1000).to_bytes(4, "big") + bytes(8)


@pytest.mark.parametrize("count", [0, 1, 3276, 3277, 6553, 6554, 20_000])
@pytest.mark.parametrize("preallocated", [False, True])
def test_the_end_is_behind_the_last_unit_written(tmp_path: Path, count: int, preallocated: bool) -> None:
    data = b"".join(unit(number) for number in range(count))
    (tmp_path / f"{0:020d}").write_bytes(data.ljust(600_000, b"\0") if preallocated else data)
    assert units(tmp_path).end() == count


def test_files_follow_each_other_and_may_begin_late(tmp_path: Path) -> None:
    for start in (200, 300):
        data = b"".join(unit(number) for number in range(start, start + 100))
        (tmp_path / f"{start * 20:020d}").write_bytes(data)
    (tmp_path / f"{400 * 20:020d}").write_bytes(bytes(2000))
    (tmp_path / "other").write_bytes(b"x")
    files = units(tmp_path)
    assert (files.first, files.end()) == (200, 400)
    assert files.read(298, 4) == b"".join(unit(number) for number in range(298, 302))
    assert files.read(198, 3) == bytes(40) + unit(200)
    assert files.read(399, 2) == unit(399) + bytes(20)


def test_no_directory_is_no_units(tmp_path: Path) -> None:
    files = units(tmp_path / "nothing")
    assert (files.first, files.end(), files.read(5, 1)) == (0, 0, bytes(20))


def test_what_is_written_after_the_look_at_the_directory_is_not_there(tmp_path: Path) -> None:
    """A live broker writes meanwhile: neither units that came later nor half of one pass for lost ones."""
    path = tmp_path / f"{0:020d}"
    path.write_bytes(b"".join(unit(number) for number in range(100)) + unit(100)[:13])
    files = units(tmp_path)
    path.write_bytes(b"".join(unit(number) for number in range(300)))
    assert files.end() == 100
    assert files.read(0, 100) == b"".join(unit(number) for number in range(100))
