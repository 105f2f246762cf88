"""Writing to two clusters while a program moves from one to the other.

The first cluster decides. The caller gets its result, and a message that it does not acknowledge is not sent
to the second cluster. The second cluster gets the same message with the same unique id, so a comparison by
unique ids finds what one of them lacks. A message that the second does not accept is counted and logged. If
the second producer is an `AsyncSpoolingProducer`, such a message waits on this machine's disk until the
second cluster is back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from dledger.client.callback_failures import Failures
from dledger.client.errors import ClientError, OutcomeUnknown
from dledger.client.message import Message, SendResult
from dledger.client.producing.preset_ids import MessageWithId, with_unique_id
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.spooling_producer import AsyncSpoolingProducer, Spooled

MAX_COUNTS = 10_000
"""Results are counted for each topic and day. At most this many of these counts are kept; beyond it the
oldest are forgotten."""


@dataclass
class DualCount:
    """How many messages of one topic on one day (UTC) had which result. The numbers can be compared with what
    the two clusters have stored."""

    sent: int = 0
    """Number of messages that the first cluster acknowledged."""
    unknown: int = 0
    """Number of messages that the first cluster may or may not have stored; they are not sent to the
    second."""
    both: int = 0
    """Number of messages that the second cluster acknowledged, too."""
    kept: int = 0
    """Number of messages that wait in the spool of the second producer."""
    missed: int = 0
    """Number of messages that only the first cluster has, because the second refused them or could not be
    reached, or because the call was cancelled."""


class AsyncDualProducer:
    """Two open producers as one. The program that opened them closes them.

    >>> async with AsyncProducer("orders", OLD) as old, AsyncProducer("orders", NEW) as new:  # doctest: +SKIP
    ...     await AsyncDualProducer(old, new).send(Message("orders", b"17"))
    """

    def __init__(self, first: AsyncProducer, second: AsyncProducer) -> None:
        self._first = first
        self._second = second
        self._failures = Failures(second._core.log)
        self.counts: dict[tuple[str, str], DualCount] = {}
        """Maps (day, topic) to its counts; a day is a text such as `2026-11-26`."""

    async def send(self, message: Message, ordering_key: str | None = None) -> SendResult:
        """Send to the first cluster, then to the second. Returns the result of the first, or raises its
        error."""
        self._first._core.check_open()
        named = with_unique_id(message, self._first._ids.next())
        count = self._count(message.topic)
        try:
            result = await self._first.send(named, None, ordering_key)
        except (OutcomeUnknown, asyncio.CancelledError):
            count.unknown += 1
            raise
        count.sent += 1
        try:
            second = await self._repeat(named, ordering_key)
        except ClientError as error:
            count.missed += 1
            self._failures.log_raised("second cluster", error, topic=message.topic, id=named.unique_id)
        except BaseException:  # cancelled: the result at the second cluster stays unknown
            count.missed += 1
            raise
        else:
            if isinstance(second, Spooled):
                count.kept += 1
            else:
                count.both += 1
        return result

    async def _repeat(self, named: MessageWithId, ordering_key: str | None) -> SendResult | Spooled:
        second = self._second
        if isinstance(second, AsyncSpoolingProducer):
            return await second.deliver(named, ordering_key)
        return await second.send(named, None, ordering_key)

    def _count(self, topic: str) -> DualCount:
        day = datetime.fromtimestamp(self._first._env.wall.now_ms() / 1000, UTC).date().isoformat()
        count = self.counts.get((day, topic))
        if count is None:
            while len(self.counts) >= MAX_COUNTS:
                del self.counts[next(iter(self.counts))]  # the oldest
            count = self.counts[day, topic] = DualCount()
        return count
