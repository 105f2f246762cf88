"""ConsumeQueue and index files that are gone: by accident, and because retention took them meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.audit.coverage import check_replica, gather
from dledger.audit.findings import Finding, QueueFilesRow, QueueRow, SegmentRow
from dledger.audit.scan import drill_segment, scan_segment, scan_side
from dledger.audit.store_directory import SegmentTask, open_stores, segment_tasks
from dledger.bench.big_store import write_big_group
from dledger.formats.snapshot import BEGINS_FILE
from dledger.formats.state_file import SNAPSHOT_FILE, pack_snapshot, unpack_snapshot
from dledger.formats.store_files import encode_json
from dledger.runtime import Files
from dledger.runtime.env import production_env
from tests.audit.engine import audit
from tests.audit.store_builder import SEGMENT_SIZE, sample_log, segment_path, write_store
from tests.audit.test_audit_coverage import replica, segment

SEGMENT = 1 << 18


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """With a state file that says that everything is applied."""
    stores, _ = write_big_group(tmp_path, 6_000_000, segment_size=SEGMENT, body=300)
    return stores[0]


def codes(store: Path) -> set[str]:
    report = audit([store])
    assert report.exit_code == (1 if any(found.severity for found in report.findings) else 0)
    return {found.code for found in report.findings}


def test_lost_queues_are_no_lag(store: Path) -> None:
    queues = [path for topic in (store / "consumequeue").iterdir() for path in topic.iterdir()]
    shutil.rmtree(queues[0])
    (found,) = audit([store]).findings
    assert found.code == "QUEUE_MISSING"
    assert found.detail.startswith("/".join(queues[0].parts[-2:]))
    shutil.rmtree(store / "consumequeue")
    assert len(audit([store]).findings) == len(queues)
    assert codes(store) == {"QUEUE_MISSING"}


def test_what_the_state_file_does_not_count_on_is_lag(store: Path) -> None:
    """A node that is still at work, or was killed: units follow the log."""
    path = store / "state" / SNAPSHOT_FILE
    old = unpack_snapshot(path.read_bytes())
    shutil.rmtree(store / "consumequeue")
    path.write_bytes(pack_snapshot(-1, 0, type(old.state)()))
    assert codes(store) == {"QUEUE_LAG"}


def test_lost_index_files_are_no_lag(store: Path) -> None:
    shutil.rmtree(next(store.glob("dledger-*")) / "index")
    report = audit([store])
    # Only the last segment's units may still be written.
    lost, lag = sorted(report.findings, key=lambda found: found.first_index)
    assert (lost.code, lost.first_index) == ("INDEX_FILE", 0)
    assert (lag.code, lag.first_index) == ("INDEX_LAG", lost.last_index + 1)
    assert report.exit_code == 1


def taken(log_start: int) -> list[str]:
    """Files of a queue begin behind its first message, as they were looked at after the segments."""
    rows: list[Any] = [
        replica(39)._replace(queues=1, applied=39, log_start=log_start),
        segment(0, 0, 19),
        segment(1, 20, 39, "end"),
        QueueRow("n0", 0, "t", 0, 0, 19, 19),
        QueueRow("n0", 100, "t", 0, 20, 39, 39),
        QueueRow("n0", 0, "gone", 0, 0, 19, 19),
        QueueFilesRow("n0", "t", 0, 20, 40, 150),
    ]
    (holding,) = gather(rows)
    return [found.code for found in check_replica(holding) if found.code != "INDEX_LAG"]


def test_queues_of_segments_that_retention_took_are_not_missing() -> None:
    assert taken(log_start=0) == ["QUEUE_MISSING", "QUEUE_MISSING"]
    assert taken(log_start=100) == []


class Vanishing:
    """Files of which those in one directory go just before they are opened."""

    def __init__(self, files: Files, directory: str, then: Callable[[], None]) -> None:
        self._files = files
        self._directory = directory
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_read(self, path: str) -> Any:
        if f"/{self._directory}/" in path:
            Path(path).unlink(missing_ok=True)
            self._then()
        return self._files.open_read(path)


@pytest.mark.parametrize("directory", ["consumequeue", "index"])
@pytest.mark.parametrize("retired", [False, True])
def test_a_segment_is_judged_though_a_derived_file_goes(
    directory: str, retired: bool, tmp_path: Path
) -> None:
    log = sample_log(1500)
    path = write_store(log, tmp_path / "n0")
    env = production_env("test")
    (opened,) = open_stores(env.files, [str(path)])
    task: SegmentTask = segment_tasks(opened)[0]
    note = next(path.glob("dledger-*")) / BEGINS_FILE

    def say() -> None:
        if retired:
            note.write_bytes(encode_json({"pos": SEGMENT_SIZE, "replace": False}))

    files: Any = Vanishing(env.files, directory, say)
    rows = list(scan_segment(files, task))
    env.workers.close()
    (covered,) = (row for row in rows if isinstance(row, SegmentRow))
    in_it = [entry.index for entry in log.entries if entry.pos < SEGMENT_SIZE]
    assert (covered.stop, covered.entries) == ("blank", len(in_it))
    said = {row.code for row in rows if isinstance(row, Finding)}
    derived = set() if directory == "consumequeue" else {"INDEX_FILE"}
    assert said == (set() if retired else derived)


def test_the_side_scan_tells_where_the_log_begins_now(tmp_path: Path) -> None:
    path = write_store(sample_log(1500), tmp_path / "n0")
    env = production_env("test")
    (opened,) = open_stores(env.files, [str(path)])
    segment_path(path, 0).unlink()
    row: Any = next(iter(scan_side(env.files, opened)))
    env.workers.close()
    assert row.log_start == SEGMENT_SIZE


def test_a_segment_that_retention_took_since_it_was_listed_has_no_entries(tmp_path: Path) -> None:
    """Found by auditing live directories: it was told as one that could not be read again."""
    files = production_env("test").files
    (found,) = open_stores(files, [str(write_store(sample_log(), tmp_path / "n0"))])
    task = segment_tasks(found)[1]
    inside = [(task.first_index + 5, task.first_index + 9)]
    assert len(list(drill_segment(files, task, task.first_index, inside))) == 5
    Path(task.path).unlink()
    assert not list(drill_segment(files, task, task.first_index, inside))
