"""The views over store directories, for batch queries. Each view plans tasks on the driver and reads their
rows on executors.

Objects of this module are pickled and sent to executors. So they contain options, but no open files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from dledger.audit.entries import UNREADABLE, Columns
from dledger.audit.findings import flatten
from dledger.audit.scan import read_entries, scan_segment, scan_side
from dledger.audit.store_directory import Replica, SegmentTask, segment_tasks
from dledger.audit.unit_files import UnitFiles
from dledger.formats.entry import INDEX_UNIT_SIZE, KIND_MASK
from dledger.formats.state_file import Snapshot
from dledger.formats.store_files import INDEX_DIR
from dledger.runtime.remote_files import files_for
from dledger.spark import columns
from dledger.spark.copies import LogCopies, OtherReplicas, Places, others_of
from dledger.spark.entry_ranges import NO_END, Piece
from dledger.spark.log_lives import NO_LIVES, LogLives, check_topics, log_topics
from dledger.spark.messages import message_columns, message_rows
from dledger.spark.offsets import batch_bounds, batch_times, time_bounds
from dledger.spark.option_values import Queue
from dledger.spark.options import Options
from dledger.spark.parts import pack
from dledger.spark.pushdown import NOTHING, Pushed
from dledger.spark.queues import QueueFiles, QueueRow, check_bounds, offsets_at_times
from dledger.spark.segment_times import segments_within
from dledger.spark.selection import Bounds, Selection, wants_queue
from dledger.spark.state import state_rows
from dledger.spark.stores import (
    best_of_each_group,
    open_replicas,
    packed,
    pieces,
    target_bytes,
)
from dledger.spark.topic_segments import held_state, segments_of
from dledger.spark.versions import InputPartition

_INDEX_UNITS = 1 << 20
"""Number of units of the index files that one task reads: 32 MiB."""

_INDEX_DTYPE = np.dtype(
    [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)

Batches = Iterator[pa.RecordBatch]


class View(Protocol):
    """One view, with the options that it is read with."""

    @property
    def columns(self) -> columns.Columns:
        """Names and types of the view's columns."""

    def plan(self) -> list[InputPartition]:
        """Return the parts of the work, one for each task. Runs on the driver. Raises StoreError for wrong
        paths."""

    def read(self, part: InputPartition) -> Batches:
        """Yield the rows of one task. Runs on an executor."""


@dataclass(frozen=True)
class PiecePack(InputPartition):
    """The part of one task: pieces of the log of one replica, which the task reads one after another.
    `others`: the other replicas of the group, which are read where this one is damaged."""

    pieces: tuple[Piece, ...]
    group: str
    lives: LogLives = NO_LIVES
    others: Places = ()


@dataclass(frozen=True)
class MessagesView:
    """User messages, committed only. In each group the replica with the highest committed index is read."""

    options: Options
    pushed: Pushed = NOTHING

    @property
    def columns(self) -> columns.Columns:
        return message_columns(self.options)

    def plan(self) -> list[InputPartition]:
        given = open_replicas(self.options.paths, self.options.groups)
        replicas = best_of_each_group(given)
        options = self.options
        held = {replica.directory: held_state(replica) for replica in replicas}
        known = {
            replica.directory: log_topics(
                replica, held[replica.directory], self._highest(replica), history=options.whole_history
            )
            for replica in replicas
        }
        check_topics(options, [*known.values()])
        if options.fail_on_data_loss:
            check_bounds(batch_bounds(options), replicas)
        at_times = {replica.directory: offsets_at_times(options, replica) for replica in replicas}
        target = target_bytes(replicas, options.min_partitions, options.partition_bytes)
        ranges = self.pushed.ranges(options.index_ranges)
        packs: list[InputPartition] = []
        for replica in replicas:
            found: Iterable[Piece] = pieces(
                replica, self._highest(replica), ranges, target, options.max_records
            )
            for segments in self._segments(replica, held[replica.directory], at_times[replica.directory]):
                found = _of_segments(found, segments)
            lives, wants = known[replica.directory].lives, self.selection(replica.group).wants
            packs += [
                PiecePack(
                    pack,
                    replica.group,
                    lives.of_pieces(pack, wants, named=options.names_lives),
                    others_of(replica, given),
                )
                for pack in packed(
                    found, options.min_partitions, options.partition_bytes, options.max_records
                )
            ]
        return packs

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, PiecePack)
        rows = message_rows(self.options, self.selection(part.group), part.group, part.lives)
        copies = LogCopies(OtherReplicas(part.others))
        for piece in part.pieces:
            highest = NO_END if self.options.isolation == "all" else piece.task.committed
            yield from rows.of_piece(piece, highest, copies)

    def _highest(self, replica: Replica) -> int | None:
        """The last entry that is read; None if the log is read to its end."""
        return None if self.options.isolation == "all" else replica.committed

    def _segments(
        self, replica: Replica, held: Snapshot | None, at_times: Mapping[Queue, Bounds]
    ) -> Iterator[frozenset[int]]:
        """Yield sets with the starts of segments. Only a segment that is in every set can contain wanted
        messages. There is one set by store time and one by queue; a set that is not known is left out.
        `at_times`: the offsets of queues for which the options have times."""
        selection = self.selection(replica.group)
        if selection.system_entries:
            return
        within = segments_within(replica, self._times)
        if within is not None:
            yield within
        # If damage is included in the rows, all segments are searched for it.
        if self.options.corrupt_records == "include":
            return
        if replica.identity is not None:  # store times never go back, so they can be compared by offset
            bounds = {**selection.offsets, **at_times}
            selection = replace(selection, offsets=bounds)
        holding = segments_of(replica, selection, held, self.options.include_deleted)
        if holding is not None:
            yield holding

    @property
    def _times(self) -> Bounds:
        """The range of store times that options and filters allow, in ms."""
        return time_bounds(self.options).meet(self.pushed.time_ms)

    def selection(self, group: str) -> Selection:
        """Return the conditions that wanted messages of one broker group must meet."""
        options, pushed = self.options, self.pushed
        return Selection(
            topics=options.topics,
            tags=pushed.only_tags(options.tags),
            keys=options.keys,
            offsets=batch_bounds(options),
            time_ms=self._times,
            times_ms=batch_times(options),
            only_topics=pushed.topics,
            partition=pushed.partition,
            offset=pushed.offset,
            group=group,
        )


