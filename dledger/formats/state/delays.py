"""How far delayed messages are delivered (ScheduleMessageService.offsetTable, here in the log)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Offset, Row

MAX_LEVELS = 64
"""Largest number of delay levels of a broker."""


class DelayProgress(Row, frozen=True):
    """Progress of one delay level: `next` is the queue offset of the first message that still waits in the
    level's queue.

    The row is written in one batch with the messages that it counts as delivered, so a change of leader
    delivers none of them twice.
    """

    operation: ClassVar[str] = "delay"
    level: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEVELS)]
    next: Offset


DELAYS = Declared[int, DelayProgress]("delays", DelayProgress, key=("level",), since=2)
