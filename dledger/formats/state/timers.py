"""How far timer messages are delivered (TimerMessageStore's timercheckpoint, stored in the log).

Timer messages are in one queue, in order of sending. They are delivered in order of (due time, queue offset).
A row records a place in that order; the messages before this place are delivered. A row is in one batch with
the messages that it counts as delivered, so a change of leader loses none and repeats none. A waiting message
has no row of its own.

A row applies to the messages from queue offset `begin` on. Messages with lower offsets than the `begin` of
the first row are delivered. There is one row as long as clocks go forward. If a clock went back, later
messages may be due before messages that are already delivered. Then a new row begins at the first of these
later messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Offset, Row

TIMER, TIMER_END = "timer", "timer_end"
MAX_TIMER_ROWS = 16
"""Largest number of rows that a leader makes. When there are so many, a message that is due before delivered
ones gets a later due time."""

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A time in milliseconds since the epoch."""


class TimerProgress(Row, frozen=True):
    """Progress of the messages from queue offset `begin` up to the `begin` of the next row. Those due before
    `time` are delivered. Of those due at `time`, the ones with a queue offset below `next` are delivered."""

    operation: ClassVar[str] = TIMER
    begin: Offset
    time: Time = 0
    next: Offset = 0

    @property
    def place(self) -> tuple[int, int]:
        """Place in the order of delivery. The messages before it are delivered."""
        return (self.time, self.next)


TIMERS = Declared[int, TimerProgress]("timers", TimerProgress, key=("begin",), since=6, remove=TIMER_END)


def still_waits(rows: list[TimerProgress], due: int, offset: int) -> bool:
    """Whether a message still has to be delivered, given the rows in order. Messages below the `begin` of the
    first row are delivered. If there are no rows, nothing was delivered yet, and all messages wait."""
    for row in reversed(rows):
        if offset >= row.begin:
            return (due, offset) >= row.place
    return not rows


def in_order(rows: Iterable[TimerProgress]) -> list[TimerProgress]:
    """The rows in order of `begin`."""
    return sorted(rows, key=lambda row: row.begin)