def _of_segments(found: Iterable[Piece], segments: frozenset[int]) -> Iterator[Piece]:
    return (piece for piece in found if piece.task.start in segments)


@dataclass(frozen=True)
class EntriesView:
    """Log entries of every replica given, without bodies."""

    options: Options
    pushed: Pushed = NOTHING
    columns: columns.Columns = columns.ENTRIES

    def plan(self) -> list[InputPartition]:
        replicas = open_replicas(self.options.paths, self.options.groups)
        target = target_bytes(replicas, self.options.min_partitions, self.options.partition_bytes)
        ranges = self.pushed.ranges(self.options.index_ranges)
        found = [
            piece
            for replica in replicas
            for piece in pieces(
                replica, None if self.options.isolation == "all" else replica.committed, ranges, target
            )
        ]
        return [
            PiecePack(pack, "")
            for pack in packed(found, self.options.min_partitions, self.options.partition_bytes)
        ]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, PiecePack)
        for piece in part.pieces:
            try:
                files = files_for(piece.task.path)
                last = piece.last if piece.last >= 0 else NO_END
                spans = [(piece.first, last)]
                for window in read_entries(files, piece.task, piece.task.first_index, spans):
                    yield entry_batch(piece.task.replica, window.columns)
            except OSError:
                if self.options.corrupt_records != "include":
                    raise
                yield unreadable_batch(piece.task.replica)


