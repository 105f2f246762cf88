"""Paced files: the rate, the stop, and that they never write."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dledger.runtime.files import OsFiles
from dledger.runtime.rate_limit import Pace, PacedFiles


def test_reading_keeps_to_the_rate(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(range(200)) * 500)
    files = PacedFiles(OsFiles(), Pace(500_000))
    began = time.monotonic()
    file = files.open_read(str(tmp_path / "data"))
    parts = [file.pread(10_000, offset) for offset in range(0, 100_000, 10_000)]
    file.close()
    assert b"".join(parts) == bytes(range(200)) * 500
    assert 0.17 < time.monotonic() - began < 5.0  # the last read is not waited for


def test_without_a_rate_nothing_waits(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    file = PacedFiles(OsFiles(), Pace(0)).open_read(str(tmp_path / "data"))
    began = time.monotonic()
    assert file.pread(100_000, 0) == bytes(100_000)
    assert time.monotonic() - began < 2.0
    file.close()


def test_a_stop_wakes_who_waits(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    pace = Pace(1000)
    file = PacedFiles(OsFiles(), pace).open_read(str(tmp_path / "data"))
    file.pread(100_000, 0)
    threading.Timer(0.05, pace.stop).start()
    began = time.monotonic()
    with pytest.raises(OSError, match="the program ends"):
        file.pread(1, 0)
    assert time.monotonic() - began < 2
    file.close()


def test_nothing_is_written(tmp_path: Path) -> None:
    files = PacedFiles(OsFiles(), Pace(0))
    path = str(tmp_path / "data")
    for write in (
        lambda: files.open(path, create=True),
        lambda: files.mkdir(path),
        lambda: files.unlink(str(tmp_path)),
        lambda: files.rename(str(tmp_path), path),
        lambda: files.lock(path),
    ):
        with pytest.raises(OSError, match="for reading"):
            write()
    assert list(tmp_path.iterdir()) == []
