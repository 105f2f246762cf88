"""The interface of a replica for engines, wherever the replica is: in a store directory, on a live broker, or
in rows that a broker shipped. An engine is code that runs the scans: in this process, in several processes,
or with Spark.

An engine gets *sources*, which are small values that name places of replicas. `claims_at` asks them what is
committed. Then `look_at` asks each of them once, before anything is scanned, for a `ReplicaView` of each
replica: what it reports about itself, the segments to scan, and the `SegmentReader` that scans them. All
these objects can be pickled, hold nothing open, and work on any machine that can reach what they name, so an
engine may pass them to other processes. A reader is small, because it is sent with every task. All calls
block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import Finding, ReplicaRow, Row, finding
from dledger.audit.log_probe import LogProbe
from dledger.audit.scan import EntryRow, drill_segment, scan_segment, scan_side
from dledger.audit.segment_stamp import SegmentStamp, stamp
from dledger.audit.store_directory import (
    Replica,
    SegmentTask,
    StoreError,
    UnreadableStore,
    open_claims,
    open_store,
    renamed,
    segment_tasks,
)
from dledger.formats.entry import HEADER
from dledger.runtime import Files
from dledger.runtime.remote_files import files_for


class SegmentReader(Protocol):
    """Reads segments where they are stored. It reports damage and unreadable data as rows, and never raises
    OSError."""

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        """Yield all rows of one segment (`audit.scan.scan_segment`)."""

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        """Yield the entries of one segment in the given index ranges (inclusive, ascending)."""


@runtime_checkable
class StampingReader(SegmentReader, Protocol):
    """A reader that can detect whether a scanned segment is still the same, without reading it all again."""

    def stamp(self, task: SegmentTask, rows: Iterable[Row] | None = None) -> SegmentStamp | None:
        """Return the stamp of a segment (`audit.segment_stamp.stamp`). Raises OSError, and FileNotFoundError
        for a segment that no longer exists."""


class ReplicaView(Protocol):
    """One replica, as it described itself before the scan."""

    @property
    def name(self) -> str:
        """Name of the replica, unique in an audit and used in all rows."""

    @property
    def reader(self) -> SegmentReader:
        """The reader for its segments."""

    def named(self, name: str) -> ReplicaView:
        """This replica under another name."""

    def row(self) -> ReplicaRow:
        """What the replica reports about itself."""

    def tasks(self) -> Sequence[SegmentTask]:
        """One task for each segment, in order of the log."""

    def entry(self, index: int) -> bytes | None:
        """Read one entry with its header; None if that is not possible. Never raises OSError."""

    def side(self) -> Iterator[Row]:
        """Yield the replica's row, then the other rows that belong to it and to no segment. Never raises
        OSError."""


@dataclass(frozen=True)
class Look:
    """The replicas of sources, and findings for the replicas that cannot be examined."""

    replicas: tuple[ReplicaView, ...]
    findings: tuple[Finding, ...] = ()


class ReplicaSource(Protocol):
    """Names a place with one or more replicas. Equal sources mean the same place."""

    @property
    def place(self) -> str:
        """The place in readable form: a path or an address."""

    def look(self) -> Look:
        """Return the replicas of the source as they are now. Raises StoreError if the place is wrong, so that
        nothing can be audited there."""

    def claim(self) -> Look:
        """Return the replicas when only their committed indexes are needed. Segments may be left out, because
        listing many takes long."""


@dataclass(frozen=True)
class StoreReader:
    """Reads the segments of a store directory (`SegmentReader`)."""

    files: Files

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        return scan_segment(self.files, task, block_entries)

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        return drill_segment(self.files, task, task.first_index, ranges)

    def stamp(self, task: SegmentTask, rows: Iterable[Row] | None = None) -> SegmentStamp | None:
        return stamp(self.files, task, rows)


@dataclass(frozen=True)
class StoreReplica:
    """A replica in a store directory (`ReplicaView`)."""

    replica: Replica
    files: Files

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def reader(self) -> StoreReader:
        return StoreReader(self.files)

    def named(self, name: str) -> StoreReplica:
        return StoreReplica(renamed(self.replica, name), self.files)

    def row(self) -> ReplicaRow:
        return self.replica.row()

    def tasks(self) -> Sequence[SegmentTask]:
        return segment_tasks(self.replica)

    def entry(self, index: int) -> bytes | None:
        try:
            found = LogProbe(self.files, self.replica).entry(index)
        except OSError:
            return None
        return None if found is None else HEADER.pack(*found[0]) + found[1]

    def side(self) -> Iterator[Row]:
        return scan_side(self.files, self.replica)


@dataclass(frozen=True)
class StoreSource:
    """A store directory (`storePathRootDir`) as a source. It usually has one replica, or several if nodes
    share it."""

    place: str
    files: Files = field(compare=False, repr=False)

    @classmethod
    def at(cls, path: str, plain: Files | None = None) -> StoreSource:
        """Make the source for a path or URL (`runtime.remote_files`). Raises StoreError if there is no driver
        for it."""
        try:
            return cls(path, files_for(path, plain))
        except OSError as error:
            raise StoreError(str(error)) from error

    def look(self) -> Look:
        """Return the replicas of the store. A store that cannot be read is a finding, so that the others can
        still be audited."""
        return self._look(open_store)

    def claim(self) -> Look:
        return self._look(open_claims)

    def _look(self, opened: Callable[[Files, str], list[Replica]]) -> Look:
        try:
            replicas = opened(self.files, self.place)
        except UnreadableStore as error:
            return Look((), (finding("UNREADABLE", error.node, str(error)),))
        return Look(tuple(StoreReplica(each, self.files) for each in replicas))


def look_at(sources: Sequence[ReplicaSource], *, first_of_name: bool = False) -> Look:
    """Return all replicas of all sources, with unique names. Raises StoreError if a place is wrong, or is
    given twice.

    With `first_of_name`, only the first of several replicas with the same name is returned, for callers to
    which any copy is good enough.
    """
    _check_sources(sources)
    return _named([source.look() for source in sources], first_of_name)


def claims_at(sources: Sequence[ReplicaSource]) -> dict[str, int]:
    """Return the committed index of each replica of these sources. Call it before the first of them lists its
    segments. Raises StoreError as `look_at` does."""
    _check_sources(sources)
    look = _named([source.claim() for source in sources])
    return {replica.name: replica.row().committed for replica in look.replicas}


def _named(looks: Sequence[Look], first_of_name: bool = False) -> Look:
    replicas = [replica for look in looks for replica in look.replicas]
    if first_of_name:
        replicas = list({replica.name: replica for replica in reversed(replicas)}.values())[::-1]
    names = Counter(replica.name for replica in replicas)
    return Look(
        tuple(
            replica.named(f"{replica.name}@{replica.row().store}") if names[replica.name] > 1 else replica
            for replica in replicas
        ),
        tuple(
            found
            for look in looks
            for found in look.findings
            if found.code != "UNREACHABLE" or found.replica not in names  # given by other means
        ),
    )


def _check_sources(sources: Sequence[ReplicaSource]) -> None:
    for number, source in enumerate(sources):
        if source in sources[:number]:
            raise StoreError(f"{source.place} is given twice: give each replica once")


def drill(replicas: Iterable[ReplicaView], ranges: Sequence[tuple[int, int]]) -> Iterator[EntryRow]:
    """Yield the entries of all replicas in the given index ranges (`audit.compare.Drill`)."""
    for replica in replicas:
        for task in replica.tasks():
            if wanted := overlap(task, ranges):
                yield from replica.reader.drill(task, wanted)


def entry_of(replicas: Iterable[ReplicaView], name: str, index: int) -> bytes | None:
    """Read one entry of the replica with this name (`audit.whole_copies.ReadEntry`)."""
    return next((one.entry(index) for one in replicas if one.name == name), None)


def overlap(task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those of the index ranges for which the segment may hold entries."""
    after = task.next_first
    return [span for span in ranges if span[1] >= task.first_index and (after is None or span[0] < after)]
