"""Log files that cannot be written, or were taken away, while a program runs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.runtime import log_files
from dledger.runtime.log_files import LogFile


@pytest.fixture
def logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Writes to logs/broker.log, and looks for it before each line."""
    monkeypatch.setattr(log_files, "LOOK_S", 0.0)
    handler = LogFile(str(tmp_path / "logs" / "broker.log"))
    found = logging.Logger("of a test")
    found.addHandler(handler)
    yield found
    handler.close()


@pytest.mark.parametrize("what", ["file", "directory", "moved"])
def test_what_was_taken_away_is_made_anew_and_told(what: str, logger: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "broker.log"
    logger.info("before")
    if what == "moved":
        path.rename(tmp_path / "kept")
    elif what == "file":
        path.unlink()
    else:
        shutil.rmtree(path.parent)
    logger.info("after")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "made anew" in lines[0]
    assert lines[1:] == ["after"]


def test_lines_that_are_lost_are_told_once_and_without_a_traceback(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (handler,) = logger.handlers
    assert isinstance(handler, LogFile)
    handler.stream.close()
    handler.stream = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115  # the handler closes it
    for number in range(50):
        logger.info("line %d", number)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert str(tmp_path / "logs" / "broker.log") in told[0]
    assert os.strerror(28) in told[0]
    handler.stream = None  # type: ignore[assignment]  # what is buffered cannot be written


def test_a_directory_that_cannot_be_made_again_is_told(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.info("before")
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "logs").write_text("in its place")
    for _ in range(5):
        logger.info("lost")
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "cannot be written" in told[0]
