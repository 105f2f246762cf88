"""Finds the timer messages that are due next (TimerWheel, TimerLog), in the ConsumeQueue of their topic.

A unit of that queue has the due time of its message (`formats.timers`): 20 bytes on disk for each waiting
message. Only the units that are due soonest are in memory. A worker finds them by reading the queue (about 50
ms for a million units), and searches for the next ones before these are used up. So there are no files that
could differ from the log, and a new leader needs only the queue.

The order of delivery is (due time, queue offset): of messages that are due at the same time, the one sent
first is delivered first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dledger.broker.store.consume_queue import read_units
from dledger.formats.consume_queue import UNIT, UNIT_SIZE, UNITS_PER_FILE
from dledger.formats.state import TimerProgress
from dledger.formats.state.timers import in_order, still_waits
from dledger.runtime.files import Files

Array = npt.NDArray[Any]
Place = tuple[int, int]
"""A place in the order of delivery: due time in ms, queue offset."""
END: Final[Place] = (1 << 62, 0)
"""The place behind all others."""
NEAR_UNITS = 200_000
"""Most units of messages in memory that one search finds, 32 bytes each; and as many recalls."""
ARRIVED_UNITS = 100_000
"""Most units in memory that arrived since the search, 32 bytes each; with more, the later half is left to the
next search. Recalls take about 200 bytes each."""
HEAP_UNITS = 4096
"""At most this many of the newest units that arrived are on a heap, at about 200 bytes each. With more, they
are merged into the columns: 3 ms of the loop."""
_UNITS: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])


class Timer(NamedTuple):
    """One unit. `due`: time in ms."""

    due: int
    offset: int
    position: int
    size: int


class Progress:
    """The rows of the table `timers`, which show whether a unit still waits."""

    def __init__(self, rows: Sequence[TimerProgress]) -> None:
        self.rows: list[TimerProgress] = in_order(rows)
        self.begin: int = self.rows[0].begin if self.rows else END[0]
        """No unit before this offset waits."""

    def waits(self, due: int, offset: int) -> bool:
        """Whether a unit still waits."""
        return bool(self.rows) and still_waits(self.rows, due, offset)

    def all_wait(self, units: Columns) -> bool:
        """Whether all of these units, which are in order of delivery, still wait."""
        if len(self.rows) != 1:
            return all(map(self.waits, units.due.tolist(), units.offset.tolist()))
        (row,) = self.rows
        first = int(units.due[0]), int(units.offset[0])
        return first >= row.place and int(units.offset.min()) >= row.begin

    def waiting(self, due: Array, first: int) -> Array:
        """A mask of the units from offset `first` on that wait."""
        offsets = np.arange(first, first + len(due))
        mask = np.zeros(len(due), bool)
        for row in self.rows:
            at = max(row.begin - first, 0)
            if at < len(due):
                late, equal = due[at:] > row.time, due[at:] == row.time
                mask[at:] = late | (equal & (offsets[at:] >= row.next))
        return mask

    @property
    def oldest(self) -> int:
        """The earliest due time, in ms, of recalls that still have an effect."""
        return min((row.time for row in self.rows), default=END[0])


@dataclass(frozen=True, slots=True)
class Columns:
    """Units in columns."""

    due: Array
    offset: Array
    position: Array
    size: Array

    def __len__(self) -> int:
        return len(self.due)

    def __getitem__(self, which: Any) -> Columns:
        return Columns(self.due[which], self.offset[which], self.position[which], self.size[which])

    def sorted(self) -> Columns:
        """The units in order of delivery; they must be in order of offsets."""
        return self[np.argsort(self.due, kind="stable")]

    def timers(self, first: int, last: int) -> list[Timer]:
        """Units `first` to `last` as a list."""
        part = (column[first:last].tolist() for column in (self.due, self.offset, self.position, self.size))
        return list(map(Timer, *part))


def _joined(parts: Sequence[Columns]) -> Columns:
    if not parts:
        empty = np.empty(0, np.int64)
        return Columns(empty, empty, empty, empty)
    return Columns(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("due", "offset", "position", "size")
        )
    )


NO_UNITS: Final = _joined([])


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: all waiting units in [begin, end) before `horizon` in the order of delivery,
    and the recalls that may apply to them. `waiting`: number of waiting units, `first`: offset of the first
    of them, `end` if none waits."""

    messages: Columns
    recalls: Columns
    horizon: Place
    end: int
    waiting: int
    first: int


@dataclass(slots=True)
class QueueUnits:
    """Units [first, end) of a queue: those before `flushed` are in files of `directory`, the others in
    `tail`."""

    directory: str
    first: int
    flushed: int
    end: int
    tail: bytes

    def chunks(self, files: Files) -> Iterator[tuple[int, Array]]:
        """Pairs (offset of the first unit, units), one file after the other. OSError if a file is missing."""
        at = self.first
        stop = min(self.flushed, self.end)
        while at < stop:
            count = min(stop - at, UNITS_PER_FILE)
            data = read_units(files, self.directory, at, count)
            if not data:
                raise FileNotFoundError(f"{self.directory} has no unit {at}")
            yield at, np.frombuffer(data, _UNITS)
            at += len(data) // UNIT_SIZE
        if at < self.end:
            rest = self.tail[(at - self.flushed) * UNIT_SIZE : (self.end - self.flushed) * UNIT_SIZE]
            yield at, np.frombuffer(rest, _UNITS)


