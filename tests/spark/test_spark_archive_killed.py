"""An archiving process that is killed with SIGKILL in the middle, and the archive after it is run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit.store_builder import Log, write_store

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
MESSAGES = 9000
MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = Log(segment_size=MIB)
    log.open_term(1)
    for number in range(MESSAGES):
        log.message(
            ("orders", "payments")[number % 2],
            b"%05d" % number + bytes(600),
            queue_id=number % 3,
            store_timestamp=1_700_000_000_000 + number * 20_000,
        )
    return write_store(log, tmp_path_factory.mktemp("store") / "n0")


def staged(root: Path) -> bool:
    """A batch is being written."""
    try:
        return any((root / "_archive" / "staging").glob("*/**/*.parquet"))
    except FileNotFoundError:
        return False  # it went away while we looked


def committed(root: Path) -> bool:
    """Some batches are in the archive, and one more is being written."""
    return len(list((root / "_archive").glob("*.json"))) >= 2 and staged(root)


@pytest.mark.parametrize("reached", [pytest.param(staged, marks=pytest.mark.slow), committed])
def test_killed_in_the_middle_each_message_is_there_once(
    spark: Any, store: Path, tmp_path: Path, reached: Callable[[Path], bool]
) -> None:
    from dledger.runtime.files import OsFiles
    from dledger.spark.jobs.archive import archive
    from dledger.spark.jobs.log_source import LogSource

    root = tmp_path / "archive"
    command = [
        sys.executable,
        "-m",
        "dledger.spark",
        "archive",
        str(store),
        "--to",
        str(root),
        "--batch-mb",
        "1",
    ]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT_S
        while not reached(root) and job.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        assert job.poll() is None, "the job was to be killed, and has ended"
        os.kill(job.pid, signal.SIGKILL)
    finally:
        job.kill()
        job.wait()
    before = len(list((root / "_archive").glob("*.json")))
    source = LogSource(stores=(str(store),), options={})
    result = archive(
        spark, OsFiles(), source, str(root), batch_bytes=4 * MIB
    )  # at once: no one waits for Java
    assert result.batches > 0, "nothing was left to do: the kill came too late to show anything"
    assert result.positions == {"g0": {"log": MESSAGES + 1}}
    records = [json.loads(path.read_text()) for path in sorted((root / "_archive").glob("*.json"))]
    assert len(records) == before + result.batches
    rows = spark.read.parquet(str(root)).select("value", "partition", "offset").collect()
    assert sorted(int(bytes(row.value)[:5]) for row in rows) == list(range(MESSAGES))
    assert not any((root / "_archive" / "staging").iterdir())
