"""`--keep`: scans of sealed segments are used again, and the report is that of a full scan."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")

from fsspec.implementations.memory import MemoryFileSystem

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import KeptRow, Row
from dledger.audit.kept import SETTLED_MS, Keep, KeptReader
from dledger.audit.local import audit_stores
from dledger.audit.replicas import StoreSource
from dledger.audit.report import Kept, Report
from dledger.audit.shipped_scans import find_scans
from dledger.audit.state_check import load_boundary
from dledger.audit.store_directory import SegmentTask
from dledger.bench.big_store import write_big_group
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.state import unpack_parts
from dledger.formats.state_file import SNAPSHOT_FILE, pack_snapshot
from dledger.runtime import Files
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile, OsFiles
from dledger.runtime.processes import ProcessWorkers
from dledger.runtime.remote_files import FsspecFiles
from tests.audit.apache_store import apache_log, key_files, write_apache_store
from tests.audit.engine import audit
from tests.audit.faults import FAULTS, by_names
from tests.audit.store_builder import Log, flip, sample_log, segment_path, write_group
from tests.audit.test_audit_keys import FAULTS as KEY_FAULTS
from tests.audit.test_audit_state import CHANGES, SEGMENT, change_snapshot, change_state_file, snapshots
from tests.command_line import audit as run
from tests.command_line import spark as spark_run

DAY_MS = 24 * 3_600_000
LATER_MS = 4_000_000_000_000
"""Later than any change of a file here."""


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def kept_audit(
    stores: Sequence[Path | str],
    root: Path | str,
    now_ms: int = LATER_MS,
    rescan_ms: int = 7 * DAY_MS,
    processes: ProcessWorkers | None = None,
    files: Files | None = None,
) -> Report:
    env = production_env("test")
    keep = Keep(str(root), files or OsFiles(), now_ms, rescan_ms)
    paths = [str(store) for store in stores]
    try:
        return asyncio.run(audit_stores(env, paths, keep=keep, processes=processes, alone_below=0))
    finally:
        env.workers.close()


def counts(report: Report) -> tuple[int, int]:
    assert report.kept is not None
    assert report.kept.problems == ()
    return report.kept.scanned, report.kept.reused


def without(report: Report) -> Report:
    return replace(report, kept=None)


def opened(store: Path, root: Path, now_ms: int = LATER_MS) -> tuple[KeptReader, list[SegmentTask]]:
    keep = Keep(str(root), OsFiles(), now_ms, 7 * DAY_MS)
    (replica,) = keep.source(StoreSource.at(str(store))).look().replicas
    assert isinstance(replica.reader, KeptReader)
    return replica.reader, list(replica.tasks())


def parts(reader: KeptReader, task: SegmentTask) -> tuple[list[Row], KeptRow]:
    """Rows, and where they come from."""
    *rows, kept = reader.scan(task)
    assert isinstance(kept, KeptRow)
    return rows, kept


def path_of(store: Path, log: Log) -> Path:
    """The segment of entry 700, which is sealed."""
    return segment_path(store, log.entries[700].pos // log.segment_size * log.segment_size)


# --- the same findings ------------------------------------------------------------------------------


QUICK = (
    "rewritten committed entry",
    "deleted segment",
    "wrong index unit",
    "wrong ConsumeQueue unit",
    "missing ConsumeQueue unit",
    "dangling ConsumeQueue unit",
    "lost blank tail",
    "damaged identity",
)
QUICK_KEYS = ("hash", "seconds", "count")


def some(names: Iterable[str], quick: Container[str]) -> list[object]:
    return [pytest.param(name, id=name, marks=[] if name in quick else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", some(map(str, FAULTS), QUICK))
@pytest.mark.sample(4)
def test_findings_are_those_of_a_full_scan(name: str, log: Log, tmp_path: Path) -> None:
    """A fault that comes after a clean audit and is seen twice, and one that the first audit sees, give the
    findings of a full scan."""
    stores = write_group(log, tmp_path / "stores")
    kept_audit(stores, tmp_path / "keep")
    (fault,) = by_names(name)
    fault.inject(stores, log)
    full = audit(stores)
    for root, again in (("keep", False), ("keep", True), ("another", False), ("another", True)):
        report = kept_audit(stores, tmp_path / root)
        assert without(report) == full
        assert report.kept is not None
        assert report.kept.reused > 0 or not again  # some faults change every file
    assert report.exit_code == fault.exit_code


@pytest.mark.parametrize("name", some((fault[0] for fault in KEY_FAULTS), QUICK_KEYS))
def test_damage_of_an_index_file_is_found(name: str, tmp_path: Path) -> None:
    log = apache_log()
    store = write_apache_store(log, tmp_path / "store", keys=key_files(log))
    kept_audit([store], tmp_path / "keep")
    assert counts(kept_audit([store], tmp_path / "keep"))[1] > 0
    ((number, damage),) = (fault[1:3] for fault in KEY_FAULTS if fault[0] == name)
    path = sorted((store / "index").iterdir())[number]
    image = bytearray(path.read_bytes())
    damage(image)
    path.write_bytes(image)
    assert without(kept_audit([store], tmp_path / "keep")) == audit([store])


def wrong_snapshot(store: Path) -> None:
    change_snapshot(snapshots(store)[1], CHANGES["queues"])


def wrong_state_file(store: Path) -> None:
    change_state_file(store, CHANGES["queues"])


@pytest.mark.parametrize("change", [wrong_snapshot, wrong_state_file])
def test_a_state_that_does_not_follow_any_more_is_found(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    stores, _ = write_big_group(tmp_path / "stores", 3_000_000, segment_size=SEGMENT, body=300)
    for store in stores:  # of the end of a sealed segment, as a running broker leaves it
        boundary = load_boundary(OsFiles(), str(next(store.glob("dledger-*"))), int(snapshots(store)[1].name))
        assert boundary is not None
        image = pack_snapshot(boundary.manifest.index, boundary.manifest.pos, unpack_parts(boundary.parts))
        (store / "state" / SNAPSHOT_FILE).write_bytes(image)
    kept_audit(stores, tmp_path / "keep")
    scanned, reused = counts(kept_audit(stores, tmp_path / "keep"))
    assert reused > scanned
    change(stores[1])
    full = audit(stores)
    assert "STATE_DIFFERS" in {found.code for found in full.findings}
    assert without(kept_audit(stores, tmp_path / "keep")) == full


def test_rot_that_is_hidden_behind_an_old_time_is_found(log: Log, tmp_path: Path) -> None:
    """As when a disk was restored with its times: the inode's own time cannot be set back."""
    (store,) = write_group(log, tmp_path / "stores", 1)
    kept_audit([store], tmp_path / "keep")
    path = path_of(store, log)
    before = path.stat()
    flip(store, log.entries[700], HEADER_SIZE + 8)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    report = kept_audit([store], tmp_path / "keep")
    assert [found.code for found in report.findings] == ["BIT_ROT"]


