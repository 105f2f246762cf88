"""Pid files and processes: only what we started is ever signalled."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.local.processes import ManagedProcess, ProcessError, boot_mark, start_mark

SLEEPER = "import time; time.sleep(600)"
LIMIT_S = 60.0
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def managed(directory: Path, program: str = SLEEPER) -> ManagedProcess:
    return ManagedProcess(
        "sleeper",
        [sys.executable, "-c", program],
        pid_file=directory / "sleeper.pid",
        output=directory / "sleeper.out",
        cwd=directory,
    )


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ManagedProcess]:
    process = managed(tmp_path)
    yield process
    process.kill()


def test_start_stop_and_pid(process: ManagedProcess) -> None:
    assert process.pid is None
    pid = process.start()
    assert process.pid == pid
    assert process.stop(LIMIT_S) == "stopped"
    assert process.pid is None
    assert process.exit_code() == -signal.SIGTERM
    assert process.stop(LIMIT_S) == "not running"


def test_a_running_process_is_not_started_twice(process: ManagedProcess) -> None:
    process.start()
    with pytest.raises(ProcessError, match="is already running"):
        process.start()


def test_another_object_finds_and_stops_it(process: ManagedProcess, tmp_path: Path) -> None:
    pid = process.start()
    other = managed(tmp_path)
    assert other.pid == pid
    assert other.kill() == pid
    assert process.pid is None


def test_the_last_words_are_of_this_process_and_not_of_an_earlier_one(tmp_path: Path) -> None:
    for word in ("first", "second"):
        process = managed(tmp_path, f"print('{word}')")
        process.start()
        assert process.wait_gone(LIMIT_S)
        assert process.tail() == word


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = managed(tmp_path, STUBBORN)
    process.start()
    while "up" not in process.tail():
        assert process.pid is not None
        time.sleep(0.01)
    assert process.stop(0.1) == "killed"


@pytest.mark.parametrize(
    "record",
    [
        {"pid": os.getpid(), "start": "ticks 1", "boot": boot_mark()},
        {"pid": os.getpid(), "start": start_mark(os.getpid()), "boot": "another boot"},
        {"pid": 2**22 + 1, "start": "ticks 1", "boot": boot_mark()},
        {"pid": os.getpid()},
        [],
    ],
)
def test_a_stale_pid_file_belongs_to_nobody(process: ManagedProcess, tmp_path: Path, record: object) -> None:
    """If the file were believed, this test's own process would be killed."""
    (tmp_path / "sleeper.pid").write_text(json.dumps(record))
    assert process.pid is None
    assert process.signal(signal.SIGKILL) is None
    assert process.stop(0) == "not running"
    assert process.start() == process.pid


def test_a_torn_pid_file_belongs_to_nobody(process: ManagedProcess, tmp_path: Path) -> None:
    (tmp_path / "sleeper.pid").write_text('{"pid": ')
    assert process.pid is None


def test_a_zombie_does_not_run(tmp_path: Path) -> None:
    process = managed(tmp_path, "raise SystemExit(7)")
    pid = process.start()
    assert process.wait_gone(LIMIT_S)
    assert process.exit_code() == 7
    assert start_mark(pid) is None
