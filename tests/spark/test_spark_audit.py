"""Both engines give the same report, for clean stores and for every kind of fault."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.kept import Keep
from dledger.audit.replicas import StoreSource
from dledger.audit.report import Kept
from dledger.bench.big_store import write_big_group
from dledger.bench.spark_audit import audits, damaged_copy
from dledger.runtime.files import OsFiles
from tests.audit.apache_store import apache_log, write_apache_group
from tests.audit.broker_faults import BROKER_FAULTS, BrokerFault
from tests.audit.broker_store import BrokerLog, broker_log, write_broker_group
from tests.audit.engine import audit
from tests.audit.faults import FAULTS, by_names
from tests.audit.store_builder import Log, sample_log, write_group

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture(scope="module")
def broker() -> BrokerLog:
    return broker_log()


def both(
    spark: Any, stores: list[Path], *, same_time: bool = False
) -> tuple[dict[str, object], dict[str, object]]:
    from dledger.spark.audit_job import audit_stores

    paths = [str(store) for store in stores]
    distributed = audit_stores(spark, OsFiles(), paths, same_time=same_time)
    return distributed.as_json(), audit(stores, same_time=same_time).as_json()


@pytest.mark.smoke
def test_clean_stores_are_clean(spark: Any, log: Log, tmp_path: Path) -> None:
    ours, local = both(spark, write_group(log, tmp_path))
    assert ours == local
    assert (ours["verdict"], ours["exit_code"], ours["findings"]) == ("clean", 0, [])
    assert ours["compared_up_to"] == len(log.entries) - 1
    assert ours["entries"] == 3 * len(log.entries)


# Together they go through every row kind and every branch that Spark has a part in; the codes of single
# faults are judged in tests/audit.
MIXES = (
    ("flipped body byte", "rewritten committed entry", "wrong ConsumeQueue unit", "poisoned"),
    ("rot and a deleted segment", "wrong index unit", "lagging ConsumeQueue"),
    ("flipped kind", "flipped first header of a segment", "torn tail"),
    ("uncommitted tail of another term", "flipped magic", "lost ConsumeQueues"),
    ("the same flip everywhere", "unreadable segment"),
)


@pytest.mark.smoke
@pytest.mark.parametrize("names", MIXES, ids=lambda names: names[0])
def test_faults_are_reported_alike(spark: Any, names: tuple[str, ...], log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    faults = list(by_names(*names))
    assert len(faults) == len(names)
    for fault in faults:
        fault.inject(stores, log)
    ours, local = both(spark, stores)
    assert ours == local
    found = {str(item["code"]) for item in ours["findings"]}  # type: ignore[attr-defined]
    assert found.issuperset(code for fault in faults for code in fault.codes)


def test_derived_files_and_members_are_compared_alike(spark: Any, log: Log, tmp_path: Path) -> None:
    stores = write_apache_group(apache_log(), tmp_path / "apaches")
    shutil.rmtree(stores[0] / "index")
    max((stores[1] / "index").iterdir()).unlink()
    shutil.rmtree(stores[2] / "consumequeue")
    ours, local = both(spark, stores)
    assert ours == local
    found = [(item["code"], item["replica"]) for item in ours["findings"]]  # type: ignore[attr-defined]
    assert found == [("KEY_BEHIND", "n0"), ("KEY_BEHIND", "n1"), ("QUEUE_BEHIND", "n2")]
    ours, local = both(spark, write_group(log, tmp_path / "ours")[:2])
    assert ours == local
    assert [item["code"] for item in ours["findings"]] == ["NOT_AUDITED"]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_each_fault_is_reported_alike(spark: Any, fault: Any, log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    fault.inject(stores, log)
    ours, local = both(spark, stores)
    assert ours == local
    assert ours["exit_code"] == fault.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKER_FAULTS, ids=str)
def test_each_fault_of_a_broker_is_reported_alike(
    spark: Any, fault: BrokerFault, broker: BrokerLog, tmp_path: Path
) -> None:
    stores = write_broker_group(broker, tmp_path)
    fault.inject(stores, broker)
    ours, local = both(spark, stores, same_time=fault.same_time)
    assert ours == local
    assert ours["exit_code"] == fault.exit_code


def test_scans_are_kept_for_the_next_audit(spark: Any, log: Log, tmp_path: Path) -> None:
    """By executors, for either engine; and what changed since is found."""
    from dledger.spark.audit_job import audit_sources

    stores = write_group(log, tmp_path / "stores")
    keep = Keep(str(tmp_path / "keep"), OsFiles(), 4_000_000_000_000, 7 * 24 * 3_600_000)
    sources = [keep.source(StoreSource.at(str(store))) for store in stores]
    total = 3 * len(log.segments)
    seen = []
    for _ in range(2):
        report = audit_sources(spark, sources)
        assert replace(report, kept=None) == audit(stores)
        seen.append(report.kept)
    assert seen == [Kept(total, 0, ()), Kept(3, total - 3, ())]
    for fault in by_names("rewritten committed entry", "wrong ConsumeQueue unit"):
        fault.inject(stores, log)
    full = audit(stores)
    for _ in range(2):
        report = audit_sources(spark, sources)
        assert replace(report, kept=None) == full
    assert full.exit_code == 3
    assert report.kept is not None
    assert 3 < report.kept.scanned < total / 2


def test_a_wrong_path_is_told_without_a_job(spark: Any, tmp_path: Path) -> None:
    from dledger.spark.audit_job import audit_stores

    report = audit_stores(spark, OsFiles(), [str(tmp_path / "nothing")])
    assert report.exit_code == 4
    assert "no such directory" in report.findings[0].detail


def test_what_is_shuffled_is_digests_and_a_row_of_each_queue_whatever_is_damaged(
    spark: Any, tmp_path: Path
) -> None:
    stores, log = write_big_group(tmp_path / "stores", 30_000_000, segment_size=1 << 20, body=300)
    _, clean, report = audits(spark, stores, 1)
    assert report.findings == []
    blocks = log.last // BLOCK_ENTRIES + 1  # a task holds all segments of a replica
    assert 0 < clean < 64 * 3 * (blocks + len(log.queues))
    for count in (1, 30):
        damaged = damaged_copy(stores[0], tmp_path / f"damaged{count}" / "n0", count)
        _, shuffled, report = audits(spark, [damaged, *stores[1:]], 1)
        assert [found.code for found in report.findings] == ["BIT_ROT"] * count
        assert shuffled < clean * 1.5
