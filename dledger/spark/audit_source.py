"""Data source `dledger-audit`: what the audit job reads. Not for users, as `audit_job` makes its options.

* view `scan`: rows of the audit (`audit.findings.FlatRow`) for all replicas of the sources. Damage, and
  parts that cannot be read, are reported as rows, never as an exception.
* view `drill`: `audit.scan.EntryRow`s for each index, in the index ranges given, whose copies differ or of
  which one copy is damaged.

A scan task reads one segment, or several small ones. A drill task compares the copies of all replicas for
a few index ranges, so that entries are not shuffled. Tasks do not list the stores: `audit_job` lists them
once, and passes the result to the tasks in the options.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.replicas import Look, ReplicaView, overlap
from dledger.spark import columns
from dledger.spark.parts import (
    DrillPack,
    FoundPart,
    Ranges,
    ScanPack,
    ScanPart,
    SegmentPart,
    SidePart,
    pack,
    shares,
    task_bytes,
)

NAME = "dledger-audit"
DRILL_INDEXES = 8 * 1024
"""Largest number of indexes that one task compares. The task holds the entries of all replicas for them,
without bodies."""

DRILL = (
    ("replica", "string"),
    ("index", "bigint"),
    ("term", "bigint"),
    ("size", "int"),
    ("channel", "bigint"),
    ("crc", "bigint"),
    ("damage", "int"),
)
"""The columns of `audit.scan.EntryRow`."""


def scan_options(look: Look, block_entries: int = BLOCK_ENTRIES) -> dict[str, str]:
    """Return the options of the view `scan` for the replicas in `look`, the result of listing the stores."""
    return {"view": "scan", "look": _packed(look), "block": str(block_entries)}


def drill_options(replicas: Iterable[ReplicaView], ranges: Ranges) -> dict[str, str]:
    """Return the options of the view `drill`. `ranges`: inclusive index ranges, ascending."""
    return {"view": "drill", "look": _packed(Look(tuple(replicas))), "ranges": json.dumps(ranges)}


def _packed(look: Look) -> str:
    """Pack the listing of the stores into a text. The segments in it are similar, so it compresses well:
    100,000 segments take some 400 KB."""
    return base64.b64encode(zlib.compress(pickle.dumps(look))).decode()


def _unpacked(text: str) -> Look:
    look = pickle.loads(zlib.decompress(base64.b64decode(text)))
    assert isinstance(look, Look)
    return look


class AuditSource(DataSource):
    """The data source as Spark creates it. Raises audit.store_directory.StoreError if a path cannot be
    read."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.ddl(_view_columns(self.options["view"]))

    def reader(self, schema: object) -> DataSourceReader:
        return AuditReader(dict(self.options))


class AuditReader(DataSourceReader):
    """Reader of a view of the audit: it plans tasks on the driver, and reads rows on executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        look = _unpacked(self._options["look"])
        segments = [
            SegmentPart(reader, task, applied=applied)
            for replica in look.replicas
            for reader, applied in [(replica.reader, replica.row().applied)]
            for task in replica.tasks()
        ]
        if self._options["view"] == "drill":
            ranges = [(first, last) for first, last in json.loads(self._options["ranges"])]
            return [
                DrillPack(parts)
                for some in shares(ranges, DRILL_INDEXES)
                if (
                    parts := tuple(
                        replace(part, ranges=tuple(wanted))
                        for part in segments
                        if (wanted := overlap(part.task, some))
                    )
                )
            ]
        scans: list[ScanPart] = [FoundPart(look.findings)]
        scans += [SidePart(replica) for replica in look.replicas]
        scans += segments
        limit = task_bytes(sum(part.size for part in segments))
        block_entries = int(self._options["block"])
        return [ScanPack(parts, block_entries, merged=True) for parts in pack(scans, limit)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # Spark's stand-in for an empty plan
        if not isinstance(partition, ScanPack | DrillPack):
            raise TypeError(f"{type(partition).__name__} is not a partition of this source")
        return columns.batches(_view_columns(self._options["view"]), partition.rows())


def _view_columns(view: str) -> columns.Columns:
    return columns.SCAN if view == "scan" else DRILL
