"""DataSource `dledger`: store directories as DataFrames.

`spark.read.format("dledger").option("path", STORE).load()`; options in `options`, columns in `columns`.

* `messages`  user messages, committed only. Of the replicas of one group the one that knows the highest
              committed index is read.
* `entries`   log entries of every replica given, without bodies.
* `scan`      rows of the audit (`audit.findings.FlatRow`). Damage is rows, never an exception.

A task reads one segment, or several small ones. Paths must be visible to driver and executors alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from audit.findings import flatten
from audit.layout import Replica, SegmentTask, open_stores, segment_tasks
from audit.scan import Window, make_walker, read_entries, scan_segment, scan_side, windows
from audit.walk import UNREADABLE, Stop
from runtime.files import OsFiles
from spark import columns
from spark.messages import CorruptMessage, read_messages
from spark.options import Options, parse


@dataclass(frozen=True)
class SegmentPart(InputPartition):
    """One segment of one replica. `first_index`: -1 when its first header cannot be read."""

    task: SegmentTask
    first_index: int


@dataclass(frozen=True)
class SidePart(InputPartition):
    """What a replica has beside its segments."""

    replica: Replica


@dataclass(frozen=True)
class Pack(InputPartition):
    """Parts that one task reads one after another: a task costs more than a small segment."""

    parts: tuple[SegmentPart | SidePart, ...]


PACK_BYTES = 64 * 1024 * 1024
"""Bytes of segments that one task reads; a larger segment has a task of its own."""


class DledgerSource(DataSource):
    """Entry point for Spark. BadOption (a ValueError) for options, audit.layout.StoreError for paths."""

    @classmethod
    def name(cls) -> str:
        return "dledger"

    def schema(self) -> str:
        return columns.ddl(view_columns(parse(dict(self.options))))

    def reader(self, schema: object) -> DataSourceReader:
        return DledgerReader(parse(dict(self.options)))


def view_columns(options: Options) -> columns.Columns:
    """Columns of the view that the options ask for."""
    if options.view == "scan":
        return columns.SCAN
    if options.view == "entries":
        return columns.ENTRIES
    return columns.message_columns(options.include_value, options.include_headers)


class DledgerReader(DataSourceReader):
    """Plans on the driver, reads on executors. Small and picklable."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        replicas = open_stores(OsFiles(), list(self._options.paths))
        if self._options.view == "scan":
            sides = [SidePart(replica) for replica in replicas]
            return pack([*sides, *(part for replica in replicas for part in segment_parts(replica))])
        if self._options.view == "messages":
            replicas = best_of_each_group(replicas)
        return pack([part for replica in replicas for part in segment_parts(replica) if self._wanted(part)])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # Spark's stand-in for an empty plan
        if not isinstance(partition, Pack):
            raise TypeError(f"{type(partition).__name__} is no partition of this source")
        chosen = view_columns(self._options)
        rows = (row for part in partition.parts for row in self._rows(part, chosen))
        return columns.batches(chosen, rows)

    def _rows(self, part: SegmentPart | SidePart, chosen: columns.Columns) -> Iterator[tuple[object, ...]]:
        if isinstance(part, SidePart):
            return (flatten(row) for row in scan_side(OsFiles(), part.replica))
        if self._options.view == "scan":
            return (flatten(row) for row in scan_segment(OsFiles(), part.task, self._options.block_rows))
        if self._options.view == "entries":
            return self._entry_rows(part)
        return self._message_rows(part, chosen)

    def _wanted(self, part: SegmentPart) -> bool:
        """Whether the segment may hold entries of the ranges asked for."""
        if self._options.index_ranges is None:
            return True
        following = part.task.next_first
        return any(
            last >= part.first_index and (following is None or first < following)
            for first, last in self._options.index_ranges
        )

    def _windows(self, part: SegmentPart, strict: bool) -> Iterator[Window]:
        files = OsFiles()
        ranges = self._options.index_ranges
        if ranges is not None:
            yield from read_entries(files, part.task, part.first_index, ranges)
            return
        walker = make_walker(files, part.task)
        yield from windows(files, part.task.path, walker)
        if strict and (walker.holes or walker.stop in (Stop.LOST, Stop.RETIRED)):
            raise CorruptMessage(f"{part.task.path}: entries are lost here; run the audit")

    def _entry_rows(self, part: SegmentPart) -> Iterator[tuple[object, ...]]:
        highest = None if self._options.isolation == "all" else part.task.committed
        try:
            yield from self._entries(part, highest)
        except OSError:
            if self._options.corrupt_records != "include":
                raise
            yield part.task.replica, -1, -1, -1, 0, 0, 0, 0, 0, 0, UNREADABLE

    def _entries(self, part: SegmentPart, highest: int | None) -> Iterator[tuple[object, ...]]:
        for window in self._windows(part, strict=False):
            for index, term, pos, size, channel, crc, stored, chain, damage in window.entries:
                if highest is None or index <= highest:
                    kind = channel >> 24
                    yield part.task.replica, index, term, pos, size, kind, channel, crc, stored, chain, damage

    def _message_rows(self, part: SegmentPart, chosen: columns.Columns) -> Iterator[tuple[object, ...]]:
        skip = self._options.corrupt_records == "skip"
        topics = frozenset(self._options.topics)
        kept = [name for name, _ in columns.MESSAGES]
        places = [kept.index(name) for name, _ in chosen]
        for window in self._windows(part, strict=not skip):
            for message in read_messages(window, part.task.committed, topics, skip_corrupt=skip):
                yield tuple(message[place] for place in places)


def segment_parts(replica: Replica) -> list[SegmentPart]:
    """One partition per segment."""
    return [
        SegmentPart(task, -1 if segment.first_index is None else segment.first_index)
        for task, segment in zip(segment_tasks(replica), replica.segments, strict=True)
    ]


def pack(parts: Sequence[SegmentPart | SidePart]) -> list[InputPartition]:
    """Neighbours together, up to PACK_BYTES a task."""
    packs: list[InputPartition] = []
    pending: list[SegmentPart | SidePart] = []
    size = 0
    for part in parts:
        more = part.task.size if isinstance(part, SegmentPart) else 0
        if pending and size + more > PACK_BYTES:
            packs.append(Pack(tuple(pending)))
            pending, size = [], 0
        pending.append(part)
        size += more
    if pending:
        packs.append(Pack(tuple(pending)))
    return packs


def best_of_each_group(replicas: list[Replica]) -> list[Replica]:
    """The replica with the highest committed index, per group (stores without identity are one group)."""
    best: dict[tuple[str, str], Replica] = {}
    for replica in replicas:
        identity = replica.identity
        key = (identity.cluster, identity.group) if identity else ("", "")
        if key not in best or replica.committed > best[key].committed:
            best[key] = replica
    return [best[key] for key in sorted(best)]
