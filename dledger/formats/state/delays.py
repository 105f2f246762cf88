"""How far delayed messages are delivered (ScheduleMessageService.offsetTable, here in the log)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Offset, Row

MAX_LEVELS = 64
"""Delay levels that a broker may have."""


class DelayProgress(Row, frozen=True):
    """Of one delay level: `next` is the queue offset of the first message that waits in its queue.

    It is in the batch of the messages that it says are delivered: no switch of leader repeats one.
    """

    operation: ClassVar[str] = "delay"
    level: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEVELS)]
    next: Offset


DELAYS = Declared[int, DelayProgress]("delays", DelayProgress, key=("level",), since=2)
