"""`--keep` over live brokers: they read each sealed segment once, and the report is that of a full audit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dledger.audit.kept import Keep
from dledger.audit.replicas import ReplicaSource
from dledger.audit.report import Report
from dledger.client.bulk.replicas import AuditOptions, ReplicaClient
from dledger.remoting.codes import RequestCode
from dledger.runtime import File
from dledger.runtime.files import OsFile, OsFiles
from tests.audit.faults import by_names
from tests.audit.store_builder import Log, sample_log, segment_path, write_group
from tests.audit.test_audit_kept import aged, counts, path_of
from tests.command_line import spark as spark_run
from tests.spark.live_kit import AuditBroker, LiveGroup, live_group
from tests.spark.test_live_replicas import run, source

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


class Metered(OsFiles):
    """Counts the bytes that are read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, int] = {}

    def open_read(self, path: str) -> File:
        file, read = super().open_read(path), self.read

        class Counted(OsFile):
            def pread(self, length: int, offset: int) -> bytes:
                data = super().pread(length, offset)
                read[path] = read.get(path, 0) + len(data)
                return data

        assert isinstance(file, OsFile)
        file.__class__ = Counted
        return file

    def of_segments(self) -> dict[str, int]:
        """Bytes read of each segment since the last call, by its name."""
        found = {path.rpartition("/")[2]: count for path, count in self.read.items() if "/data/" in path}
        self.read.clear()
        return found


def metered(broker: AuditBroker) -> Metered:
    disk = broker.jobs.files._files = Metered()
    return disk


def kept(group: LiveGroup, root: Path, now_ms: int | None = None) -> ReplicaSource:
    now = group.env.wall.now_ms() if now_ms is None else now_ms
    # With patience: one try that fails on a busy machine is one segment that is not kept.
    patient = replace(source(group), options=AuditOptions())
    return Keep(str(root), OsFiles(), now, 7 * 24 * HOUR_MS).source(patient)


def same(one: Report, other: Report) -> bool:
    return replace(one, kept=None, seconds=0.0) == replace(other, kept=None, seconds=0.0)


def test_a_broker_reads_its_sealed_segments_once(log: Log, tmp_path: Path) -> None:
    stores = aged(write_group(log, tmp_path / "stores"))
    sealed = len(log.segments) - 1
    with live_group([Path(store) for store in stores]) as group:
        disks = [metered(broker) for broker in group.brokers]
        full = run(source(group))
        whole = [disk.of_segments() for disk in disks]
        first = run(kept(group, tmp_path / "keep"))
        assert counts(first) == (3 * len(log.segments), 0)
        assert [disk.of_segments().keys() for disk in disks] == [read.keys() for read in whole]
        second = run(kept(group, tmp_path / "keep"))
        assert counts(second) == (3, 3 * sealed)
        newest = max(whole[0])
        for disk, before in zip(disks, whole, strict=True):
            again = disk.of_segments()
            assert again[newest] == before[newest]
            del again[newest]
            assert max(again.values()) <= 200, "more than the head of a sealed segment was read"
        assert same(full, first) and same(full, second)
        assert full.exit_code == 0


@pytest.mark.parametrize(
    "name",
    [
        "rewritten committed entry",
        "deleted segment",
        "wrong index unit",
        "wrong ConsumeQueue unit",
        "dangling ConsumeQueue unit",
        "unreadable segment",
    ],
)
@pytest.mark.sample(3)
def test_findings_are_those_of_a_full_audit(name: str, log: Log, tmp_path: Path) -> None:
    stores = [Path(store) for store in aged(write_group(log, tmp_path / "stores"))]
    with live_group(stores) as group:
        run(kept(group, tmp_path / "keep"))
        (fault,) = by_names(name)
        fault.inject(stores, log)
        full = run(source(group))
        for _ in range(2):
            report = run(kept(group, tmp_path / "keep"))
            assert same(report, full)
            assert report.kept is not None and report.kept.reused > 0
        assert report.exit_code == fault.exit_code


def test_a_segment_that_changed_by_the_brokers_clock_is_not_kept(log: Log, tmp_path: Path) -> None:
    """Whatever the auditor's clock says."""
    stores = [Path(store) for store in aged(write_group(log, tmp_path / "stores", 1))]
    path_of(stores[0], log).touch()
    sealed = len(log.segments) - 1
    with live_group(stores) as group:
        later = group.env.wall.now_ms() + HOUR_MS
        run(kept(group, tmp_path / "keep", later))
        assert counts(run(kept(group, tmp_path / "keep", later)))[1] in (sealed - 1, sealed)  # slow machine
        assert group.brokers[0].asked[RequestCode.AUDIT_STAMP] >= 2 * sealed


def test_a_broker_that_knows_no_stamps_is_audited_and_that_is_said(log: Log, tmp_path: Path) -> None:
    stores = [Path(store) for store in aged(write_group(log, tmp_path / "stores", 1))]
    with live_group(stores) as group:
        del group.brokers[0].server.handlers[RequestCode.AUDIT_STAMP]
        report = run(kept(group, tmp_path / "keep"))
        assert same(report, run(source(group)))
    assert report.exit_code == 0
    assert report.kept is not None
    (problem,) = report.kept.problems
    assert "28006" in problem


def test_what_is_asked_for_must_be_of_the_segment(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path, 1)
    with live_group(stores) as group:
        (view,) = source(group).look().replicas
        description = view.reader.description  # type: ignore[attr-defined]
        with ReplicaClient(group.brokers[0].address) as client:
            for queue in (("../secret", 0, 0, 9), ("..", 0, 0, 9), ("a", 0, 9, 3), ("a", 0, 0, 1 << 40)):
                with pytest.raises(Exception, match="29 INVALID_PARAMETER"):
                    list(client.stamp(description, 0, [queue]))
            with pytest.raises(Exception, match="29 INVALID_PARAMETER"):
                list(client.stamp(description, 0, ["x"]))  # type: ignore[list-item]


def test_a_segment_retired_in_between_is_no_problem(log: Log, tmp_path: Path) -> None:
    stores = [Path(store) for store in aged(write_group(log, tmp_path / "stores", 1))]
    with live_group(stores) as group:
        (view,) = kept(group, tmp_path / "keep").look().replicas
        segment_path(stores[0], 0).unlink()
        *rows, last = view.reader.scan(view.tasks()[0])
    assert [row.code for row in rows if hasattr(row, "code")] == ["RETIRED"]
    assert last.reused == 0  # type: ignore[union-attr]


def test_the_command_keeps_scans_of_brokers(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [Path(store) for store in aged(write_group(log, tmp_path / "stores"))]
    with live_group(stores) as group:
        command = ["audit", "--engine", "local", "--json", "--keep", str(tmp_path / "keep")]
        command += ["--namesrv", group.namesrv]
        for _ in range(2):
            assert spark_run(command) == 0
            told = json.loads(capsys.readouterr().out)
        assert (told["kept"]["scanned"], told["kept"]["reused"]) == (3, 3 * len(log.segments) - 3)
        assert spark_run([*command, "--max-age", "9"]) == 4
        assert "give either --keep or --max-age" in capsys.readouterr().out
