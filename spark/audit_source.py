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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import Finding, flatten
from dledger.audit.layout import SegmentTask
from dledger.audit.replicas import ReplicaSource, ReplicaView, SegmentReader, look_at, overlap
from dledger.audit.scan import EntryRow
from dledger.audit.walk import BODY_DAMAGED, UNREADABLE
from dledger.spark import columns

NAME = "dledger-audit"
PACK_BYTES = 64 * 1024 * 1024
"""Bytes of segments that one task reads; a larger segment has a task of its own."""
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

Ranges = Sequence[tuple[int, int]]
Row = tuple[object, ...]


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


@dataclass(frozen=True)
class SegmentPart:
    """One segment to scan, or to drill in `ranges`."""

    reader: SegmentReader
    task: SegmentTask
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        return self.task.size

    def scan(self, block_entries: int) -> Iterator[Row]:
        return (flatten(row) for row in self.reader.scan(self.task, block_entries))

    def drill(self) -> Iterator[EntryRow]:
        return self.reader.drill(self.task, self.ranges)


@dataclass(frozen=True)
class SidePart:
    """What a replica has beside its segments."""

    replica: ReplicaView
    size: int = 0

    def scan(self, block_entries: int) -> Iterator[Row]:
        return (flatten(row) for row in self.replica.side())


@dataclass(frozen=True)
class FoundPart:
    """What was found when the sources were looked at."""

    findings: tuple[Finding, ...]
    size: int = 0

    def scan(self, block_entries: int) -> Iterator[Row]:
        return (flatten(found) for found in self.findings)


ScanPart = SegmentPart | SidePart | FoundPart


class Part(Protocol):
    """Some of the work of a task."""

    @property
    def size(self) -> int:
        """Bytes of segments that it reads."""


P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class ScanPack(InputPartition):
    """Parts that one task scans one after another: a task costs more than a small segment."""

    parts: tuple[ScanPart, ...]
    block_entries: int

    def rows(self) -> Iterator[Row]:
        return (row for part in self.parts for row in part.scan(self.block_entries))


@dataclass(frozen=True)
class DrillPack(InputPartition):
    """The same index ranges of all replicas."""

    parts: tuple[SegmentPart, ...]

    def rows(self) -> Iterator[Row]:
        copies: dict[int, list[EntryRow]] = {}
        for part in self.parts:
            for row in part.drill():
                copies.setdefault(row.index, []).append(row)
        return (row for index in sorted(copies) if _suspect(copies[index]) for row in copies[index])


def _suspect(copies: list[EntryRow]) -> bool:
    """Whether they differ in content, or one of them is damaged."""
    if any(copy.damage & (BODY_DAMAGED | UNREADABLE) for copy in copies):
        return True
    one = copies[0]
    content = (one.term, one.size, one.channel, one.crc)
    return any((copy.term, copy.size, copy.channel, copy.crc) != content for copy in copies)


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
        return [ScanPack(parts, int(self._options["block"])) for parts in pack(scans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # Spark's stand-in for an empty plan
        if not isinstance(partition, ScanPack | DrillPack):
            raise TypeError(f"{type(partition).__name__} is no partition of this source")
        return columns.batches(_view_columns(self._options["view"]), partition.rows())


def _view_columns(view: str) -> columns.Columns:
    return columns.SCAN if view == "scan" else DRILL


def shares(ranges: Ranges, most: int) -> Iterator[list[tuple[int, int]]]:
    """The ranges (inclusive, ascending), divided so that each share has at most so many indexes."""
    share: list[tuple[int, int]] = []
    room = most
    for first, last in ranges:
        while first <= last:
            end = min(last, first + room - 1)
            share.append((first, end))
            room -= end - first + 1
            first = end + 1
            if not room:
                yield share
                share, room = [], most
    if share:
        yield share


def pack(parts: Iterable[P], limit: int = PACK_BYTES) -> Iterator[tuple[P, ...]]:
    """Neighbours together, up to `limit` bytes of segments a task."""
    pending: list[P] = []
    size = 0
    for part in parts:
        if pending and size + part.size > limit:
            yield tuple(pending)
            pending, size = [], 0
        pending.append(part)
        size += part.size
    if pending:
        yield tuple(pending)
