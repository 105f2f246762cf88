"""Queues of a store directory: what the ConsumeQueue files say, limited to committed messages that the log
still has.

A ConsumeQueue is derived data, so it is only a hint. A reader that finds a message through it checks that
the log has the same message at that place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dledger.audit.store_directory import Replica, StoreError
from dledger.audit.unit_files import UnitFiles
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.formats.record import BORN_HOST_V6, STORE_TIMESTAMP_AT
from dledger.runtime import File, Files
from dledger.runtime.remote_files import files_for
from dledger.spark.entry_ranges import read_windows
from dledger.spark.log_lives import NO_LIVES, LogLives
from dledger.spark.offsets import DataLost, batch_times, no_queue, nothing_stored, out_of_range
from dledger.spark.option_values import Queue
from dledger.spark.options import Options
from dledger.spark.selection import ANY, Bounds, topic_and_group, wants_queue
from dledger.spark.stores import IndexUnits, known_committed, pieces

UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_SYS_FLAG_AT = 36
_HOST_V6_MORE = 12


@dataclass(frozen=True)
class QueueRow:
    """One queue with its messages [low, high), and the store times of the first and the last message in
    ms. The times are None for an empty queue."""

    topic: str
    queue_id: int
    bounds: Bounds
    first_ms: int | None
    last_ms: int | None


class QueueFiles:
    """The queues of one replica, by its ConsumeQueue files. Blocking. Raises StoreError if it is not
    certain that the files belong to the replica."""

    def __init__(self, replica: Replica, lives: LogLives = NO_LIVES) -> None:
        if not replica.queue_root:
            raise StoreError(
                f"{replica.store}: no ConsumeQueue that certainly belongs to this node: read by log "
                "index instead (offsetType=log, view=messages)"
            )
        self.replica = replica
        self.files: Files = files_for(replica.directory)
        self._log_start = replica.segments[0].start if replica.segments else 0
        self._lives = lives
        self.end: int = committed_end(replica)
        """Log offset just after the last committed entry."""

    def queues(self) -> list[Queue]:
        """Return topic and number of each queue that has files."""
        root = self.replica.queue_root
        return [
            (topic, int(number))
            for topic in self.files.listdir(root)
            for number in sorted(self.files.listdir(f"{root}/{topic}"))
            if number.isdigit()
        ]

    def units(self, topic: str, queue_id: int) -> UnitFiles:
        """Open the ConsumeQueue files of one queue. The caller closes them."""
        return unit_files(self.files, self.replica.queue_root, topic, queue_id)

    def bounds(self, topic: str, queue_id: int) -> Bounds:
        """Return the range of offsets of the committed messages that the log still has."""
        units = self.units(topic, queue_id)
        try:
            return self._bounds(units)
        finally:
            units.close()

    def at_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the end of the queue if
        there is none."""
        units = self.units(topic, queue_id)
        try:
            bounds = self._bounds(units)
            return _first(bounds, lambda offset: self._stored_ms(units, offset) >= timestamp_ms)
        finally:
            units.close()

    def rows(self, wants: Callable[[str, int], bool]) -> Iterator[QueueRow]:
        """Yield one row for each queue for which `wants(topic, queue_id)` is true."""
        for topic, queue_id in self.queues():
            if not wants(topic, queue_id):
                continue
            units = self.units(topic, queue_id)
            try:
                if self._is_of_deleted(topic, units):
                    continue
                bounds = self._bounds(units)
                filled = bounds.low < bounds.high
                first = self._stored_ms(units, bounds.low) if filled else None
                last = self._stored_ms(units, bounds.high - 1) if filled else None
                yield QueueRow(topic, queue_id, bounds, first, last)
            finally:
                units.close()

    def _is_of_deleted(self, topic: str, units: UnitFiles) -> bool:
        """Whether the files are those of a deleted topic, because the node has not removed them yet."""
        begin, end = self._lives.begin(topic), units.end()
        return begin > 0 and end > 0 and unpack_unit(units.read(end - 1, 1)).physical_offset < begin

    def _bounds(self, units: UnitFiles) -> Bounds:
        """Find the bounds by bisection. It is possible as positions rise with offsets, and units that were
        never written are zeros."""
        every = Bounds(units.first, units.end())

        def position(offset: int) -> int:
            unit = unpack_unit(units.read(offset, 1))
            return unit.physical_offset if unit.size > 0 else -1

        low = _first(every, lambda offset: position(offset) >= self._log_start)
        return Bounds(low, _first(Bounds(low, every.high), lambda offset: position(offset) >= self.end))

    def _stored_ms(self, units: UnitFiles, offset: int) -> int:
        position = unpack_unit(units.read(offset, 1)).physical_offset
        start = position - position % self.replica.segment_size
        file: File = self.files.open_read(self.replica.places.path_of(start))
        try:
            data = file.pread(STORE_TIMESTAMP_AT + _HOST_V6_MORE + 8, position - start)
        finally:
            file.close()
        try:
            (sys_flag,) = struct.unpack_from(">i", data, _SYS_FLAG_AT)
            at = STORE_TIMESTAMP_AT + (_HOST_V6_MORE if sys_flag & BORN_HOST_V6 else 0)
            return int(struct.unpack_from(">q", data, at)[0])
        except struct.error as error:
            raise StoreError(f"{file.path}: no record at {position}: the ConsumeQueue is damaged") from error


