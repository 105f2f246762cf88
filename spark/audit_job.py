"""The audit of `audit/` as a Spark job: the same scan in tasks, the same judgement on the driver.

1. View `scan`: one task per replica and segment; few rows come back.
2. Digests are merged and compared as a DataFrame; only the numbers of differing blocks come back.
3. View `entries` for those blocks; only indexes whose copies differ or are damaged come back.

`audit.compare.analyse` makes the report from that, as it does for the engine without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from audit.compare import LAG_WARNING_ENTRIES, analyse
from audit.digests import BLOCK_ENTRIES
from audit.findings import FlatRow, unflatten
from audit.layout import StoreError, open_stores
from audit.report import Report, failed
from audit.scan import EntryRow
from audit.walk import BODY_DAMAGED, UNREADABLE
from runtime import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONTENT = ("term", "size", "channel", "crc")


def audit_stores(
    spark: SparkSession,
    files: Files,
    paths: list[str],
    *,
    lag_warning: int = LAG_WARNING_ENTRIES,
    block_entries: int = BLOCK_ENTRIES,
) -> Report:
    """Verify each store, and compare them when there are several. Blocking; needs a session with the source.

    What cannot be read is a finding; a job that fails is a report that says so.
    """
    try:
        open_stores(files, paths)  # the same words for a wrong path as without Spark, and before any job
    except StoreError as error:
        return failed(str(error))
    try:
        return _audit(spark, paths, lag_warning, block_entries)
    except (PySparkException, Py4JError) as error:
        return failed(f"Spark: {error}", "CANNOT_RUN")


def _audit(spark: SparkSession, paths: list[str], lag_warning: int, block_entries: int) -> Report:
    scan = _read(spark, paths, view="scan", blockRows=str(block_entries)).persist()
    try:
        rows = [unflatten(FlatRow(*row)) for row in scan.where(F.col("kind") != "block").collect()]
        differing = [row[0] for row in differing_blocks(scan).collect()]

        def drill(ranges: list[tuple[int, int]]) -> Iterator[EntryRow]:
            for row in differing_entries(spark, paths, ranges).toLocalIterator():
                yield EntryRow(*row)

        return analyse(rows, differing, drill, block_entries=block_entries, lag_warning=lag_warning)
    finally:
        scan.unpersist()


def _read(spark: SparkSession, paths: list[str], **options: str) -> DataFrame:
    return spark.read.format("dledger").options(path=json.dumps(paths), **options).load()


def differing_blocks(scan: DataFrame) -> DataFrame:
    """One column: blocks on which the digests of two holders disagree. Parts of a block are merged first."""
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


def differing_entries(spark: SparkSession, paths: list[str], ranges: list[tuple[int, int]]) -> DataFrame:
    """`EntryRow`s of the indexes whose copies differ in content, or of which one is damaged."""
    entries = _read(
        spark,
        paths,
        view="entries",
        isolation="all",
        corruptRecords="include",
        indexRanges=json.dumps(ranges),
    )
    copies = entries.groupBy("index").agg(
        F.count_distinct(*_CONTENT).alias("contents"),
        F.bit_or("damage").alias("damages"),
        F.collect_list(F.struct("replica", *_CONTENT, "damage")).alias("copies"),
    )
    suspect = copies.where(
        (F.col("contents") > 1) | (F.col("damages").bitwiseAND(BODY_DAMAGED | UNREADABLE) != 0)
    )
    return suspect.select("index", F.explode("copies").alias("copy")).select(
        "copy.replica", "index", *(f"copy.{name}" for name in _CONTENT), "copy.damage"
    )
