"""Audits on Spark of what is not simply there: digests that brokers shipped, segments that go meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.audit.findings import Severity
from dledger.audit.replicas import StoreSource
from dledger.audit.shipped import ShippedSource
from dledger.runtime.env import Env, production_env
from dledger.runtime.files import OsFiles
from tests.audit.faults import by_names
from tests.audit.store_builder import SEGMENT_SIZE, Log, sample_log, segment_path, write_group
from tests.audit.test_audit_shipped import Clock, directories, from_digests, ship
from tests.spark.live_kit import live_group
from tests.spark.retiring import Retiring
from tests.spark.test_live_replicas import comparable, source
from tests.spark.test_spark_command import spark_audit

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture
def env() -> Iterator[Env]:
    made = replace(production_env("test"), wall=Clock())
    yield made
    made.workers.close()


MIXES = (
    (),
    ("flipped body byte", "rewritten committed entry", "wrong ConsumeQueue unit"),
    ("rot and a deleted segment", "wrong index unit"),
)


@pytest.mark.parametrize("names", MIXES, ids=lambda names: names[0] if names else "clean")
def test_shipped_digests_are_audited_alike(
    spark: Any,
    names: tuple[str, ...],
    log: Log,
    env: Env,
    tmp_path: Path,
) -> None:
    from dledger.spark.audit_job import audit_sources

    stores = write_group(log, tmp_path)
    for fault in by_names(*names):
        fault.inject(stores, log)
    shared = tmp_path / "shared"
    ship(env, stores, shared)
    shipped = ShippedSource(str(shared), "g0", OsFiles())
    for drill in (directories(stores), []):
        local = from_digests(env, shared, drill)
        assert audit_sources(spark, [shipped], drill_sources=drill).as_json() == local.as_json()
        assert bool(local.findings) == bool(names)


def test_the_command_audits_digests_on_spark(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    next(by_names("rewritten committed entry")).inject(stores, log)
    ship(env, stores, tmp_path / "shared")
    arguments = ["--json", "--digests", str(tmp_path / "shared"), "--max-age", "1000000000"]
    done = spark_audit(*arguments, *map(str, stores))
    assert done.returncode == 3, done.stderr
    found = {item["code"] for item in json.loads(done.stdout)["findings"]}
    assert found == {"CHAIN_BREAK", "DIVERGENT_COMMITTED"}


@pytest.mark.parametrize("live", [False, True], ids=["stores", "brokers"])
def test_segments_that_retention_removes_meanwhile_are_no_damage(
    spark: Any, live: bool, log: Log, tmp_path: Path
) -> None:
    from dledger.spark.audit_job import audit_sources

    stores = write_group(log, tmp_path)
    doomed = {
        number: tuple(str(segment_path(stores[number], start)) for start in range(0, end, SEGMENT_SIZE))
        for number, end in ((0, 3 * SEGMENT_SIZE), (2, 2 * SEGMENT_SIZE))
    }
    gone = tuple(path for paths in doomed.values() for path in paths)
    with live_group(stores) as group:
        if live:
            sources: list[Any] = [Retiring(source(group), gone)]
        else:
            sources = [
                Retiring(
                    StoreSource(str(store), OsFiles()),
                    doomed.get(number, ()),
                )
                for number, store in enumerate(stores)
            ]
        report = audit_sources(spark, sources)
    assert not any(Path(path).exists() for path in gone)
    assert {found.code for found in report.findings} == {"RETIRED", "RETENTION"}
    assert max(found.severity for found in report.findings) == Severity.INFO
    assert report.exit_code == 0 and comparable(report)["verdict"] == "clean"
    lost = sum(entry.pos < 3 * SEGMENT_SIZE for entry in log.entries)
    lost += sum(entry.pos < 2 * SEGMENT_SIZE for entry in log.entries)
    assert report.entries == 3 * len(log.entries) - lost
