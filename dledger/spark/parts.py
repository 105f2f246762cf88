"""Parts of the work of tasks that read segments of replicas, and how many parts are packed into one task.

Objects of this module are sent to executors by pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dledger.audit.findings import Finding, QueueRow, SegmentRow, flatten
from dledger.audit.findings import Row as AuditRow
from dledger.audit.queue_runs import QueueRuns, as_run, promised
from dledger.audit.replicas import ReplicaView, SegmentReader
from dledger.audit.scan import EntryRow
from dledger.audit.store_directory import SegmentTask
from dledger.audit.walk import BODY_DAMAGED, CHAIN_BROKEN, UNREADABLE
from dledger.spark.versions import InputPartition

PACK_BYTES = 64 * 1024 * 1024
"""Approximate size, in bytes of segments, that one task reads. A larger segment has a task of its own."""

MOST_TASKS = 20_000
"""Largest number of tasks that are planned, unless the user asks for more. Each task costs the driver
about a millisecond and some memory. If the log is larger, each task reads more bytes."""


def task_bytes(total: int) -> int:
    """Return how many bytes of log one task reads by default, if the log has `total` bytes."""
    return max(PACK_BYTES, -(-total // MOST_TASKS))


Ranges = Sequence[tuple[int, int]]
Row = tuple[object, ...]


@dataclass(frozen=True)
class SegmentPart:
    """One segment: a task scans it, or reads its entries in `ranges` to compare them."""

    reader: SegmentReader
    task: SegmentTask
    ranges: tuple[tuple[int, int], ...] = ()
    applied: int = -1
    """The `ReplicaRow.applied` of the replica. It is used by a scan."""

    @property
    def size(self) -> int:
        return self.task.size

    def scan(self, block_entries: int, runs: QueueRuns | None = None) -> Iterator[AuditRow]:
        """Yield all rows of the audit for this segment. If `runs` is given, rows about queues are added to
        `runs` instead."""
        if runs is None:
            yield from self.reader.scan(self.task, block_entries)
            return
        queues: list[QueueRow] = []
        last_index = -1
        for row in self.reader.scan(self.task, block_entries):
            if isinstance(row, QueueRow):
                queues.append(row)
                continue
            if isinstance(row, SegmentRow):
                last_index = row.last_index
            yield row
        for queue in queues:
            runs.add(promised(as_run(queue), last_index, self.applied))

    def drill(self) -> Iterator[EntryRow]:
        return self.reader.drill(self.task, self.ranges)


@dataclass(frozen=True)
class SidePart:
    """The files of a replica other than its segments."""

    replica: ReplicaView
    size: int = 0

    def scan(self, block_entries: int, runs: QueueRuns | None = None) -> Iterator[AuditRow]:
        return self.replica.side()


@dataclass(frozen=True)
class FoundPart:
    """Findings that listing the sources made. The task only passes them on."""

    findings: tuple[Finding, ...]
    size: int = 0

    def scan(self, block_entries: int, runs: QueueRuns | None = None) -> Iterator[AuditRow]:
        return iter(self.findings)


ScanPart = SegmentPart | SidePart | FoundPart


class Part(Protocol):
    """A part of the work of a task."""

    @property
    def size(self) -> int:
        """Number of bytes of segments that the part reads."""


P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class ScanPack(InputPartition):
    """Parts that one task scans one after another, since a task costs more than a small segment. With
    `merged`, rows of consecutive parts about the same queue become one row, if there is no gap between
    them."""

    parts: tuple[ScanPart, ...]
    block_entries: int
    merged: bool = False

    def rows(self) -> Iterator[Row]:
        runs = QueueRuns() if self.merged else None
        for part in self.parts:
            yield from map(flatten, part.scan(self.block_entries, runs))
        if runs is not None:
            yield from map(flatten, runs.rows())


@dataclass(frozen=True)
class DrillPack(InputPartition):
    """A task that compares the entries of all replicas in the same index ranges."""

    parts: tuple[SegmentPart, ...]

    def rows(self) -> Iterator[Row]:
        copies: dict[int, list[EntryRow]] = {}
        replicas = {part.task.replica for part in self.parts}
        for part in self.parts:
            for row in part.drill():
                copies.setdefault(row.index, []).append(row)
        return (
            row for index in sorted(copies) if _suspect(copies[index], len(replicas)) for row in copies[index]
        )


def _suspect(copies: list[EntryRow], replicas: int) -> bool:
    """Whether the copies of an entry differ in content, one of them is damaged, or one of the replicas has
    none: where a header is damaged, entries behind it are hidden."""
    if len(copies) < replicas or any(
        copy.damage & (BODY_DAMAGED | CHAIN_BROKEN | UNREADABLE) for copy in copies
    ):
        return True
    one = copies[0]
    content = (one.term, one.size, one.channel, one.crc)
    return any((copy.term, copy.size, copy.channel, copy.crc) != content for copy in copies)


def shares(ranges: Ranges, most: int) -> Iterator[list[tuple[int, int]]]:
    """Divide the ranges (inclusive, ascending) into shares of at most `most` indexes."""
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
    """Pack neighbouring parts into tasks of up to `limit` bytes of segments."""
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
