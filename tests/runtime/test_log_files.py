"""Log files that cannot be written, or were taken away, while a program runs."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger.runtime import log_files
from dledger.runtime.log_files import LogFile
from dledger.runtime.log_writer import QueuedHandler


@dataclass
class Logged:
    """A logger of logs/broker.log, which looks for its file before each line."""

    handler: QueuedHandler
    file: LogFile
    path: Path
    told: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Log a line and wait until it is written, or lost."""
        self.handler.emit(logging.LogRecord("test", logging.INFO, "", 0, text, None, None))
        self.handler.flush()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    monkeypatch.setattr(log_files, "LOOK_S", 0.0)
    path = tmp_path / "logs" / "broker.log"
    file = LogFile(str(path))
    told: list[str] = []
    handler = QueuedHandler(file, told.append)
    file.line_of = handler.line_of
    yield Logged(handler, file, path, told)
    handler.close()


@pytest.mark.parametrize("what", ["file", "directory", "moved"])
def test_what_was_taken_away_is_made_anew_and_told(what: str, logged: Logged, tmp_path: Path) -> None:
    logged.say("before")
    if what == "moved":
        logged.path.rename(tmp_path / "kept")
    elif what == "file":
        logged.path.unlink()
    else:
        shutil.rmtree(logged.path.parent)
    logged.say("after")
    assert "a new file was created" in logged.lines[0]
    assert logged.lines[1:] == ["after"] and not logged.told


def test_a_file_that_was_moved_is_opened_anew_when_that_is_asked_for(logged: Logged, tmp_path: Path) -> None:
    logged.say("before")
    logged.path.rename(tmp_path / "kept")
    logged.file.reopen()
    logged.say("after")
    assert logged.lines == ["after"] and (tmp_path / "kept").read_text() == "before\n"


def test_lines_that_are_lost_are_told_once_and_counted(logged: Logged, tmp_path: Path) -> None:
    logged.say("before")
    shutil.rmtree(logged.path.parent)
    logged.path.parent.write_text("in its place")
    for _ in range(5):
        logged.say("lost")
    assert len(logged.told) == 1
    assert "the log cannot be written" in logged.told[0] and str(logged.path.parent) in logged.told[0]
    logged.path.parent.unlink()
    logged.say("after")
    assert "log lines dropped count=5" in logged.lines[0] and logged.lines[1:] == ["after"]


def test_a_full_disk_loses_lines_and_ends_nothing(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(logged.path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        for _ in range(50):
            logged.say("lost")
    assert len(logged.told) == 1 and os.strerror(errno.ENOSPC) in logged.told[0]
    logged.say("after")
    assert "log lines dropped count=50" in logged.lines[0] and logged.lines[1:] == ["after"]


def test_a_full_file_is_rotated_and_goes_on(logged: Logged, tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "small.log"), 10, 1)
    for number in range(4):
        file.write(b"line %d\n" % number)
    assert (tmp_path / "small.log").read_bytes() == b"line 3\n"
    assert (tmp_path / "small.log.1").read_bytes() == b"line 2\n"
