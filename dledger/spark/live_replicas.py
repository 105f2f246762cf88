"""Views `scan`, `entries` and `index` of live brokers: each broker reads its own disk and sends rows
(`live`).

The columns are those of the same view over directories. A broker serves only one such reader at a time, at
a limited rate (`auditBytesPerSecond`). So more tasks than brokers do not make reading faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from dledger.audit.entries import Columns
from dledger.audit.findings import Finding
from dledger.audit.replicas import Look, look_at
from dledger.audit.row_codec import EntriesRow, UnitsRow, UnknownRow, as_columns, decode_page
from dledger.audit.store_directory import SegmentTask, StoreError
from dledger.client.bulk.replicas import AuditOptions, ReplicaClient, find_groups
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT_SIZE
from dledger.spark import columns
from dledger.spark.entry_ranges import NO_END
from dledger.spark.live import FAILURES, BrokerReader, GroupSource, RemoteReplica
from dledger.spark.messages import CorruptMessage
from dledger.spark.options import Options
from dledger.spark.parts import FoundPart, ScanPack, ScanPart, SegmentPart, SidePart, pack, shares
from dledger.spark.pushdown import NOTHING, Pushed
from dledger.spark.stores import share_bytes
from dledger.spark.versions import InputPartition
from dledger.spark.views import entry_batch, unit_batches, unreadable_batch

T = TypeVar("T")

ENTRIES_ASKED = 64 * 1024
"""Number of indexes of the log in one request. Their rows take 4.5 MiB, which the broker keeps in memory
until other requests need it. For one request the broker reads up to 4 MiB of log (`audit.scan.WINDOW`)
more than was asked for."""
UNITS_ASKED = 128 * 1024
"""Number of units of the index files in one request: 4 MiB."""

Batches = Iterator[pa.RecordBatch]


def chosen_groups(options: Options) -> tuple[str, ...]:
    """Return the names of the broker groups that the options choose; of all groups if they choose none.
    Raises StoreError or ClientError."""
    names = options.groups or tuple(
        found.group for found in find_groups(options.servers, client=options.access.client())
    )
    if not names:
        raise StoreError(f"no broker is registered at {options.servers}")
    return names


def look_at_groups(options: Options) -> Look:
    """Return the replicas of the chosen groups, with unique names. Raises StoreError or ClientError."""
    asking = AuditOptions(client=options.access.client)
    sources = {name: GroupSource(options.servers, name, options=asking) for name in chosen_groups(options)}
    looks = {name: look_at([source]) for name, source in sources.items()}
    seen = Counter(replica.name for look in looks.values() for replica in look.replicas)
    seen.update(found.replica for look in looks.values() for found in look.findings)

    def unique(name: str, place: str) -> str:
        return f"{name}@{place}" if seen[name] > 1 else name

    return Look(
        tuple(
            replica.named(unique(replica.name, replica.row().store))
            for look in looks.values()
            for replica in look.replicas
        ),
        tuple(
            found._replace(replica=unique(found.replica, group))
            for group, look in looks.items()
            for found in look.findings
        ),
    )


def _limit(look: Look, options: Options) -> int:
    """Return how many bytes of segments one task reads."""
    total = sum(task.size for replica in look.replicas for task in replica.tasks())
    return share_bytes(total, options.min_partitions)


@dataclass(frozen=True)
class LiveScanView:
    """Rows of the audit: each broker scans its own store. A broker that does not answer becomes a row, not
    an exception."""

    options: Options
    columns: columns.Columns = columns.SCAN

    def plan(self) -> list[InputPartition]:
        look = look_at_groups(self.options)
        limit = _limit(look, self.options)
        packs: list[tuple[ScanPart, ...]] = [(FoundPart(look.findings),)] if look.findings else []
        for replica in look.replicas:
            segments = [SegmentPart(replica.reader, task) for task in replica.tasks()]
            parts: list[ScanPart] = [SidePart(replica), *segments]
            packs += pack(parts, limit)
        return [ScanPack(parts, self.options.block_rows) for parts in packs]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, ScanPack)
        return columns.batches(self.columns, part.rows())


@dataclass(frozen=True)
class EntriesPart:
    """Ranges of indexes (inclusive, ascending) of one segment. It is not known whether there are entries
    above index `known`. Above it, reading ends at the first answer without entries."""

    reader: BrokerReader
    task: SegmentTask
    ranges: tuple[tuple[int, int], ...]
    known: int

    @property
    def size(self) -> int:
        return self.task.size

    def windows(self) -> Iterator[Columns]:
        """Yield the entries. Raises one of FAILURES, or CorruptMessage if the broker cannot read its file."""
        with ReplicaClient(self.reader.address, self.reader.options) as client:
            for share in shares(self.ranges, ENTRIES_ASKED):
                empty = True
                pages = client.entries(self.reader.description, self.task.start, share)
                for row in _rows(EntriesRow, pages, self.task.replica):
                    empty = False
                    yield as_columns(row)
                if empty and share[-1][1] > self.known:
                    return


def _rows(kind: type[T], pages: Iterable[bytes], replica: str) -> Iterator[T]:
    """Yield the rows in the pages, which must be of this kind. Raises CorruptMessage with the broker's
    reason if it cannot read its files, and UnknownRow for other kinds of rows."""
    for page in pages:
        for row in decode_page(page):
            if isinstance(row, Finding):
                raise CorruptMessage(f"{replica}: {row.detail}")
            if not isinstance(row, kind):
                raise UnknownRow(f"a {type(row).__name__} where a {kind.__name__} belongs")
            yield row


@dataclass(frozen=True)
class EntriesPack(InputPartition):
    """The part of one task: segments of one replica, which the task asks for one after another; or a
    replica that cannot be asked."""

    parts: tuple[EntriesPart, ...]
    unreadable: str = ""


@dataclass(frozen=True)
class LiveEntriesView:
    """Log entries of every replica, without bodies."""

    options: Options
    pushed: Pushed = NOTHING
    columns: columns.Columns = columns.ENTRIES

    def plan(self) -> list[InputPartition]:
        look = look_at_groups(self.options)
        if look.findings and self.options.corrupt_records != "include":
            (found, *_) = look.findings
            raise StoreError(
                f"{found.replica}: {found.detail}; corruptRecords=include makes it a row, the others are read"
            )
        limit = _limit(look, self.options)
        packs = [EntriesPack((), found.replica) for found in look.findings]
        for replica in look.replicas:
            assert isinstance(replica, RemoteReplica)
            packs += [EntriesPack(parts) for parts in pack(self._parts(replica), limit)]
        return [*packs]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, EntriesPack)
        if part.unreadable:
            yield unreadable_batch(part.unreadable)
        for segment in part.parts:
            try:
                for found in segment.windows():
                    yield entry_batch(segment.task.replica, found)
            except (*FAILURES, CorruptMessage):
                if self.options.corrupt_records != "include":
                    raise
                yield unreadable_batch(segment.task.replica)

    def _parts(self, replica: RemoteReplica) -> Iterator[EntriesPart]:
        committed_only = self.options.isolation != "all"
        asked = self.pushed.ranges(self.options.index_ranges)
        for task, low, high in _spans(replica.tasks()):
            last = min(high, task.committed) if committed_only else high
            known = last if last < NO_END else max(task.index_end - 1, task.committed)
            spans = [(0, NO_END)] if asked is None else asked
            met = [(max(low, first), min(end, last)) for first, end in spans]
            ranges = tuple((first, end) for first, end in met if first <= end)
            if ranges:
                yield EntriesPart(replica.reader, task, ranges, known)


def _spans(tasks: Sequence[SegmentTask]) -> Iterator[tuple[SegmentTask, int, int]]:
    """Yield each segment with the first and the last index that it can contain (NO_END: up to the end of
    the log)."""
    before = -1  # first index of the last segment whose head can be read
    for task in tasks:
        last = NO_END if task.next_first is None else task.next_first - 1
        first = before = task.first_index if task.first_index >= 0 else before
        if task.first_index < 0:
            most = max(task.size, task.segment_size) // HEADER_SIZE
            first = max(before + 1, 0 if last == NO_END else last + 1 - most)
        yield task, first, last


@dataclass(frozen=True)
class UnitsPart(InputPartition):
    """The part of one task: inclusive ranges of units in the index files of one replica. One task reads
    all of them, because a broker serves one reader at a time."""

    replica: str
    reader: BrokerReader
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LiveIndexView:
    """All units of the index files of every replica, including units with wrong content."""

    options: Options
    columns: columns.Columns = columns.INDEX

    def plan(self) -> list[InputPartition]:
        look = look_at_groups(self.options)
        if look.findings:
            (found, *_) = look.findings
            raise StoreError(f"{found.replica}: {found.detail}")
        return [*self._parts(look)]

    def read(self, part: InputPartition) -> Batches:
        assert isinstance(part, UnitsPart)
        with ReplicaClient(part.reader.address, part.reader.options) as client:
            for share in shares(part.ranges, UNITS_ASKED):
                for first, last in share:
                    pages = client.units(part.reader.description, first, last + 1 - first)
                    for row in _rows(UnitsRow, pages, part.replica):
                        if len(row.data) % INDEX_UNIT_SIZE:
                            raise UnknownRow(f"{part.replica}: {len(row.data)} bytes are not index units")
                        yield from unit_batches(part.replica, row.first, row.data)

    def _parts(self, look: Look) -> Iterator[UnitsPart]:
        for replica in look.replicas:
            assert isinstance(replica, RemoteReplica)
            last = replica.row().index_end - 1
            asked = [(low, min(high, last)) for low, high in self.options.index_ranges or ((0, NO_END),)]
            ranges = tuple((low, high) for low, high in asked if low <= high)
            if ranges:
                yield UnitsPart(replica.name, replica.reader, ranges)
