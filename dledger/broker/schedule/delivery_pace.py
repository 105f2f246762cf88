"""How fast messages that waited are delivered when many are due at once: as fast as the log takes them while
nobody else sends; else one batch after the other, each a small one, as whoever sends waits for all that was
appended before.

With 100,000 timers of one second beside a producer of 1,000 a second, on two cores, one batch of 128 KiB at a
time lets that producer's 99th percentile rise 1.5 times, where 1 MiB on the way let it rise 6 times and
delivered twice as fast.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sized

from dledger.broker.commit_log import CommitLogWriter
from dledger.runtime.cooperative import PAUSE_S

BATCH_BYTES = 256 * 1024
"""Of the entries of a batch: what fits a core's own cache until it is on its way costs the least,"""
SHARED_BATCH_BYTES = 128 * 1024
"""and so many where others send as well: some 1 ms of the leader's loop."""
UNDERWAY_BYTES = 8 * 1024 * 1024
"""Of batches that are not applied yet: with more the next one waits. Where others send, with any."""
SHARED_S = 1.0
"""Nobody else sends, as far as it can be seen, when no answer waited for its commit for so long."""


class DeliveryPace:
    """Of one service, while its node leads."""

    def __init__(self, committed: Sized, applied: Callable[[], int]) -> None:
        """`committed`: answers that wait for their commit; `applied`: index up to which the log is."""
        self._committed = committed
        self._applied = applied
        self._underway: deque[tuple[int, int]] = deque()
        """Of batches that are not applied yet: last index, bytes of messages."""
        self._others_at: float = -SHARED_S
        """Loop time when an answer to somebody was seen to wait for its commit."""

    def clear(self) -> None:
        """Another term: nothing is under way."""
        self._underway.clear()

    @property
    def waits(self) -> bool:
        """Whether something was under way when it was last asked."""
        return bool(self._underway)

    @property
    def full(self) -> bool:
        """Whether as much is under way as may be: the next batch waits until messages are applied."""
        applied = self._applied()
        while self._underway and self._underway[0][0] <= applied:
            self._underway.popleft()
        size = sum(size for _, size in self._underway)
        return size >= (1 if self._shared() else UNDERWAY_BYTES)

    def room(self, writer: CommitLogWriter) -> int:
        """Bytes of the next batch."""
        return min(writer.max_batch, SHARED_BATCH_BYTES if self._shared() else BATCH_BYTES)

    @property
    def between_s(self) -> float:
        """Pause before the same queue's next batch: others have their turn, and, where batches go one at a
        time, other queues begin first."""
        return PAUSE_S if self._shared() else 0.0

    def added(self, index: int, size: int) -> None:
        """A batch is under way. `index`: of its last entry, `size`: bytes of its messages."""
        self._underway.append((index, size))

    def _shared(self) -> bool:
        """Whether others send as well."""
        loop_s = asyncio.get_running_loop().time()
        if len(self._committed):
            self._others_at = loop_s
        return loop_s - self._others_at < SHARED_S
