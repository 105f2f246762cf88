"""Applies windows of a log to the replicated state; audit and Spark use the same code.

It works in columns. All messages between two operations change the bounds of their queues at once, by the
numbers of the queues. The state is updated before the next operation, whose effect may depend on it. A broker
does the same in `dledger/broker/store/dispatch.py`; the audit of the state checks that both results are
equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dledger.audit.entries import Array
from dledger.formats.entry import Kind
from dledger.formats.state import ReplicatedState

KeyOf = Callable[[int], tuple[str, int]]
"""Function that returns topic and queue id for the number of a queue."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries that hold a record, as columns in order of the log. `body_at` is an offset in the window's
    data, `kind` the kind of the entry."""

    index: Array
    kind: Array
    store_ms: Array
    body_at: Array
    body_size: Array


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """Messages that have a place in a queue, as columns in order of the log. `which` is the number of the
    queue, the same in all windows; `position` is the physical offset of the record."""

    index: Array
    which: Array
    offset: Array
    position: Array


class StateReplay:
    """A state, and the position in the log up to which it is applied."""

    def __init__(self, state: ReplicatedState, key_of: KeyOf) -> None:
        self.state = state
        self.at: int = -1
        """Index of the last operation that was applied, or that could not be applied."""
        self._key_of = key_of
        self._next = np.empty(0, np.int64)
        self._first_position = np.empty(0, np.int64)
        self._touched = np.empty(0, bool)
        """Mask of the queues whose bounds are newer here than in the state."""

    def add(
        self, data: bytes, last: int, entries: Entries, queued: Queued, marks: Iterable[int] = ()
    ) -> Iterator[int]:
        """Apply one window, whose last entry is `last`.

        `marks` are indexes of entries in the window. Each is yielded when the state is as it was after that
        entry. Raises UnknownOperation for an operation of a newer program.
        """
        wanted = sorted(marks)
        stops = [*entries.index[entries.kind == Kind.SYSTEM].tolist(), *wanted, last]
        at = seen = 0
        for stop in sorted(dict.fromkeys(stops)):
            after = int(np.searchsorted(queued.index, stop, side="right"))
            self._messages(queued.which[at:after], queued.offset[at:after], queued.position[at:after])
            at = after
            below = int(np.searchsorted(entries.index, stop, side="right"))
            self._times(entries, seen, below)
            seen = below
            if below and entries.index[below - 1] == stop and entries.kind[below - 1] == Kind.SYSTEM:
                self._settle()
                self.at = stop
                body = int(entries.body_at[below - 1])
                self.state.apply(data[body : body + int(entries.body_size[below - 1])])
            if stop in wanted:
                self._settle()
                yield stop
        self._settle()

    def _messages(self, which: Array, offsets: Array, positions: Array) -> None:
        if not len(which):
            return
        missing = int(which.max()) + 1 - len(self._next)
        if missing > 0:
            self._next = np.append(self._next, np.full(missing, -1))
            self._first_position = np.append(self._first_position, np.full(missing, -1))
            self._touched = np.append(self._touched, np.zeros(missing, bool))
        self._next[which] = offsets + 1  # of several messages of a queue the last one stays
        first = np.flatnonzero(offsets == 0)
        self._first_position[which[first]] = positions[first]
        self._touched[which] = True

    def _times(self, entries: Entries, first: int, below: int) -> None:
        messages = entries.store_ms[first:below][entries.kind[first:below] == Kind.MESSAGE]
        if len(messages):
            self.state.last_store_time_ms = max(self.state.last_store_time_ms, int(messages.max()))

    def _settle(self) -> None:
        """Write the changes by messages to the bounds of queues in the state."""
        touched = np.flatnonzero(self._touched)
        self._touched[:] = False
        columns = (touched, self._next[touched], self._first_position[touched])
        for number, following, first_position in zip(*(column.tolist() for column in columns), strict=True):
            bounds = self.state.bounds(*self._key_of(number))
            bounds.next = following
            if first_position >= 0:
                bounds.first_position = first_position
