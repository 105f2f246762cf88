"""Decides where a consumer group begins in queues in which it has no committed offset.

With `FromWhere.LAST` a group begins with messages that are sent after it began. This has three consequences:

* The first look at a topic decides. In queues that exist at that time, the group begins at the end. In a
  queue that appears later (because the first send creates the topic, or because queues are added) the group
  begins at the first message. That message was sent after the group began.
* The ends are committed at once, for all queues of the topic. Otherwise messages could be lost: if a queue
  moved to another member before its first message was consumed, that member would begin at the new end.
* Members that start at the same time must not mistake each other's first commits for those of an older group.
  So the first queue of a topic is committed last: once this queue has an offset, the group has begun in the
  topic, and any queue without an offset is newer than the group. A member looks at a topic before its own
  heartbeats name the topic. So if it sees that another member already consumes a topic which has no offsets
  at all, that topic is newer than the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from dledger.client.consuming.offsets import BrokerProgress, FromWhere, Progress, QueueOffsets
from dledger.client.core import ClientCore
from dledger.client.encoding import RETRY_PREFIX
from dledger.client.errors import ClientError, NoBroker, TopicNotFound
from dledger.client.message import MessageQueue
from dledger.client.routes import subscribe_queues
from dledger.remoting.bodies import ConsumerConnections, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import BadBody
from dledger.remoting.headers import ConsumerGroupHeader

T = TypeVar("T")

ASKED_AT_ONCE = 64
"""At most this many offset requests are in flight at once."""
LOOKS = 10
"""How many times a consumer looks at a topic in which some queues have an offset but the first queue has
none. Another member may be about to commit that offset."""
LOOK_PAUSE_S = 0.2
"""Pause between two of the looks that `LOOKS` counts, in seconds."""


class InitialOffsets:
    """Decides at which offsets a consumer group begins, topic by topic."""

    def __init__(
        self,
        core: ClientCore,
        consumer_group: str,
        offsets: QueueOffsets,
        progress: Progress,
        from_where: FromWhere,
        timestamp_ms: int,
    ) -> None:
        self._core = core
        self._group = consumer_group
        self._offsets = offsets
        self._progress = progress
        self._from_where = from_where
        self._timestamp_ms = timestamp_ms
        self._decided: dict[str, asyncio.Event] = {}
        self._not_committed: dict[MessageQueue, int] = {}
        """Maps a queue to the offset at which the group begins in it, if that offset could not be
        committed."""
        self._at_end_later: dict[MessageQueue, None] = {}
        """Queues whose broker group did not answer when the group began in the other queues of the topic."""

    def decided(self, topic: str) -> bool:
        """Whether the look at this topic is done. A queue that is found later and has no committed offset is
        newer than the group. Only LAST needs this look."""
        return (
            self._from_where is not FromWhere.LAST
            or topic.startswith(RETRY_PREFIX)
            or self._decision(topic).is_set()
        )

    async def wait(self, topic: str) -> None:
        """Wait until the look at the topic is done (`decided`)."""
        if not self.decided(topic):
            await self._decision(topic).wait()

    def _decision(self, topic: str) -> asyncio.Event:
        return self._decided.setdefault(topic, asyncio.Event())

    async def look(self, topic: str) -> None:
        """Look at a topic and decide where the group begins in its queues, unless that is decided already. If
        it raises ClientError or OSError, nothing is decided."""
        if self.decided(topic):
            return
        try:
            queues = subscribe_queues(topic, await self._core.refresh(topic))
        except TopicNotFound:
            queues = []
        if queues:
            await self._begin(sorted(queues))
        self._decision(topic).set()

    async def offset(self, queue: MessageQueue) -> int:
        """The offset at which the group begins in a queue without a committed offset, after `look` at its
        topic. In a retry topic it always begins at the oldest message."""
        if queue.topic.startswith(RETRY_PREFIX) or self._from_where is FromWhere.FIRST:
            return await self._offsets.lowest(queue)
        if self._from_where is FromWhere.TIMESTAMP:
            return await self._offsets.at_time(queue, self._timestamp_ms)
        if queue in self._at_end_later:
            end = await self._offsets.highest(queue)
            self._at_end_later.pop(queue, None)
            return end
        begun = self._not_committed.pop(queue, None)
        return await self._offsets.lowest(queue) if begun is None else begun

    async def _begin(self, every: Sequence[MessageQueue]) -> None:
        queues = await self._reached(every)
        first = queues[0]
        for _ in range(LOOKS):
            if await self._progress.load(first) is not None:
                return  # the group began before: a queue without an offset is newer
            begun = await self._with_offsets(queues)
            if begun and not isinstance(self._progress, BrokerProgress):
                return  # a file is written at once
            if not begun and await self._consumed_by_others(first):
                return
            # The ends are read before the offsets. If no member had begun when the ends were read, no member
            # was promised the messages before them.
            ends = await _each(queues, self._offsets.highest)
            if not begun and not await self._with_offsets(queues):
                await self._commit(first, ends)
                self._at_end_later.update(dict.fromkeys(queue for queue in every if queue not in ends))
                return
            await asyncio.sleep(LOOK_PAUSE_S)
        # Nobody completes these offsets: other kinds of clients commit nothing for queues without messages.

    async def _reached(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues whose broker groups answer. Raises ClientError or OSError if no broker group answers."""
        firsts: dict[str, MessageQueue] = {}
        for queue in queues:
            firsts.setdefault(queue.broker_name, queue)
        outcomes = await asyncio.gather(*map(self._progress.load, firsts.values()), return_exceptions=True)
        failed: dict[str, BaseException] = {}
        for name, outcome in zip(firsts, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, NoBroker):
                    raise outcome
                failed[name] = outcome
        reached = [queue for queue in queues if queue.broker_name not in failed]
        if not reached:
            raise next(iter(failed.values()))
        return reached

    async def _with_offsets(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        found = await _each(queues, self._progress.load)
        return [queue for queue in queues if found[queue] is not None]

    async def _consumed_by_others(self, queue: MessageQueue) -> bool:
        """Whether another member of the group consumes the topic, according to the leader (request 203
        GET_CONSUMER_CONNECTION_LIST)."""
        if not isinstance(self._progress, BrokerProgress):
            return False  # each consumer of a broadcasting group reads all messages
        answer = await self._core.invoke_leader(
            self._core.group(queue.broker_name),
            queue.topic,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            ConsumerGroupHeader(self._group),
        )
        if answer.code != ResponseCode.SUCCESS:  # nobody is connected, or we may not ask
            return False
        try:
            known = decode_body(answer.body, ConsumerConnections, "members of the group")
        except BadBody:
            return False
        others = [one for one in known.connectionSet if one.clientId != self._core.client_id]
        return bool(others) and queue.topic in known.subscriptionTable

    async def _commit(self, last: MessageQueue, ends: Mapping[MessageQueue, int]) -> None:
        before = {queue: end for queue, end in ends.items() if queue != last}
        try:
            if isinstance(self._progress, BrokerProgress):
                await self._progress.save_first(before)
                await self._progress.save_first({last: ends[last]})
            else:
                await self._progress.save(ends)
        except (ClientError, OSError) as error:
            # Another member may have begun at the same time and have consumed more. Then its offset counts.
            self._not_committed.update(ends)
            self._core.log.info("initial offsets not committed", group=self._group, error=error)


async def _each(
    queues: Sequence[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    found: dict[MessageQueue, T] = {}
    for at in range(0, len(queues), ASKED_AT_ONCE):
        some = queues[at : at + ASKED_AT_ONCE]
        found.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
    return found


class FirstSeenQueues:
    """The queues that a consumer found when it first looked at a topic; for consumers whose application
    chooses the queues."""

    def __init__(self) -> None:
        self._seen: dict[str, frozenset[MessageQueue]] = {}

    async def queues(self, core: ClientCore, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read. Raises TopicNotFound, NoNameServer or BrokerRefused."""
        try:
            queues = subscribe_queues(topic, await core.route(topic))
        except TopicNotFound:
            self._seen.setdefault(topic, frozenset())
            raise
        self._seen.setdefault(topic, frozenset(queues))
        return queues

    async def offset(
        self, offsets: QueueOffsets, queue: MessageQueue, from_where: FromWhere, timestamp_ms: int
    ) -> int:
        """The offset at which to begin in a queue without a committed offset. With LAST, a queue that
        appeared after the first look begins at its first message."""
        if from_where is FromWhere.TIMESTAMP and not queue.topic.startswith(RETRY_PREFIX):
            return await offsets.at_time(queue, timestamp_ms)
        seen = self._seen.get(queue.topic)
        appeared = seen is not None and queue not in seen
        if from_where is FromWhere.FIRST or appeared or queue.topic.startswith(RETRY_PREFIX):
            return await offsets.lowest(queue)
        return await offsets.highest(queue)
