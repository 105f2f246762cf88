"""A replica as an engine sees it, wherever it is: a store directory, a live broker, rows that one shipped.

An engine is given *sources*: small values that say where replicas are. `claims_at` asks them what is
committed, then `look_at` asks each of them once, before anything is scanned, and gets a `ReplicaView` of each
replica: what it says of itself, the segments to scan, and the `SegmentReader` that scans them. All of these
are picklable, hold nothing open, and work on any machine that reaches what they name, so an engine may hand
them to other processes; a reader is small, as it goes with every task. All calls block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import Finding, ReplicaRow, Row, finding
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
from dledger.runtime import Files
from dledger.runtime.remote_files import files_for


class SegmentReader(Protocol):
    """Reads segments where they are. What cannot be read, and damage, are rows; never an OSError."""

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        """All rows of one segment (`audit.scan.scan_segment`)."""

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        """Entries of one segment in the given index ranges (inclusive, ascending)."""


@runtime_checkable
class StampingReader(SegmentReader, Protocol):
    """One that can tell whether what it scanned is still the same, without reading it all again."""

    def stamp(self, task: SegmentTask, rows: Iterable[Row] | None = None) -> SegmentStamp | None:
        """`audit.segment_stamp.stamp`. OSError, FileNotFoundError for a segment that is gone."""


class ReplicaView(Protocol):
    """One replica, as it described itself before the scan."""

    @property
    def name(self) -> str:
        """Unique in an audit; in all rows."""

    @property
    def reader(self) -> SegmentReader:
        """For its segments."""

    def named(self, name: str) -> ReplicaView:
        """The same under another name."""

    def row(self) -> ReplicaRow:
        """Its own words."""

    def tasks(self) -> Sequence[SegmentTask]:
        """One per segment, in order of the log."""

    def side(self) -> Iterator[Row]:
        """Its own words first, then what belongs to it and to no segment of it. Never an OSError."""


@dataclass(frozen=True)
class Look:
    """What sources show: replicas, and what is to be said of those that cannot be looked at."""

    replicas: tuple[ReplicaView, ...]
    findings: tuple[Finding, ...] = ()


class ReplicaSource(Protocol):
    """Where one or more replicas are. Equal sources mean the same place."""

    @property
    def place(self) -> str:
        """For people: a path, an address."""

    def look(self) -> Look:
        """Its replicas now. StoreError when the place is wrong, so that nothing can be audited there."""

    def claim(self) -> Look:
        """The same, where only what the replicas say to be committed is of interest: segments may be left
        out, as listing many takes long."""


@dataclass(frozen=True)
class StoreReader:
    """`SegmentReader` of files."""

    files: Files

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        return scan_segment(self.files, task, block_entries)

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        return drill_segment(self.files, task, task.first_index, ranges)

    def stamp(self, task: SegmentTask, rows: Iterable[Row] | None = None) -> SegmentStamp | None:
        return stamp(self.files, task, rows)


@dataclass(frozen=True)
class StoreReplica:
    """`ReplicaView` of a log directory."""

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

    def side(self) -> Iterator[Row]:
        return scan_side(self.files, self.replica)


@dataclass(frozen=True)
class StoreSource:
    """A store directory (`storePathRootDir`): usually one replica, several when nodes share it."""

    place: str
    files: Files = field(compare=False, repr=False)

    @classmethod
    def at(cls, path: str, plain: Files | None = None) -> StoreSource:
        """Of a path or URL (`runtime.remote_files`). StoreError when it has no driver."""
        try:
            return cls(path, files_for(path, plain))
        except OSError as error:
            raise StoreError(str(error)) from error

    def look(self) -> Look:
        """A store that cannot be read is a finding: the others can be looked at and compared."""
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
    """All replicas of all sources, with unique names. StoreError when a place is wrong, or is given twice.

    `first_of_name`: of replicas with one name only the first, for who wants any copy of it.
    """
    _check_sources(sources)
    return _named([source.look() for source in sources], first_of_name)


def claims_at(sources: Sequence[ReplicaSource]) -> dict[str, int]:
    """What each replica of these sources knows to be committed: to be asked before the first of them lists
    its segments. StoreError as `look_at`."""
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
    """Entries of all replicas in the given index ranges (`audit.compare.Drill`)."""
    for replica in replicas:
        for task in replica.tasks():
            if wanted := overlap(task, ranges):
                yield from replica.reader.drill(task, wanted)


def overlap(task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The index ranges of which the segment may hold entries."""
    after = task.next_first
    return [span for span in ranges if span[1] >= task.first_index and (after is None or span[0] < after)]
