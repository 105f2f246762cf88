"""The listener of an application: the arguments it is called with, and what it may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from dledger.client.message import ReceivedMessage


class ConsumeStatus(Enum):
    """Results of a listener. Returning None means SUCCESS, raising means RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """Results of a listener that consumes in order. Returning None means SUCCESS, raising means
    SUSPEND_CURRENT_QUEUE_A_MOMENT."""

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    """All messages since the last COMMIT come again after `ConsumerOptions.suspend_s`."""
    COMMIT = "COMMIT"
    """This message and all since the last COMMIT are consumed. Used with `auto_commit=False`."""
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """Deliver the same message again after `ConsumerOptions.suspend_s`, and no other message of its queue
    until then."""


Status = ConsumeStatus | ConsumeOrderlyStatus
Result = Status | None
Listener = Callable[[ReceivedMessage], Result | Awaitable[Result]]
"""A function that is called for every message. A coroutine function runs on the loop, any other function in a
worker thread. If the result is awaitable, it is awaited on the loop. Only None and SUCCESS mean that the
message is consumed."""
BatchListener = Callable[[Sequence[ReceivedMessage]], Result | Awaitable[Result]]
"""A listener that is called with up to `ConsumerOptions.batch_size` messages of one queue at a time."""
Unit = ReceivedMessage | Sequence[ReceivedMessage]
"""The argument of one call of a listener: a message or a batch."""
CONSUMED = (ConsumeStatus.SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
"""Results of a listener which mean that the message was consumed."""


def messages_of(unit: Unit) -> list[ReceivedMessage]:
    return [unit] if isinstance(unit, ReceivedMessage) else list(unit)
