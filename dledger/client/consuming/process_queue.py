"""Messages of one queue that were pulled but not yet consumed (ProcessQueue). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dledger.client.message import MessageQueue, ReceivedMessage


@dataclass(frozen=True)
class FlowLimits:
    """When pulling a queue pauses. Each is looked at before a pull, so one pull may overshoot."""

    max_messages: int = 1000
    """Messages waiting (pullThresholdForQueue)."""
    max_bytes: int = 100 * 1024 * 1024
    """Bytes of bodies waiting (pullThresholdSizeForQueue)."""
    max_span: int = 2000
    """Distance of the oldest and the newest waiting message (consumeConcurrentlyMaxSpan): a stuck message
    holds the committed offset, and everything behind it comes again after a restart."""


class ProcessQueue:
    """What waits of one queue, and the offset that may be committed: the smallest one still in process.

    So a message is never lost by a crash, and may come twice.
    """

    def __init__(self, queue: MessageQueue, next_offset: int, limits: FlowLimits) -> None:
        self.queue = queue
        self.dropped = False
        """Set when the queue goes to another consumer: results of its messages no longer count."""
        self.leaving = False
        """Set before: no further call begins, and what runs still counts."""
        self._limits = limits
        self._sizes: dict[int, int] = {}  # queue offset -> body size, in ascending order of offsets
        self._bytes = 0
        self._next = next_offset

    @property
    def count(self) -> int:
        """Messages waiting."""
        return len(self._sizes)

    @property
    def bytes_waiting(self) -> int:
        """Bytes of bodies waiting."""
        return self._bytes

    @property
    def span(self) -> tuple[int, int]:
        """Queue offsets of the oldest and the newest message that waits; zeros when none does."""
        return (next(iter(self._sizes)), next(reversed(self._sizes))) if self._sizes else (0, 0)

    @property
    def full(self) -> bool:
        """Whether pulling has to pause."""
        sizes = self._sizes
        if not sizes:
            return False
        limits = self._limits
        return (
            len(sizes) >= limits.max_messages
            or self._bytes >= limits.max_bytes
            or self._next - next(iter(sizes)) > limits.max_span
        )

    @property
    def commit_offset(self) -> int:
        """The first offset that is not yet consumed: what the group continues with after a crash."""
        return next(iter(self._sizes)) if self._sizes else self._next

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add what a pull brought (ascending offsets); `next_offset` is where the next pull begins."""
        for message in messages:
            size = len(message.body)
            self._sizes[message.queue_offset] = size
            self._bytes += size
        self._next = max(self._next, next_offset)

    def remove(self, messages: Iterable[ReceivedMessage]) -> None:
        """These are consumed."""
        for message in messages:
            self._bytes -= self._sizes.pop(message.queue_offset, 0)

    def reset(self, next_offset: int) -> None:
        """The broker moved the queue's range: go on at `next_offset`, also backwards."""
        if not self._sizes:
            self._next = next_offset
        else:
            self._next = max(next_offset, next(reversed(self._sizes)) + 1)
