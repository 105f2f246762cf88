"""Keeps the results of scans from one audit to the next (`--keep DIR`), so that each sealed segment is
scanned once. A sealed segment is full and does not change any more.

The result of a scan is a list of rows. Rows that are `final` (`audit.shipped_scans`) are kept in DIR, one
file for each segment, which is published by one rename. The next audit uses them instead of a scan if the
store is the same, the segment's file is the same, and all data derived from the segment is unchanged
(`audit.segment_stamp`; for a live group its brokers are asked). A kept file that is damaged, too old, of
another version or of something else is ignored, and the segment is scanned. So kept rows only save work and
never change the result. `Keep.source` wraps a store, or the brokers of a group, so that the rest of the audit
sees the same replicas, segments and rows as without kept rows.

**Rot at rest** in a segment is found only by reading it, so rows are valid for `rescan_ms` at most. Each
segment has its own limit between half of that and all of it. So an audit that is repeated often reads some
segments every time, not all at once. Rows that cannot be kept are named in the report and change no finding.
All functions block, and all objects can be pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import KeptRow, ReplicaRow, Row, flatten
from dledger.audit.replicas import Look, ReplicaSource, ReplicaView, StampingReader
from dledger.audit.scan import EntryRow
from dledger.audit.segment_stamp import SegmentStamp, still_holds
from dledger.audit.shipped_scans import (
    SIDE,
    Place,
    Scan,
    ShippedRowsError,
    forget_scans,
    read_scan,
    reusable,
    segment_bound,
    write_scan,
)
from dledger.audit.store_directory import SegmentTask
from dledger.formats.checksum import crc32
from dledger.runtime import Files

SETTLED_MS = 2000
"""Rows of a segment are kept only if the last change of its file is at least this many ms before the audit. A
file that changed later may change again without another modification time, because some file systems record
times in steps of two seconds."""


@dataclass(frozen=True)
class Keep:
    """Where and how rows are kept.

    * `root`: a directory or URL, opened by `files`.
    * `now_ms`: wall clock at the beginning of the audit.
    * `rescan_ms`: older rows are not used; 0 means no limit.
    """

    root: str
    files: Files = field(compare=False, repr=False)
    now_ms: int
    rescan_ms: int

    def source(self, store: ReplicaSource) -> ReplicaSource:
        """Return a source for a store directory or live group, together with its kept rows."""
        return KeptSource(store, self)


@dataclass(frozen=True)
class KeptSource:
    """A store or live group together with its kept rows (`audit.replicas.ReplicaSource`)."""

    store: ReplicaSource
    keep: Keep

    @property
    def place(self) -> str:
        return self.store.place

    def look(self) -> Look:
        """Return the replicas together with their kept rows. Raises StoreError if the place is wrong."""
        look = self.store.look()
        return Look(tuple(KeptReplica(replica, self.keep) for replica in look.replicas), look.findings)

    def claim(self) -> Look:
        return self.store.claim()


@dataclass(frozen=True)
class KeptReplica:
    """A replica together with its kept rows (`audit.replicas.ReplicaView`)."""

    replica: ReplicaView
    keep: Keep

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def reader(self) -> KeptReader:
        reader = self.replica.reader
        if not isinstance(reader, StampingReader):
            raise TypeError(f"{type(reader).__name__} cannot check whether a segment has changed")
        return KeptReader(reader, self.keep, self.row())

    def named(self, name: str) -> ReplicaView:
        return KeptReplica(self.replica.named(name), self.keep)

    def row(self) -> ReplicaRow:
        return self.replica.row()

    def tasks(self) -> Sequence[SegmentTask]:
        return self.replica.tasks()

    def entry(self, index: int) -> bytes | None:
        return self.replica.entry(index)

    def side(self) -> Iterator[Row]:
        """Yield the rows of the side scan. They are never kept, because this scan is small, and derived files
        grow. Also remove kept rows of segments that no longer exist."""
        yield from self.replica.side()
        place = self.reader.place(SIDE)
        starts = [task.start for task in self.tasks()]
        try:
            forget_scans(self.keep.files, self.keep.root, place.group, place.replica, starts)
        except OSError as error:
            yield KeptRow(self.name, SIDE, problem=str(error))


@dataclass(frozen=True)
class KeptReader:
    """A reader that scans only segments without usable kept rows (`audit.replicas.SegmentReader`)."""

    reader: StampingReader
    keep: Keep
    row: ReplicaRow

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        """Yield the rows of a scan, and a `KeptRow` that says where they come from."""
        known = self._known(task, block_entries)
        if known is not None:
            yield from (row._replace(replica=task.replica) for row in known)
            yield KeptRow(task.replica, task.start, reused=1)
            return
        problem = ""
        before: SegmentStamp | None = None
        if task.next_first is not None:  # else it is not full
            try:
                before = self.reader.stamp(task)
            except FileNotFoundError:
                pass  # the scan reports that it is gone
            except OSError as error:
                problem = str(error)
        rows = list(self.reader.scan(task, block_entries))
        if before is not None and before.changed_ms <= (before.now_ms or self.keep.now_ms) - SETTLED_MS:
            try:
                self._write(task, rows, before, block_entries)
            except OSError as error:
                problem = str(error)
        yield from rows
        yield KeptRow(task.replica, task.start, problem=problem)

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        """Read entries from the store itself."""
        return self.reader.drill(task, ranges)

    def place(self, segment: int) -> Place:
        """Return the place of the kept rows of a segment. Stores in different directories have different
        places, even if they hold the same replica."""
        mark = crc32(self.row.store.encode())
        return Place(self.row.group, f"{self.row.replica.partition('@')[0]}-{mark:08x}", segment)

    def _known(self, task: SegmentTask, block_entries: int) -> list[Row] | None:
        """Return kept rows that equal those of a new scan; None if the segment must be scanned."""
        keep, place = self.keep, self.place(task.start)
        try:
            known = read_scan(keep.files, keep.root, place)
            if known is None or not self._fits(known, task, block_entries):
                return None
            sealed, *rows = known.rows
            if not isinstance(sealed, KeptRow):
                return None
            if sealed.crc != _crc((known.bound, sealed._replace(crc=0), *rows)):
                return None
            now = self.reader.stamp(task, rows)
            if now is None or not still_holds(now.text, sealed.stamp):
                return None
        except (ShippedRowsError, OSError):
            return None  # the scan reports what is wrong with the store, and `_write` what is wrong with DIR
        return rows

    def _fits(self, known: Scan, task: SegmentTask, block_entries: int) -> bool:
        keep, bound = self.keep, known.bound
        return (
            bool(known.rows)
            and reusable(
                bound, self.row, task, not_before_ms=self._not_before_ms(task), block_entries=block_entries
            )
            and bound.scanned_ms <= keep.now_ms  # else a clock was set back: its age is not known
            and bound.next_first - 1 <= task.committed
        )

    def _not_before_ms(self, task: SegmentTask) -> int:
        """Time of the wall clock, in ms, before which rows are too old."""
        if not self.keep.rescan_ms:
            return 0
        share = crc32(f"{self.place(task.start)}".encode()) / (1 << 32)
        return self.keep.now_ms - int(self.keep.rescan_ms * (1 - share / 2))

    def _write(self, task: SegmentTask, rows: list[Row], before: SegmentStamp, block_entries: int) -> None:
        """Keep the rows if they are final and the segment's file did not change while they were made. Raises
        OSError."""
        keep, place = self.keep, self.place(task.start)
        bound = segment_bound(self.row, task, rows, keep.now_ms, block_entries)
        if not bound.final:
            return
        made_of = self.reader.stamp(task, rows)
        if made_of is None or made_of.file != before.file:
            return
        bound = bound._replace(replica=place.replica)
        sealed = KeptRow(task.replica, task.start, stamp=made_of.text)
        sealed = sealed._replace(crc=_crc((bound, sealed, *rows)))
        write_scan(keep.files, keep.root, bound, (sealed, *rows))


def _crc(rows: Iterable[Row]) -> int:
    crc = 0
    for row in rows:
        crc = crc32(repr(tuple(flatten(row))).encode(), crc)
    return crc