@pytest.mark.slow
def test_processes_give_the_same_report(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path / "stores")
    next(by_names("flipped body byte")).inject(stores, log)
    workers = ProcessWorkers(2)
    try:
        first, second = (kept_audit(stores, tmp_path / "keep", processes=workers) for _ in range(2))
    finally:
        workers.close()
    assert without(first) == without(second) == audit(stores)
    assert counts(second) == counts(kept_audit(stores, tmp_path / "keep"))


# --- what is scanned --------------------------------------------------------------------------------


def test_sealed_segments_are_scanned_once(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path / "stores")
    sealed = len(log.segments) - 1
    assert counts(kept_audit(stores, tmp_path / "keep")) == (3 * len(log.segments), 0)
    assert counts(kept_audit(stores, tmp_path / "keep")) == (3, 3 * sealed)
    path = path_of(stores[0], log)
    path.touch()
    assert counts(kept_audit(stores, tmp_path / "keep")) == (4, 3 * sealed - 1)
    assert counts(kept_audit(stores, tmp_path / "keep")) == (3, 3 * sealed)


def test_a_segment_with_a_finding_is_scanned_every_time(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    flip(store, log.entries[700], 60)
    kept_audit([store], tmp_path / "keep")
    assert counts(kept_audit([store], tmp_path / "keep")) == (2, len(log.segments) - 2)


def test_a_file_that_changed_a_moment_ago_is_not_kept(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    newest = max(path.stat().st_mtime_ns for path in (store / "dledger-n0" / "data").iterdir()) // 1_000_000
    assert counts(kept_audit([store], tmp_path / "keep", now_ms=newest)) == (len(log.segments), 0)
    assert counts(kept_audit([store], tmp_path / "keep", now_ms=newest + SETTLED_MS))[1] == 0
    assert counts(kept_audit([store], tmp_path / "keep", now_ms=newest + SETTLED_MS))[0] == 1


def test_scans_are_renewed_before_they_are_too_old_and_not_all_at_once(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    sealed = len(log.segments) - 1
    kept_audit([store], tmp_path / "keep")
    assert counts(kept_audit([store], tmp_path / "keep", now_ms=LATER_MS + 7 * DAY_MS // 2))[1] == sealed
    renewed = []
    for hours in range(84, 7 * 24 + 1, 6):
        scanned, _ = counts(kept_audit([store], tmp_path / "keep", now_ms=LATER_MS + hours * 3_600_000))
        renewed.append(scanned - 1)
    assert sum(renewed) == sealed
    assert max(renewed) < sealed
    other = tmp_path / "other"
    kept_audit([store], other)
    assert counts(kept_audit([store], other, now_ms=LATER_MS + 7 * DAY_MS)) == (sealed + 1, 0)
    kept_audit([store], tmp_path / "for good")
    years = LATER_MS + 2000 * DAY_MS
    assert counts(kept_audit([store], tmp_path / "for good", now_ms=years, rescan_ms=0))[1] == sealed


def test_scans_of_the_future_are_not_believed(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    kept_audit([store], tmp_path / "keep")
    assert counts(kept_audit([store], tmp_path / "keep", now_ms=LATER_MS - 1))[1] == 0


def test_another_scanner_or_block_size_is_not_believed(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    reader, (task, *_) = opened(store, tmp_path / "keep")
    for _ in range(2):
        _, kept = parts(reader, task)
    assert kept.reused == 1
    *_, other = reader.scan(task, BLOCK_ENTRIES // 2)
    assert other == KeptRow("n0", task.start)
    assert parts(reader, task)[1].reused == 0, "those of the other size took its place"
    with monkeypatch.context() as older:
        older.setattr("dledger.audit.shipped_scans.SCAN_VERSION", 1)
        assert parts(reader, task)[1].reused == 0
        assert parts(reader, task)[1].reused == 1
    assert parts(reader, task)[1].reused == 0


def test_a_store_that_knows_less_to_be_committed_is_scanned(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    reader, (task, *_) = opened(store, tmp_path / "keep")
    parts(reader, task)
    assert task.next_first is not None
    assert parts(reader, replace(task, committed=task.next_first - 1))[1].reused == 1
    assert parts(reader, replace(task, committed=task.next_first - 2))[1].reused == 0


def test_stores_of_one_node_in_two_places_are_kept_apart(log: Log, tmp_path: Path) -> None:
    (one,) = write_group(log, tmp_path / "one", 1)
    (two,) = write_group(log, tmp_path / "two", 1)
    for _ in range(2):
        one_report, two_report = (kept_audit([store], tmp_path / "keep") for store in (one, two))
    assert counts(one_report) == counts(two_report) == (1, len(log.segments) - 1)


def test_what_is_kept_of_segments_that_are_gone_is_removed(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    kept_audit([store], tmp_path / "keep")
    before = find_scans(OsFiles(), str(tmp_path / "keep"))
    assert len(before) == len(log.segments) - 1
    min((store / "dledger-n0" / "data").iterdir()).unlink()
    kept_audit([store], tmp_path / "keep")
    assert find_scans(OsFiles(), str(tmp_path / "keep")) == before[1:]


# --- the files of the directory ---------------------------------------------------------------------


def test_a_damaged_file_is_passed_over(log: Log, tmp_path: Path) -> None:
    """Each 29th byte flipped, and cut short: rows are those of a scan, whatever is believed."""
    (store,) = write_group(log, tmp_path / "stores", 1)
    reader, (task, *_) = opened(store, tmp_path / "keep")
    rows, _ = parts(reader, task)
    (path,) = (tmp_path / "keep").rglob("rows.parquet")
    whole = path.read_bytes()
    assert parts(reader, task) == (rows, KeptRow("n0", task.start, reused=1))
    scanned = 0
    for at in range(0, len(whole), 29):
        image = bytearray(whole)
        image[at] ^= 0x10
        path.write_bytes(image)
        again, kept = parts(reader, task)
        assert again == rows, at
        scanned += 1 - kept.reused
    assert scanned > len(whole) / 29 / 2
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert parts(reader, task) == (rows, KeptRow("n0", task.start))
    assert path.read_bytes() == whole


class Dying(OsFiles):
    """Ends, as by a kill, before it renames a file for the n-th time."""

    def __init__(self, after: int) -> None:
        self.after = after

    def rename(self, old: str, new: str) -> None:
        self.after -= 1
        if self.after < 0:
            raise KeyboardInterrupt
        super().rename(old, new)


def test_a_kill_loses_nothing_but_work(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
        kept_audit([store], tmp_path / "keep", files=Dying(3))
    assert len(find_scans(OsFiles(), str(tmp_path / "keep"))) >= 3
    report = kept_audit([store], tmp_path / "keep")
    assert without(report) == audit([store])
    assert counts(report)[1] >= 3


class Full(OsFiles):
    def open(self, path: str, create: bool = False) -> OsFile:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_what_cannot_be_kept_is_said_and_changes_no_finding(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    report = kept_audit([store], tmp_path / "keep", files=Full())
    assert without(report) == audit([store])
    assert report.kept is not None
    assert (report.kept.scanned, report.kept.reused) == (len(log.segments), 0)
    assert all("No space left on device" in problem for problem in report.kept.problems)
    assert any(line.startswith("not kept: [Errno 28]") for line in report.lines())


def test_scans_are_kept_at_a_url(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    url = f"memory://{tmp_path.name}"
    files = FsspecFiles(url, writable=True)
    kept_audit([store], url, files=files)
    assert counts(kept_audit([store], url, files=files)) == (1, len(log.segments) - 1)


def test_objects_are_told_by_their_etag(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory has none, so that nothing is believed of it."""
    (store,) = write_group(log, tmp_path / "stores", 1)
    url = f"memory://{tmp_path.name}/n0"
    files = FsspecFiles(url, writable=True)
    for path in store.rglob("*"):
        if path.is_file():
            files.put(f"{url}/{path.relative_to(store)}", path.read_bytes())
    for _ in range(2):
        assert counts(kept_audit([url], tmp_path / "keep"))[1] == 0
    plain = MemoryFileSystem.ls

    def with_etags(self: MemoryFileSystem, path: str, detail: bool = True, **more: object) -> Any:
        return [
            {**info, "ETag": str(crc32(self.cat_file(info["name"])))} if info["type"] == "file" else info
            for info in plain(self, path, detail=True, **more)
        ]

    monkeypatch.setattr(MemoryFileSystem, "ls", with_etags)
    kept_audit([url], tmp_path / "keep")
    assert counts(kept_audit([url], tmp_path / "keep")) == (1, len(log.segments) - 1)
    flip(store, log.entries[700], 60)
    path = path_of(store, log)
    files.put(f"{url}/{path.relative_to(store)}", path.read_bytes())
    assert [found.code for found in kept_audit([url], tmp_path / "keep").findings] == ["BIT_ROT"]
    with pytest.raises(FileNotFoundError):
        files.stamp(f"{url}/nothing")


# --- the commands -----------------------------------------------------------------------------------


def aged(stores: list[Path]) -> list[str]:
    """As if the segments were of yesterday."""
    for path in (path for store in stores for path in store.glob("dledger-*/data/*")):
        os.utime(path, (path.stat().st_mtime - 86_400,) * 2)
    return list(map(str, stores))


def test_the_report_says_what_was_read(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = aged(write_group(log, tmp_path / "stores"))
    keep, page = str(tmp_path / "keep"), tmp_path / "page.html"
    total = 3 * len(log.segments)
    assert run(["compare", "--keep", keep, *stores]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f" scanned={total} reused=0")
    assert run(["compare", "--keep", keep, "--report", str(page), *stores]) == 0
    text = f"3 segments scanned, {total - 3} as scanned before"
    assert text in capsys.readouterr().out.splitlines()
    assert text in page.read_text()
    assert run(["compare", "--keep", keep, "--json", "--rescan-hours", "0", *stores]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kept"] == {"scanned": 3, "reused": total - 3, "problems": []}
    assert run(["compare", "--json", *stores]) == 0
    assert "kept" not in json.loads(capsys.readouterr().out)


def test_rows_of_a_report_say_what_was_read() -> None:
    report = Report([], -1, [], kept=Kept(3, 24, ()))
    assert report.records().rows[0][-1] == "3 segments scanned, 24 as scanned before"


def test_the_command_on_spark_without_spark_keeps_too(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = aged(write_group(log, tmp_path / "stores"))
    command = ["audit", "--engine", "local", "--json", "--keep", str(tmp_path / "keep")]
    for _ in range(2):
        assert spark_run([*command, *stores]) == 0
        result = json.loads(capsys.readouterr().out)
    assert (result["kept"]["scanned"], result["kept"]["reused"]) == (3, 3 * len(log.segments) - 3)
    assert spark_run([*command, "--digests", str(tmp_path)]) == 4
    assert "give either --keep or --digests" in capsys.readouterr().out


def test_wrong_options_are_told(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (store,) = write_group(log, tmp_path / "stores", 1)
    assert run(["verify", "--rescan-hours", "5", str(store)]) == 4
    assert "--rescan-hours needs --keep" in capsys.readouterr().out
    assert run(["verify", "--keep", str(store / "dledger-n0" / "identity"), str(store)]) == 4
    assert "--keep: " in capsys.readouterr().out
    assert run(["verify", "--keep", "s33://x", str(store)]) == 4
    assert "did you mean 's3'" in capsys.readouterr().out
    assert run(["verify", "--keep", str(tmp_path), "--rescan-hours", "-1", str(store)]) == 4
    assert "-1 is not in the range x>=0" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["verify", "--keep", str(tmp_path), str(store)]) == 4
    assert "pip install 'dledger[arrow]'" in capsys.readouterr().err