def look(files: Files, units: QueueUnits, progress: Progress, most: int) -> Found:
    """Search the units for the `most` that are due first. For a worker."""
    messages: list[Columns] = []
    recalls: list[Columns] = []
    held = waiting = 0
    first = units.end
    horizon = END
    for begin, chunk in units.chunks(files):
        code = chunk["code"].astype(np.int64)
        due = code >> 1
        mask = progress.waiting(due, begin) & (code > 0)
        count = int(np.count_nonzero(mask))
        if count:
            waiting += count
            first = min(first, begin + int(np.argmax(mask)))
        recall = ((code & 1) == 1) & (due >= progress.oldest) & (due <= horizon[0])
        # One of the horizon's time that lies behind all units so far lies behind it.
        mask &= ((code & 1) == 0) & (due < horizon[0])
        for into, which in ((messages, mask), (recalls, recall)):
            at = np.flatnonzero(which)
            if len(at):
                columns = (due[at], at + begin, chunk["position"][at], chunk["size"][at])
                into.append(Columns(*(column.astype(np.int64) for column in columns)))
                held += len(at) if into is messages else 0
        if held > 2 * most:
            messages, horizon = _cut(messages, most, horizon)
            held = most
    messages, horizon = _cut(messages, most, horizon)
    cancelled = _joined(recalls).sorted()
    cancelled = cancelled[cancelled.due <= horizon[0]]
    found = messages[0]
    if len(cancelled) > most:
        # Whole seconds, or what their unit is: a message comes when all recalls of its time are known.
        last = int(cancelled.due[most])
        if len(found) and last > int(found.due[0]):
            horizon = min(horizon, (last, 0))
            found, cancelled = found[found.due < last], cancelled[cancelled.due < last]
    return Found(found, cancelled, horizon, units.end, waiting, first)


def _cut(parts: list[Columns], most: int, horizon: Place) -> tuple[list[Columns], Place]:
    found = _joined(parts).sorted()
    if len(found) > most:
        horizon = (int(found.due[most]), int(found.offset[most]))
        found = found[:most]
    return [found], horizon


def first_waiting(files: Files, units: QueueUnits, progress: Progress, passed_ms: int) -> int:
    """Offset of the first unit that waits; the end if none does. Recalls of messages due up to `passed_ms` do
    not count. For a worker."""
    for begin, chunk in units.chunks(files):
        code = chunk["code"].astype(np.int64)
        mask = progress.waiting(code >> 1, begin) & (code > 0)
        mask &= ((code & 1) == 0) | (code >> 1 > passed_ms)
        if mask.any():
            return begin + int(np.argmax(mask))
    return units.end