def check_bounds(wanted: Mapping[Queue, Bounds], replicas: Iterable[Replica]) -> None:
    """Raises DataLost if a batch needs offsets that were deleted, or that are not committed yet."""
    for replica in replicas if wanted else ():
        files = QueueFiles(replica)
        known = files.queues()
        for (name, queue_id), asked in wanted.items():
            topic, group = topic_and_group(name)
            if (topic, queue_id) not in known or group not in ("", replica.group):
                continue
            there = files.bounds(topic, queue_id)
            if asked.low and not there.low <= asked.low <= there.high:
                raise DataLost(out_of_range(name, queue_id, "startingOffsets", asked.low, there))
            if asked.high != ANY.high and asked.high > there.high:
                raise DataLost(out_of_range(name, queue_id, "endingOffsets", asked.high, there))


def offsets_at_times(options: Options, replica: Replica) -> dict[Queue, Bounds]:
    """Return the offsets of the messages in the range of store times that the options name for some queues.
    Raises BadOption for a queue that does not exist, and for one that has no message at or after its starting
    time, if the options say so."""
    strict, named = options.unmatched == "error", batch_times(options)
    if not named and not (strict and options.starting_ms is not None):
        return {}
    files = QueueFiles(replica)
    known = [queue for queue in files.queues() if wants_queue(options.topics, *queue)]
    option = "startingOffsetsByTimestamp"
    if options.starting_ms is not None:
        option, all_times = "startingTimestamp", Bounds(options.starting_ms)
        named = {**dict.fromkeys(known, all_times), **named} if strict else named
    found: dict[Queue, Bounds] = {}
    for queue, times in named.items():
        topic, group = topic_and_group(queue[0])
        if group not in ("", replica.group):
            continue
        if (topic, queue[1]) not in known:
            raise no_queue(option if times.low else "endingOffsetsByTimestamp", queue, known)
        there = files.bounds(topic, queue[1])
        low = files.at_time(topic, queue[1], times.low) if times.low else there.low
        high = files.at_time(topic, queue[1], times.high) if times.high < ANY.high else ANY.high
        if strict and times.low and low >= there.high:
            raise nothing_stored(option, queue, times.low)
        found[queue] = Bounds(low, high)
    return found


def unit_files(files: Files, root: str, topic: str, queue_id: int) -> UnitFiles:
    """Open the ConsumeQueue files of one queue."""
    return UnitFiles(files, f"{root}/{topic}/{queue_id}", UNIT_SIZE)


def read_units(units: UnitFiles, bounds: Bounds) -> npt.NDArray[np.void]:
    """Read the units of the ConsumeQueue for these offsets, as columns."""
    return np.frombuffer(units.read(bounds.low, max(0, bounds.high - bounds.low)), UNIT)


def committed_end(replica: Replica) -> int:
    """Return the log offset just after the last committed entry. It is taken from the entry's unit in the
    index files or, if this is missing, from the log. Raises StoreError."""
    if known_committed(replica) < 0:
        return 0
    files = files_for(replica.directory)
    units = IndexUnits(files, replica)
    try:
        found = units.end_position(replica.committed)
    finally:
        units.close()
    if found is not None:
        return found
    last = 0
    for piece in pieces(replica, replica.committed, [(replica.committed, replica.committed)]):
        for window in read_windows(piece):
            last = int(window.columns.pos[-1] + window.columns.size[-1])
    return last


def _first(bounds: Bounds, holds: Callable[[int], bool]) -> int:
    """Return the first offset of [low, high) for which `holds` is true, else `high`. After that offset
    `holds` must be true too."""
    low, high = bounds.low, bounds.high
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
