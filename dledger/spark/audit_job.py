"""The audit of `dledger/audit/` as a Spark job: tasks run the same scan, and the driver draws the same
conclusions.

1. Scan: one task per replica and segment (`audit_source`). Executors merge what the tasks report about the
   segments of one queue, so only a few rows per segment and per queue are returned to the driver.
2. Compare: digests are merged and compared as a DataFrame. Only the numbers of the blocks that differ are
   returned.
3. Drill into those blocks: each task compares the entries of all replicas in some of the blocks. Only the
   indexes whose copies differ or are damaged are returned.

So Spark shuffles only digests, however much is damaged. `audit.compare.analyse` makes the report from
these rows, as it does for the audit without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dledger.audit.compare import analyse
from dledger.audit.defaults import LAG_WARNING_ENTRIES
from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.drilling import Drilling
from dledger.audit.findings import FlatRow, QueueRunRow, flatten, unflatten
from dledger.audit.queue_runs import merged
from dledger.audit.replicas import (
    Look,
    ReplicaSource,
    ReplicaView,
    StoreSource,
    claims_at,
    entry_of,
    look_at,
)
from dledger.audit.report import Report, failed
from dledger.audit.scan import EntryRow
from dledger.audit.store_directory import StoreError
from dledger.runtime import Files
from dledger.spark import columns
from dledger.spark.audit_source import NAME, AuditSource, drill_options, scan_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def audit_stores(
    spark: SparkSession,
    files: Files,
    paths: list[str],
    *,
    lag_warning: int = LAG_WARNING_ENTRIES,
    same_time: bool = False,
    block_entries: int = BLOCK_ENTRIES,
) -> Report:
    """Run `audit_sources` over store directories, which driver and executors reach under the same paths."""
    try:
        sources = [StoreSource.at(path, files) for path in paths]
    except StoreError as error:
        return failed(str(error))
    return audit_sources(
        spark, sources, lag_warning=lag_warning, same_time=same_time, block_entries=block_entries
    )


def audit_sources(
    spark: SparkSession,
    sources: Sequence[ReplicaSource],
    *,
    drill_sources: Sequence[ReplicaSource] | None = None,
    lag_warning: int = LAG_WARNING_ENTRIES,
    same_time: bool = False,
    block_entries: int = BLOCK_ENTRIES,
) -> Report:
    """Verify each replica, and compare the replicas with each other if there are several. Blocking.

    A part that cannot be read becomes a finding. If the Spark job fails, the report says so.
    `drill_sources`: where single entries are read if `sources` contain no entries. This is the case for
    shipped digests, whose replicas were scanned at different times. `same_time`: see
    `audit.local.audit_sources`.
    """
    try:
        # So a wrong path is reported in the same words as without Spark.
        claims = claims_at(sources)
        look = look_at(sources)
    except StoreError as error:
        return failed(str(error))
    spark.dataSource.register(AuditSource)
    try:
        return _audit(spark, look, drill_sources, claims, lag_warning, same_time, block_entries)
    except (PySparkException, Py4JError) as error:
        return failed(f"Spark: {error}", "CANNOT_RUN")


def _audit(
    spark: SparkSession,
    look: Look,
    drill_sources: Sequence[ReplicaSource] | None,
    claims: dict[str, int],
    lag_warning: int,
    same_time: bool,
    block_entries: int,
) -> Report:
    scan = _read(spark, scan_options(look, block_entries)).persist()
    try:
        gathered = scan.where(~F.col("kind").isin("block", "queue_run")).collect()
        rows = [unflatten(FlatRow(*row)) for row in gathered]
        rows += [unflatten(FlatRow(*row)) for row in whole_runs(scan).collect()]
        differing = [row[0] for row in differing_blocks(scan).collect()]

        def drill(replicas: Iterable[ReplicaView], ranges: list[tuple[int, int]]) -> Iterator[EntryRow]:
            for batch in _read(spark, drill_options(replicas, ranges)).toArrow().to_batches():
                yield from map(EntryRow._make, zip(*map(pa.Array.to_pylist, batch.columns), strict=True))

        drilling = None if drill_sources is None else Drilling(drill_sources, drill)
        report = analyse(
            rows,
            differing,
            drilling or partial(drill, look.replicas),
            block_entries=block_entries,
            lag_warning=lag_warning,
            same_time=same_time,
            shipped=drilling is not None,
            claims=claims,
            read_entry=drilling.entry if drilling else partial(entry_of, look.replicas),
        )
        return drilling.completed(report) if drilling else report
    finally:
        scan.unpersist()


def _read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format(NAME).options(**options).load()


def whole_runs(scan: DataFrame) -> DataFrame:
    """Return the rows about queues, merged over the whole log: one row for each queue, plus one row for
    each gap in the queue."""
    runs = scan.where(F.col("kind") == "queue_run").repartition("replica", "code")
    return runs.sortWithinPartitions("replica", "code", "segment").mapInArrow(_merged_runs, scan.schema)


def _merged_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort rows about queues by queue and segment, and merge neighbours into one row. This runs on an
    executor."""
    rows = (FlatRow(*row.values()) for batch in batches for row in batch.to_pylist())
    runs = (run for row in rows if isinstance(run := unflatten(row), QueueRunRow))
    return columns.batches(columns.SCAN, map(flatten, merged(runs)))


def differing_blocks(scan: DataFrame) -> DataFrame:
    """Return one column: the numbers of the blocks in which the digests of two replicas differ. The parts
    of a block that lie in several segments are merged before the comparison."""
    merged = (
        scan.where(F.col("kind") == "block")
        .groupBy(F.col("first_index").alias("block"), "replica")
        .agg(
            F.sum("entries").alias("entries"),
            F.bit_xor("mix_a").alias("mix_a"),
            F.bit_xor("mix_b").alias("mix_b"),
        )
    )
    contents = F.count_distinct("entries", "mix_a", "mix_b").alias("contents")
    return merged.groupBy("block").agg(contents).where("contents > 1").select("block")