@dataclass(slots=True)
class Wheel:
    """The units that are due next, up to `horizon`. Lives on the event loop.

    Of units that are due at the same time, those of the search come first, then `late`, then `arrived`: this
    is also the order of their offsets."""

    found: Found
    at: int = 0
    """Units of the search below this index were taken."""
    late: Columns = field(default_factory=lambda: NO_UNITS)
    """Units that arrived since the search, in order of delivery, except the newest."""
    late_at: int = 0
    """Units of `late` below this index were taken."""
    arrived: list[Timer] = field(default_factory=list)
    """A heap of the newest units that arrived since the search."""
    recalls: list[Timer] = field(default_factory=list)
    """A heap of the recalls that arrived since the search."""
    recalls_at: int = 0
    seen: int = 0
    """Units before this offset were examined."""
    settled: int = 0
    """Units before this offset are not on the heap."""
    horizon: Place = END

    @classmethod
    def of(cls, found: Found) -> Wheel:
        """A wheel with the result of a search."""
        return cls(found, seen=found.end, settled=found.end, horizon=found.horizon)

    @staticmethod
    def listed(units: bytes, first: int) -> list[tuple[Timer, bool]]:
        """Units from offset `first` on, each with whether it is a recall."""
        return [
            (Timer(code >> 1, first + number, position, size), bool(code & 1))
            for number, (position, size, code) in enumerate(UNIT.iter_unpack(units))
        ]

    @property
    def complete(self) -> bool:
        """Whether every waiting unit is known."""
        return self.horizon == END

    @property
    def count(self) -> int:
        """Units in memory."""
        return len(self.found.messages) - self.at + self.came

    @property
    def came(self) -> int:
        """Units in memory that arrived since the search."""
        return len(self.late) - self.late_at + len(self.arrived)

    def arrive(self, units: bytes, progress: Progress) -> None:
        """Add the units from offset `seen` on."""
        for position, size, code in UNIT.iter_unpack(units):
            due, offset = code >> 1, self.seen
            self.seen += 1
            if code <= 0:
                continue
            if code & 1:
                if progress.oldest <= due <= self.horizon[0]:
                    heapq.heappush(self.recalls, Timer(due, offset, position, size))
            elif (due, offset) < self.horizon and progress.waits(due, offset):
                heapq.heappush(self.arrived, Timer(due, offset, position, size))
        if len(self.arrived) > HEAP_UNITS:
            self._settle()
        if self.came > ARRIVED_UNITS or len(self.recalls) > ARRIVED_UNITS:
            self._forget_late()

    def _settle(self) -> None:
        """Move the units of the heap to the columns, from which they are taken at less cost."""
        late = self.late[self.late_at :]
        self.late = _merged(late, columns_of(sorted(self.arrived)))
        self.late_at, self.settled = 0, self.seen
        self.arrived = []

    def _forget_late(self) -> None:
        """Forget the half of the arrived units that is due later."""
        self._settle()
        late = self.late
        if len(late) > ARRIVED_UNITS:
            middle = len(late) // 2
            self.horizon = min(self.horizon, (int(late.due[middle]), int(late.offset[middle])))
        if len(self.recalls) > ARRIVED_UNITS:
            self.recalls.sort()
            # Never stop within a due time from which messages were taken: all its recalls must be known.
            self.horizon = min(self.horizon, (self.recalls[len(self.recalls) // 2].due, 0))
        self.late = _before(late, self.horizon)
        self.recalls = [one for one in self.recalls if one.due <= self.horizon[0]]
        heapq.heapify(self.recalls)

    def next_due(self) -> int | None:
        """Due time of the next known unit, in ms; None if there is none."""
        first = self._first()
        return None if first is None or first >= self.horizon else first[0]

    def _first(self) -> Place | None:
        places = [(one.due, one.offset) for one in self.arrived[:1]]
        for columns, at in ((self.found.messages, self.at), (self.late, self.late_at)):
            if at < len(columns):
                places.append((int(columns.due[at]), int(columns.offset[at])))
        return min(places, default=None)

    def take(self, until_ms: int, most: int) -> Columns:
        """Take the next units that are due at this time or earlier, at most `most`."""
        some = _merged(
            _due(self.found.messages, self.at, until_ms, most), _due(self.late, self.late_at, until_ms, most)
        )[:most]
        if until_ms >= self.horizon[0]:
            some = _before(some, self.horizon)
        if self.arrived and self.arrived[0].due <= until_ms:
            some = columns_of(self._with_newest(some.timers(0, most), until_ms, most))
        of_found = int(np.count_nonzero(some.offset < self.found.end))
        self.at += of_found
        self.late_at += int(np.count_nonzero(some.offset < self.settled)) - of_found
        return some

    def _with_newest(self, listed: list[Timer], until_ms: int, most: int) -> list[Timer]:
        """These units merged with those of the heap, which are taken from it."""
        taken: list[Timer] = []
        place = 0
        while len(taken) < most:
            known = listed[place] if place < len(listed) else None
            if self.arrived and (known is None or self.arrived[0] < known):
                one = self.arrived[0]
                if one.due > until_ms or (one.due, one.offset) >= self.horizon:
                    break
                heapq.heappop(self.arrived)
            elif known is not None:
                one = known
                place += 1
            else:
                break
            taken.append(one)
        return taken

    def take_recalls(self, until_ms: int) -> list[Timer]:
        """Take the recalls of messages due at this time or earlier."""
        columns = self.found.recalls
        stop = int(np.searchsorted(columns.due, until_ms, side="right"))
        taken = columns.timers(self.recalls_at, stop) if stop > self.recalls_at else []
        self.recalls_at = max(self.recalls_at, stop)
        while self.recalls and self.recalls[0].due <= until_ms:
            taken.append(heapq.heappop(self.recalls))
        return taken


def columns_of(units: Sequence[Timer]) -> Columns:
    """Units as columns."""
    return Columns(*np.array(units, np.int64).reshape(-1, 4).T)


def _before(columns: Columns, place: Place) -> Columns:
    """The units that come before a place in the order of delivery."""
    due, offset = place
    return columns[(columns.due < due) | ((columns.due == due) & (columns.offset < offset))]


def _due(columns: Columns, at: int, until_ms: int, most: int) -> Columns:
    """The next units from index `at` that are due at this time or earlier, at most `most`."""
    some = columns[at : at + most]
    return some[: int(np.searchsorted(some.due, until_ms, side="right"))]


def _merged(one: Columns, other: Columns) -> Columns:
    """Both merged in order of delivery. Each must be in that order, and the offsets of `other` must be
    higher."""
    if not len(one) or not len(other):
        return one if len(one) else other
    places = np.searchsorted(one.due, other.due, side="right")
    return Columns(
        *(
            np.insert(getattr(one, name), places, getattr(other, name))
            for name in ("due", "offset", "position", "size")
        )
    )
