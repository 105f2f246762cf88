"""Messages of one queue that were pulled but not yet consumed (ProcessQueue). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dledger.client.message import MessageQueue, ReceivedMessage


@dataclass(frozen=True)
class FlowLimits:
    """Limits at which pulling a queue pauses. They are checked before a pull, so one pull may exceed them."""

    max_messages: int = 1000
    """Limit of the number of waiting messages (pullThresholdForQueue)."""
    max_bytes: int = 100 * 1024 * 1024
    """Limit, in bytes, of the bodies of waiting messages together (pullThresholdSizeForQueue)."""
    max_span: int = 2000
    """Largest distance, in queue offsets, between the oldest waiting message and the newest one
    (consumeConcurrentlyMaxSpan). A message that is stuck holds the committed offset back, and everything
    after it comes again after a restart."""


class ProcessQueue:
    """The waiting messages of one queue, and the offset that may be committed for it: the lowest offset of a
    message that is not consumed yet.

    So a crash never loses a message, but a message may be delivered twice.
    """

    def __init__(self, queue: MessageQueue, next_offset: int, limits: FlowLimits) -> None:
        self.queue = queue
        self.dropped = False
        """Set when this consumer no longer has the queue. Results of its messages then no longer count."""
        self.leaving = False
        """Set before `dropped`: no further call begins, but calls that are running still count."""
        self._limits = limits
        self._sizes: dict[int, int] = {}  # queue offset -> body size, in ascending order of offsets
        self._bytes = 0
        self._next = next_offset

    @property
    def count(self) -> int:
        """Number of waiting messages."""
        return len(self._sizes)

    @property
    def bytes_waiting(self) -> int:
        """Size of the bodies of all waiting messages, in bytes."""
        return self._bytes

    @property
    def span(self) -> tuple[int, int]:
        """Queue offsets of the oldest and the newest waiting message; zeros when no message waits."""
        return (next(iter(self._sizes)), next(reversed(self._sizes))) if self._sizes else (0, 0)

    @property
    def full(self) -> bool:
        """Whether pulling has to pause now."""
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
        """Offset of the first message that is not consumed yet. The group continues there after a crash."""
        return next(iter(self._sizes)) if self._sizes else self._next

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add pulled messages, in ascending order of offsets. `next_offset` is where the next pull begins."""
        for message in messages:
            size = len(message.body)
            self._sizes[message.queue_offset] = size
            self._bytes += size
        self._next = max(self._next, next_offset)

    def remove(self, messages: Iterable[ReceivedMessage]) -> None:
        """Remove messages that are consumed."""
        for message in messages:
            self._bytes -= self._sizes.pop(message.queue_offset, 0)

    def reset(self, next_offset: int) -> None:
        """Continue at `next_offset`, which may be lower than before, because the broker changed the range of
        the queue."""
        if not self._sizes:
            self._next = next_offset
        else:
            self._next = max(next_offset, next(reversed(self._sizes)) + 1)