def entry_batch(replica: str, found: Columns) -> pa.RecordBatch:
    """Return the rows of the view `entries` for these entries."""
    values = {
        "replica": pa.repeat(pa.scalar(replica), len(found)),
        "kind": pa.array((found.channel >> 24 & KIND_MASK).astype(np.int32)),
        "size": pa.array(found.size.astype(np.int32)),
        "damage": pa.array(found.damage.astype(np.int32)),
        "chain_crc": pa.array(found.chain),
    }
    schema = columns.arrow_schema(columns.ENTRIES)
    arrays = [values[name] if name in values else pa.array(getattr(found, name)) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unreadable_batch(replica: str) -> pa.RecordBatch:
    """Return the row of the view `entries` that reports a segment or a replica that cannot be read."""
    row = (replica, -1, -1, -1, 0, 0, 0, 0, 0, 0, UNREADABLE)
    return next(columns.batches(columns.ENTRIES, [row]))


@dataclass(frozen=True)
class IndexPart(InputPartition):
    """The part of one task: units [first, first + count) of the index files of a replica."""

    replica: str
    directory: str
    first: int
    count: int


@dataclass(frozen=True)
class IndexView:
    """All units of the index files of every replica given, including units with wrong content."""

    options: Options
    columns: columns.Columns = columns.INDEX

    def plan(self) -> list[InputPartition]:
        return [
            IndexPart(replica.name, replica.directory, first, min(_INDEX_UNITS, last + 1 - first))
            for replica in open_replicas(self.options.paths, self.options.groups)
            for low, high in self.options.index_ranges or ((0, NO_END),)
            for last in [min(high, replica.index_end - 1)]
            for first in range(low, last + 1, _INDEX_UNITS)
        ]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, IndexPart)
        files = UnitFiles(files_for(part.directory), f"{part.directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
        try:
            data = files.read(part.first, part.count)
        finally:
            files.close()
        yield from unit_batches(part.replica, part.first, data)


def unit_batches(replica: str, first: int, data: bytes) -> Batches:
    """Yield the rows of the view `index` for the units in `data`, which begins with unit number `first`.
    Units that were never written are left out."""
    units = np.frombuffer(data, _INDEX_DTYPE)
    number = np.arange(first, first + len(units))
    written = np.frombuffer(data, np.uint8).reshape(-1, INDEX_UNIT_SIZE).any(axis=1)
    units, number = units[written], number[written]
    schema = columns.arrow_schema(columns.INDEX)
    values = {
        "replica": pa.repeat(pa.scalar(replica), len(number)),
        "number": pa.array(number, pa.int64()),
    }
    arrays = [
        values[field.name]
        if field.name in values
        else pa.array(units[field.name].astype(field.type.to_pandas_dtype()))
        for field in schema
    ]
    yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(columns.BATCH_ROWS)


@dataclass(frozen=True)
class ReplicaPart(InputPartition):
    """The part of one task: a replica as a whole, without its segments."""

    replica: Replica
    lives: LogLives = NO_LIVES


@dataclass(frozen=True)
class QueuesView:
    """The range of offsets of each queue of every replica given."""

    options: Options
    pushed: Pushed = NOTHING

    @property
    def columns(self) -> columns.Columns:
        return columns.queue_columns(life=self.options.include_life)

    def plan(self) -> list[InputPartition]:
        replicas = open_replicas(self.options.paths, self.options.groups)
        known = [log_topics(replica, held_state(replica), replica.committed) for replica in replicas]
        check_topics(self.options, known)
        return [ReplicaPart(replica, one.lives) for replica, one in zip(replicas, known, strict=True)]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, ReplicaPart)
        rows = QueueFiles(part.replica, part.lives).rows(self._wants)
        return columns.batches(self.columns, (self._row(part, row) for row in rows))

    def _wants(self, topic: str, queue_id: int) -> bool:
        return wants_queue(self.options.topics, topic, queue_id) and self.pushed.wants_queue(topic, queue_id)

    def _row(self, part: ReplicaPart, row: QueueRow) -> tuple[object, ...]:
        times = [None if ms is None else ms * 1000 for ms in (row.first_ms, row.last_ms)]
        names = (part.replica.group, part.replica.name, row.topic, row.queue_id)
        life = (part.lives.life(row.topic),) if self.options.include_life else ()
        return (*names, row.bounds.low, row.bounds.high, *times, *life)


@dataclass(frozen=True)
class StateView:
    """Topics, groups, consumer offsets and ends of queues of every replica given."""

    options: Options
    columns: columns.Columns = columns.STATE

    def plan(self) -> list[InputPartition]:
        return [ReplicaPart(replica) for replica in open_replicas(self.options.paths, self.options.groups)]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, ReplicaPart)
        return columns.batches(self.columns, state_rows(part.replica))


@dataclass(frozen=True)
class ScanPack(InputPartition):
    """The part of one task: segments and other files of replicas, which the task scans one after another,
    since a task costs more than a small segment."""

    parts: tuple[SegmentTask | Replica, ...]


@dataclass(frozen=True)
class ScanView:
    """Rows of the audit (`audit.findings.FlatRow`). Damage is reported as rows, never as an exception."""

    options: Options
    columns: columns.Columns = columns.SCAN

    def plan(self) -> list[InputPartition]:
        replicas = open_replicas(self.options.paths, self.options.groups)
        limit = target_bytes(replicas, self.options.min_partitions, self.options.partition_bytes)
        tasks = (task for replica in replicas for task in segment_tasks(replica))
        return [ScanPack(tuple(replicas)), *map(ScanPack, pack(tasks, limit))]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, ScanPack)
        rows = (
            flatten(row)
            for item in part.parts
            for row in (
                scan_side(files_for(item.directory), item)
                if isinstance(item, Replica)
                else scan_segment(files_for(item.directory), item, self.options.block_rows)
            )
        )
        return columns.batches(self.columns, rows)


def directory_view(options: Options) -> View:
    """Return the view over store directories that the options ask for."""
    views: dict[str, Callable[[Options], View]] = {
        "messages": MessagesView,
        "entries": EntriesView,
        "index": IndexView,
        "queues": QueuesView,
        "state": StateView,
        "scan": ScanView,
    }
    return views[options.view](options)
