"""DataSource `dledger-audit`: what the audit job reads. Not for users: its options are made by `audit_job`.

* view `scan`   rows of the audit (`audit.findings.FlatRow`) of all replicas of the sources. Damage, and what
                cannot be looked at, are rows, never an exception.
* view `drill`  `audit.scan.EntryRow`s of the index ranges given: of each index whose copies differ, or of
                which one is damaged.

A task scans one segment, or several small ones; or it drills, and compares what all replicas hold of a few
index ranges, so that entries are not shuffled. Replicas describe themselves when the read is planned.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.replicas import ReplicaSource, look_at, overlap
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
"""Indexes that one task compares: it holds their entries of all replicas, without bodies."""

DRILL = (
    ("replica", "string"),
    ("index", "bigint"),
    ("term", "bigint"),
    ("size", "int"),
    ("channel", "bigint"),
    ("crc", "bigint"),
    ("damage", "int"),
)
"""`audit.scan.EntryRow`."""


def scan_options(sources: Sequence[ReplicaSource], block_entries: int = BLOCK_ENTRIES) -> dict[str, str]:
    """Options of the view `scan`."""
    return {"view": "scan", "sources": _packed(sources), "block": str(block_entries)}


def drill_options(
    sources: Sequence[ReplicaSource], ranges: Ranges, *, first_of_name: bool = False
) -> dict[str, str]:
    """Options of the view `drill`. `ranges`: inclusive, ascending; `first_of_name`: see `look_at`."""
    options = {"view": "drill", "sources": _packed(sources), "ranges": json.dumps(ranges)}
    return {**options, "first": "true"} if first_of_name else options


def _packed(sources: Sequence[ReplicaSource]) -> str:
    return base64.b64encode(pickle.dumps(tuple(sources))).decode()


class AuditSource(DataSource):
    """Entry point for Spark. audit.layout.StoreError for a wrong place."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.ddl(_view_columns(self.options["view"]))

    def reader(self, schema: object) -> DataSourceReader:
        return AuditReader(dict(self.options))


class AuditReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        look = look_at(
            pickle.loads(base64.b64decode(self._options["sources"])),
            first_of_name="first" in self._options,
        )
        segments = [(replica.reader, task) for replica in look.replicas for task in replica.tasks()]
        if self._options["view"] == "drill":
            ranges = [(first, last) for first, last in json.loads(self._options["ranges"])]
            return [
                DrillPack(parts)
                for some in shares(ranges, DRILL_INDEXES)
                if (
                    parts := tuple(
                        SegmentPart(reader, task, tuple(wanted))
                        for reader, task in segments
                        if (wanted := overlap(task, some))
                    )
                )
            ]
        scans: list[ScanPart] = [FoundPart(look.findings)]
        scans += [SidePart(replica) for replica in look.replicas]
        scans += [SegmentPart(reader, task) for reader, task in segments]
        limit = task_bytes(sum(task.size for _, task in segments))
        return [ScanPack(parts, int(self._options["block"])) for parts in pack(scans, limit)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # Spark's stand-in for an empty plan
        if not isinstance(partition, ScanPack | DrillPack):
            raise TypeError(f"{type(partition).__name__} is no partition of this source")
        return columns.batches(_view_columns(self._options["view"]), partition.rows())


def _view_columns(view: str) -> columns.Columns:
    return columns.SCAN if view == "scan" else DRILL
