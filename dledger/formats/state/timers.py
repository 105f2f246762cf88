"""How far timer messages are delivered (TimerMessageStore's timercheckpoint, stored in the log).

Timer messages are in one queue, in order of sending. They are delivered in order of (due time, queue offset).
A row records a place in that order: the messages before it are delivered. Messages before the first row are
delivered, too. A row is in one batch with the messages that it counts as delivered, so no change of leader
loses one or repeats one. A waiting message has no row of its own.

There is one row as long as clocks go forward. If a clock went back, messages arrive that are due before
already delivered ones. From their offset on a new row counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Offset, Row

TIMER, TIMER_END = "timer", "timer_end"
MAX_TIMER_ROWS = 16
"""Rows that a leader makes at most. When there are so many, a message that comes too late waits for delivered
ones."""

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Milliseconds since the epoch."""


class TimerProgress(Row, frozen=True):
    """Progress of the messages from queue offset `begin` on, up to the next row's. Those due before `time`
    are delivered, and of those due at `time` the ones before offset `next`."""

    operation: ClassVar[str] = TIMER
    begin: Offset
    time: Time = 0
    next: Offset = 0

    @property
    def place(self) -> tuple[int, int]:
        """The place in the order of delivery."""
        return (self.time, self.next)


TIMERS = Declared[int, TimerProgress]("timers", TimerProgress, key=("begin",), since=6, remove=TIMER_END)


def still_waits(rows: list[TimerProgress], due: int, offset: int) -> bool:
    """Whether a message still has to be delivered, given the rows in order. Nothing before the first row
    waits. Without rows nothing was ever delivered, and all messages wait."""
    for row in reversed(rows):
        if offset >= row.begin:
            return (due, offset) >= row.place
    return not rows


def in_order(rows: Iterable[TimerProgress]) -> list[TimerProgress]:
    """The rows in order of their offset."""
    return sorted(rows, key=lambda row: row.begin)
