"""How far timer messages are delivered (TimerMessageStore's timercheckpoint, here in the log).

Timer messages are in one queue, in order of sending; they are delivered in order of (due time, queue offset).
A row says how far that is: what is due before its place in that order is done, and what lies before the first
row is done, too. It is in the batch of the messages that it says are delivered: no switch of leader loses
one or repeats one. There is no row for a message that waits.

There is one row as long as clocks go forward. Where a clock went back, messages come that are due before what
is delivered already: from their offset on a row of its own counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Offset, Row

TIMER, TIMER_END = "timer", "timer_end"
MAX_TIMER_ROWS = 16
"""Rows that a leader makes; with so many a message that comes too late waits for what is delivered."""

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Milliseconds since the epoch."""


class TimerProgress(Row, frozen=True):
    """Of the messages from queue offset `begin` on, up to the next row's: those are delivered that are due
    before `time`, and of those that are due at `time` the ones before offset `next`."""

    operation: ClassVar[str] = TIMER
    begin: Offset
    time: Time = 0
    next: Offset = 0

    @property
    def place(self) -> tuple[int, int]:
        """In the order of delivery."""
        return (self.time, self.next)


TIMERS = Declared[int, TimerProgress]("timers", TimerProgress, key=("begin",), since=6, remove=TIMER_END)


def still_waits(rows: list[TimerProgress], due: int, offset: int) -> bool:
    """Whether a message is to come, given the rows in order: nothing before the first one waits. Where there
    is no row nothing was ever delivered, and all wait."""
    for row in reversed(rows):
        if offset >= row.begin:
            return (due, offset) >= row.place
    return not rows


def in_order(rows: Iterable[TimerProgress]) -> list[TimerProgress]:
    """By offset."""
    return sorted(rows, key=lambda row: row.begin)
