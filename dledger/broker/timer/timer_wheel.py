"""Finds the timer messages that are due next (TimerWheel, TimerLog), in the ConsumeQueue of their topic.

A unit of that ConsumeQueue describes one message and holds its due time (`formats.timers`): 20 bytes on disk
for each waiting message. Only the units that are due soonest are in memory. A worker searches for them by
reading the ConsumeQueue (about 50 ms for a million units). The next search begins before the units in memory
are used up. So there are no files that could differ from the log, and a new leader needs only the
ConsumeQueue.

The order of delivery is (due time, queue offset). If messages are due at the same time, the one sent first is
delivered first.
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
"""The place after all other places."""
NEAR_UNITS = 200_000
"""Largest number of waiting messages that one search keeps in memory, 32 bytes each. The same limit applies
to the recalls that it keeps."""
ARRIVED_UNITS = 100_000
"""Largest number of messages in memory that arrived since the search, 32 bytes each. If there are more, the
half that is due later is dropped, and the next search finds it again. The same limit applies to recalls,
which take about 200 bytes each."""
HEAP_UNITS = 4096
"""Largest number of messages on the heap of those that arrived last, about 200 bytes each. If there are more,
all of them are merged into the columns, which takes 3 ms of the event loop."""
_UNITS: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])


class Timer(NamedTuple):
    """The unit of one timer message (or recall) in the ConsumeQueue. `due`: time in ms."""

    due: int
    offset: int
    position: int
    size: int


class Progress:
    """The rows of the table `timers`. They show whether the message of a unit still waits."""

    def __init__(self, rows: Sequence[TimerProgress]) -> None:
        self.rows: list[TimerProgress] = in_order(rows)
        self.begin: int = self.rows[0].begin if self.rows else END[0]
        """Queue offset below which no message waits."""

    def waits(self, due: int, offset: int) -> bool:
        """Whether the message with this due time and queue offset still waits."""
        return bool(self.rows) and still_waits(self.rows, due, offset)

    def all_wait(self, units: Columns) -> bool:
        """Whether the messages of all these units still wait. The units must be in order of delivery."""
        if len(self.rows) != 1:
            return all(map(self.waits, units.due.tolist(), units.offset.tolist()))
        (row,) = self.rows
        first = int(units.due[0]), int(units.offset[0])
        return first >= row.place and int(units.offset.min()) >= row.begin

    def waiting(self, due: Array, first: int) -> Array:
        """Return a mask of the messages from queue offset `first` on: True for each message that waits.
        `due`: their due times."""
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
        """A due time in ms. Recalls of messages that are due earlier no longer have an effect."""
        return min((row.time for row in self.rows), default=END[0])


@dataclass(frozen=True, slots=True)
class Columns:
    """Units of timer messages as columns: arrays with one item for each message."""

    due: Array
    offset: Array
    position: Array
    size: Array

    def __len__(self) -> int:
        return len(self.due)

    def __getitem__(self, which: Any) -> Columns:
        return Columns(self.due[which], self.offset[which], self.position[which], self.size[which])

    def sorted(self) -> Columns:
        """Return the units sorted into the order of delivery. They must be in order of their offsets."""
        return self[np.argsort(self.due, kind="stable")]

    def timers(self, first: int, last: int) -> list[Timer]:
        """Return the units from index `first` up to, but not including, `last` as a list."""
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
    """The result of a search among the units with offsets in [begin, end).

    * `messages`   all waiting units before `horizon`, in order of delivery
    * `recalls`    the recalls that may apply to these units
    * `horizon`    a place in the order of delivery: waiting units at or after it were not kept
    * `waiting`    number of all waiting units
    * `first`      offset of the first waiting unit; `end` if none waits
    """

    messages: Columns
    recalls: Columns
    horizon: Place
    end: int
    waiting: int
    first: int


@dataclass(slots=True)
class QueueUnits:
    """The units [first, end) of a ConsumeQueue. Those below offset `flushed` are in files of `directory`, the
    others in `tail`."""

    directory: str
    first: int
    flushed: int
    end: int
    tail: bytes

    def chunks(self, files: Files) -> Iterator[tuple[int, Array]]:
        """Yield pairs of an offset and the units from that offset on, one file after the other. Raises
        OSError if a file is missing."""
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
    """Search for the `most` waiting messages that are due first. Runs in a worker."""
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
        # A unit due exactly at the horizon's time comes after the horizon, because its offset is higher.
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
        # Cut between due times, because all recalls of a due time must be known when it is delivered.
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
    """Return the queue offset of the first message or recall that waits, or the end if none waits. Recalls of
    messages due up to `passed_ms` do not count. Runs in a worker."""
    for begin, chunk in units.chunks(files):
        code = chunk["code"].astype(np.int64)
        mask = progress.waiting(code >> 1, begin) & (code > 0)
        mask &= ((code & 1) == 0) | (code >> 1 > passed_ms)
        if mask.any():
            return begin + int(np.argmax(mask))
    return units.end


@dataclass(slots=True)
class Wheel:
    """The timer messages that are due next, up to `horizon`, as units of the ConsumeQueue. Only the event
    loop uses this object.

    If messages are due at the same time, those of `found` come first, then those of `late`, then those of
    `arrived`. This is also the order of their offsets.
    """

    found: Found
    at: int = 0
    """Index into the messages that the search found: those below this index were taken."""
    late: Columns = field(default_factory=lambda: NO_UNITS)
    """Messages that arrived since the search, in order of delivery, without those on the heap `arrived`."""
    late_at: int = 0
    """Index into `late`: messages below this index were taken."""
    arrived: list[Timer] = field(default_factory=list)
    """A heap of the messages that arrived last."""
    recalls: list[Timer] = field(default_factory=list)
    """A heap of the recalls that arrived since the search."""
    recalls_at: int = 0
    seen: int = 0
    """Queue offset below which all units of the ConsumeQueue were examined."""
    settled: int = 0
    """Queue offset below which no message is on the heap `arrived`."""
    horizon: Place = END

    @classmethod
    def of(cls, found: Found) -> Wheel:
        """Return a wheel with the result of a search."""
        return cls(found, seen=found.end, settled=found.end, horizon=found.horizon)

    @staticmethod
    def listed(units: bytes, first: int) -> list[tuple[Timer, bool]]:
        """Return the units from queue offset `first` on, each with a flag: True for a recall."""
        return [
            (Timer(code >> 1, first + number, position, size), bool(code & 1))
            for number, (position, size, code) in enumerate(UNIT.iter_unpack(units))
        ]

    @property
    def complete(self) -> bool:
        """Whether all waiting messages are known, so that no further search is needed."""
        return self.horizon == END

    @property
    def count(self) -> int:
        """Number of messages in memory that were not taken."""
        return len(self.found.messages) - self.at + self.came

    @property
    def came(self) -> int:
        """Number of messages in memory that arrived since the search and were not taken."""
        return len(self.late) - self.late_at + len(self.arrived)

    def arrive(self, units: bytes, progress: Progress) -> None:
        """Add the units of new messages and recalls, which begin at queue offset `seen`, as far as they wait
        and come before the horizon."""
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
        """Move the messages from the heap `arrived` to the columns `late`, from which they can be taken
        faster."""
        late = self.late[self.late_at :]
        self.late = _merged(late, columns_of(sorted(self.arrived)))
        self.late_at, self.settled = 0, self.seen
        self.arrived = []

    def _forget_late(self) -> None:
        """Lower the horizon to the middle of the messages that arrived, or of the recalls, whichever exceeds
        `ARRIVED_UNITS`. Messages and recalls after the new horizon are dropped; the next search finds them
        again."""
        self._settle()
        late = self.late
        if len(late) > ARRIVED_UNITS:
            middle = len(late) // 2
            self.horizon = min(self.horizon, (int(late.due[middle]), int(late.offset[middle])))
        if len(self.recalls) > ARRIVED_UNITS:
            self.recalls.sort()
            # Cut between due times, because all recalls of a due time must be known when it is delivered.
            self.horizon = min(self.horizon, (self.recalls[len(self.recalls) // 2].due, 0))
        self.late = _before(late, self.horizon)
        self.recalls = [one for one in self.recalls if one.due <= self.horizon[0]]
        heapq.heapify(self.recalls)

    def next_due(self) -> int | None:
        """The due time of the next known message, in ms, or None if no known message comes before the
        horizon."""
        first = self._first()
        return None if first is None or first >= self.horizon else first[0]

    def _first(self) -> Place | None:
        places = [(one.due, one.offset) for one in self.arrived[:1]]
        for columns, at in ((self.found.messages, self.at), (self.late, self.late_at)):
            if at < len(columns):
                places.append((int(columns.due[at]), int(columns.offset[at])))
        return min(places, default=None)

    def take(self, until_ms: int, most: int) -> Columns:
        """Take the units of the next messages that are due at `until_ms` or earlier, at most `most`."""
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
        """Merge the messages of `listed` with messages from the heap `arrived`, at most `most` together. The
        heap loses the messages that are taken from it."""
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
        """Take the recalls of messages that are due at `until_ms` or earlier."""
        columns = self.found.recalls
        stop = int(np.searchsorted(columns.due, until_ms, side="right"))
        taken = columns.timers(self.recalls_at, stop) if stop > self.recalls_at else []
        self.recalls_at = max(self.recalls_at, stop)
        while self.recalls and self.recalls[0].due <= until_ms:
            taken.append(heapq.heappop(self.recalls))
        return taken


def columns_of(units: Sequence[Timer]) -> Columns:
    """Return a list of units as columns."""
    return Columns(*np.array(units, np.int64).reshape(-1, 4).T)


def _before(columns: Columns, place: Place) -> Columns:
    """Return the units that come before `place` in the order of delivery."""
    due, offset = place
    return columns[(columns.due < due) | ((columns.due == due) & (columns.offset < offset))]


def _due(columns: Columns, at: int, until_ms: int, most: int) -> Columns:
    """Return the units of the next messages, from index `at` on, that are due at `until_ms` or earlier; at
    most `most`."""
    some = columns[at : at + most]
    return some[: int(np.searchsorted(some.due, until_ms, side="right"))]


def _merged(one: Columns, other: Columns) -> Columns:
    """Merge two groups of units in order of delivery. Each group must already be in that order, and the
    offsets of `other` must be higher than those of `one`."""
    if not len(one) or not len(other):
        return one if len(one) else other
    places = np.searchsorted(one.due, other.due, side="right")
    return Columns(
        *(
            np.insert(getattr(one, name), places, getattr(other, name))
            for name in ("due", "offset", "position", "size")
        )
    )
