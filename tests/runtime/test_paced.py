"""Paced files: the rate, the stop, and that they never write."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger.runtime.files import OsFiles
from dledger.runtime.rate_limit import Pace, PacedFiles


class Clock:
    """In place of the module `time` and of what a pace waits for: only who waits lets time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: Pace) -> None:
        self.waits_s: list[float] = []
        monkeypatch.setattr("dledger.runtime.rate_limit.time", SimpleNamespace(monotonic=self.now))
        pace._stopped = SimpleNamespace(wait=self.waits_s.append, is_set=lambda: False)  # type: ignore[assignment]

    def now(self) -> float:
        return 1000.0 + sum(self.waits_s)


def test_reading_keeps_to_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(bytes(range(200)) * 500)
    pace = Pace(500_000)
    clock = Clock(monkeypatch, pace)
    files = PacedFiles(OsFiles(), pace)
    file = files.open_read(str(tmp_path / "data"))
    parts = [file.pread(10_000, offset) for offset in range(0, 100_000, 10_000)]
    file.close()
    assert b"".join(parts) == bytes(range(200)) * 500
    assert clock.waits_s == pytest.approx([0.02] * 9)  # the last read is not waited for


def test_without_a_rate_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    pace = Pace(0)
    clock = Clock(monkeypatch, pace)
    file = PacedFiles(OsFiles(), pace).open_read(str(tmp_path / "data"))
    for _ in range(2):
        assert file.pread(100_000, 0) == bytes(100_000)
    assert clock.waits_s == []
    file.close()


def test_a_stop_wakes_who_waits(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    pace = Pace(100)
    file = PacedFiles(OsFiles(), pace).open_read(str(tmp_path / "data"))
    file.pread(100_000, 0)
    told: list[str] = []

    def read() -> None:
        try:
            file.pread(1, 0)  # after 1000 s
        except OSError as error:
            told.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    time.sleep(0.05)
    assert reader.is_alive()
    pace.stop()
    reader.join(60)
    (error,) = told
    assert "the program ends" in error
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
        with pytest.raises(OSError, match="read-only"):
            write()
    assert list(tmp_path.iterdir()) == []
