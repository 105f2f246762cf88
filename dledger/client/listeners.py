"""The listener of an application: what it is called with, and what it may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from dledger.client.message import ReceivedMessage


class ConsumeStatus(Enum):
    """What a listener may return. Returning nothing means SUCCESS, raising means RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What a listener that works in order may return. Returning nothing means SUCCESS, raising means
    SUSPEND_CURRENT_QUEUE_A_MOMENT."""

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    """Everything since the last COMMIT comes again after `ConsumerOptions.suspend_s`."""
    COMMIT = "COMMIT"
    """This and everything since the last COMMIT is consumed; it counts with `auto_commit=False`."""
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """The same message comes again after `ConsumerOptions.suspend_s`, and nothing of its queue before."""


Status = ConsumeStatus | ConsumeOrderlyStatus
Result = Status | None
Listener = Callable[[ReceivedMessage], Result | Awaitable[Result]]
"""Called for every message: a coroutine function on the loop, anything else in a worker thread. What it
returns is awaited (on the loop) where it can be. Only None and SUCCESS mean that the message is consumed."""
BatchListener = Callable[[Sequence[ReceivedMessage]], Result | Awaitable[Result]]
"""The same for up to `ConsumerOptions.batch_size` messages of one queue."""
Unit = ReceivedMessage | Sequence[ReceivedMessage]
"""What a listener is called with once."""
CONSUMED = (ConsumeStatus.SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
"""Results by which a listener says that the message was consumed."""


def messages_of(unit: Unit) -> list[ReceivedMessage]:
    return [unit] if isinstance(unit, ReceivedMessage) else list(unit)
