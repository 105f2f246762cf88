"""Three ways to one report: directories in this process, live brokers, live brokers through Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dledger.audit.kept import Keep
from dledger.audit.replicas import StoreSource
from dledger.audit.report import Kept
from dledger.runtime.files import OsFiles
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import Log, sample_log, write_group
from tests.audit.test_audit_kept import aged
from tests.spark.live_kit import live_group
from tests.spark.test_live_replicas import comparable, run, source

pytestmark = pytest.mark.spark

MIXES = (
    (),
    ("flipped body byte", "rewritten committed entry", "wrong ConsumeQueue unit", "poisoned"),
    ("rot and a deleted segment", "wrong index unit", "lagging ConsumeQueue"),
    ("uncommitted tail of another term", "flipped magic", "unreadable segment"),
)


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.mark.smoke
@pytest.mark.parametrize("names", MIXES, ids=lambda names: names[0] if names else "clean")
def test_local_live_and_spark_agree(spark: Any, names: tuple[str, ...], log: Log, tmp_path: Path) -> None:
    from dledger.spark.audit_job import audit_sources

    stores = write_group(log, tmp_path)
    for fault in by_names(*names):
        fault.inject(stores, log)
    with live_group(stores) as group:
        distributed = audit_sources(spark, [source(group)])
        live = run(source(group))
    local = audit(stores)
    assert comparable(distributed) == comparable(live) == comparable(local)
    assert bool(local.findings) == bool(names)


def test_a_broker_down_and_a_directory_in_its_place(spark: Any, log: Log, tmp_path: Path) -> None:
    from dledger.spark.audit_job import audit_sources

    stores = write_group(log, tmp_path)
    next(by_names("flipped body byte")).inject(stores, log)
    with live_group(stores) as group:
        group.stop(0)
        down = audit_sources(spark, [source(group)])
        mixed = audit_sources(spark, [source(group), StoreSource(str(stores[0]), OsFiles())])
        assert comparable(down) == comparable(run(source(group)))
    assert (down.exit_code, [found.code for found in down.findings]) == (4, ["UNREACHABLE"])
    assert comparable(mixed) == comparable(audit(stores))


def test_scans_of_brokers_are_kept(spark: Any, log: Log, tmp_path: Path) -> None:
    """By executors, for either engine."""
    from dledger.spark.audit_job import audit_sources

    stores = [Path(store) for store in aged(write_group(log, tmp_path / "stores"))]
    total = 3 * len(log.segments)
    with live_group(stores) as group:
        keep = Keep(str(tmp_path / "keep"), OsFiles(), group.env.wall.now_ms(), 0)
        first, second = (audit_sources(spark, [keep.source(source(group))]) for _ in range(2))
        third = run(keep.source(source(group)))
    assert first.kept == Kept(total, 0, ())
    assert second.kept == third.kept == Kept(3, total - 3, ())
    assert comparable(replace(second, kept=None)) == comparable(audit(stores))
