"""Replicas as rows that brokers shipped (`audit.shipped_scans`), for an audit without their stores.

Digests show where replicas differ, not how. To find out how, the entries are read through other sources,
which are brokers or directories of the same replicas (`audit.drilling`). If there is no such source, that is
a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.entries import UNREADABLE
from dledger.audit.findings import BoundRow, QueueRow, ReplicaRow, Row, finding, unread_segment
from dledger.audit.replicas import Look
from dledger.audit.scan import EntryRow
from dledger.audit.shipped_scans import SIDE, Place, find_replicas, usable_scan
from dledger.audit.store_directory import SegmentTask, StoreError
from dledger.runtime import Files


@dataclass(frozen=True)
class ShippedReader:
    """Gives the shipped rows of a replica (`audit.replicas.SegmentReader`). `side` is the bound of its side
    scan, without segments."""

    files: Files
    root: str
    side: BoundRow

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        place = Place(self.side.group, self.side.replica, task.start)
        known, problem = usable_scan(self.files, self.root, place, self.side)
        if known is None:
            yield finding("UNREADABLE", task.replica, problem, segment=task.start)
            yield unread_segment(task.replica, task.start)
            return
        # The segment was scanned in a later round than the side scan, which has the ends of the queues:
        # units that were due at the time of the later scan were not due at that of the side scan.
        later = known.bound.scanned_ms > self.side.scanned_ms
        for row in known.rows:
            if later and isinstance(row, QueueRow):
                row = row._replace(due=-1)
            yield row._replace(replica=task.replica)

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        """Yield a row that says that there are no entries here."""
        yield EntryRow(task.replica, -1, -1, 0, 0, 0, UNREADABLE)


@dataclass(frozen=True)
class ShippedReplica:
    """A replica as one broker shipped it (`audit.replicas.ReplicaView`)."""

    reader: ShippedReader
    name: str
    rows: tuple[Row, ...]
    sizes: tuple[tuple[int, int], ...]
    """Start of each segment, and the size of its rows in bytes."""

    def named(self, name: str) -> ShippedReplica:
        return replace(self, name=name)

    def row(self) -> ReplicaRow:
        (own,) = (row for row in self.rows if isinstance(row, ReplicaRow))
        return own._replace(replica=self.name)

    def tasks(self) -> Sequence[SegmentTask]:
        row = self.row()
        return [
            SegmentTask(
                replica=self.name,
                directory="",
                queue_root="",
                start=start,
                size=size,
                segment_size=row.segment_size,
                committed=row.committed,
                next_first=None,
                index_end=row.index_end,
            )
            for start, size in self.sizes
        ]

    def entry(self, index: int) -> bytes | None:
        """Return None, as entries are not shipped."""
        return None

    def side(self) -> Iterator[Row]:
        yield self.row()
        for row in self.rows:
            if not isinstance(row, ReplicaRow):
                yield row._replace(replica=self.name)


@dataclass(frozen=True)
class ShippedSource:
    """What the brokers of one group shipped to a directory or URL (`audit.replicas.ReplicaSource`).

    `not_before_ms` is a time of the wall clock. Rows that were shipped before it are used, and reported as
    old.
    """

    root: str
    group: str
    files: Files = field(compare=False, repr=False)
    not_before_ms: int = 0

    @property
    def place(self) -> str:
        return f"{self.root}, group {self.group}"

    def look(self) -> Look:
        """Return the replicas that were shipped. Raises StoreError if there are none of this group."""
        names = [name for group, name in find_replicas(self.files, self.root) if group == self.group]
        if not names:
            raise StoreError(
                f"{self.place}: no digests were shipped there: check digestShipPath of the brokers"
            )
        replicas: list[ShippedReplica] = []
        problems = []
        for name in names:
            place = Place(self.group, name, SIDE)
            side, problem = usable_scan(self.files, self.root, place, None)
            if side is None or sum(isinstance(row, ReplicaRow) for row in side.rows) != 1:
                problems.append(
                    finding("UNREADABLE", name, problem or f"{place.path(self.root)} is not whole")
                )
                continue
            if side.bound.scanned_ms < self.not_before_ms:
                age_s = (self.not_before_ms - side.bound.scanned_ms) // 1000
                problems.append(finding("STALE_DIGESTS", name, f"shipped {age_s} s earlier than allowed"))
            sizes = tuple((start, self._size(name, start)) for start in side.bound.segments)
            reader = ShippedReader(self.files, self.root, side.bound._replace(segments=()))
            replicas.append(ShippedReplica(reader, name, tuple(side.rows), sizes))
        members = max((replica.row().members for replica in replicas), default=0)
        if 0 < len(replicas) < members:
            text = f"{len(replicas)} of {members} members have shipped digests to {self.root}"
            problems.append(finding("UNREACHABLE", "", text))
        return Look(tuple(replicas), tuple(problems))

    def claim(self) -> Look:
        return self.look()

    def _size(self, replica: str, start: int) -> int:
        path = Place(self.group, replica, start).path(self.root)
        return self.files.size(path) if self.files.exists(path) else 0


def shipped_groups(files: Files, root: str) -> list[str]:
    """Return the groups of which something was shipped to a directory or URL."""
    return sorted({group for group, _ in find_replicas(files, root)})
