"""The pull consumer on an event loop: the application chooses queues and offsets, and asks for messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from dledger.client.consuming.consumer_options import PullOptions
from dledger.client.consuming.initial_offsets import FirstSeenQueues
from dledger.client.consuming.offsets import BrokerProgress, FromWhere, QueueOffsets, check_offset, start_of
from dledger.client.consuming.queue_reader import QueueReader
from dledger.client.consuming.subscription import ALL, Subscription, subscribe
from dledger.client.core import NOT_OPEN, ClientCore
from dledger.client.errors import ClientClosed, ClientError
from dledger.client.lifecycle import AsyncClient
from dledger.client.message import MessageQueue, ReceivedMessage
from dledger.client.message_queries import MAX_MESSAGES, NEVER_MS, MessageQueries
from dledger.client.namespaces import with_namespace
from dledger.client.options import ClientOptions, check_group_of, check_wait, options_of
from dledger.runtime import Env


class _Fetched:
    """Messages of one queue that were pulled in advance, and the application's offset in it."""

    def __init__(self, position: int, options: PullOptions, arrived: asyncio.Event) -> None:
        self.position = position
        """Offset from which the next message for `poll` is read. The message itself may have a higher
        offset."""
        self.messages: deque[ReceivedMessage] = deque()
        self.task: asyncio.Task[None]
        self.reader: QueueReader
        self._bytes = 0
        self._pulled_to = position
        """Offset up to which messages were pulled. Those behind the last one in `messages` did not match."""
        self._options = options
        self._arrived = arrived
        self.sought = False
        """Whether `seek` was called and its offset has not been committed since."""
        self._room = asyncio.Event()

    async def room(self) -> None:
        flow = self._options.flow
        while len(self.messages) >= flow.max_messages or self._bytes >= flow.max_bytes:
            self._room.clear()
            await self._room.wait()

    def put(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        self._pulled_to = next_offset
        if messages:
            self.messages.extend(messages)
            self._bytes += sum(len(message.body) for message in messages)
            self._arrived.set()
        elif not self.messages:
            self.position = next_offset  # nothing matched up to there

    def moved(self, next_offset: int) -> None:
        self._pulled_to = next_offset
        if not self.messages:
            self.position = next_offset

    def reset(self, next_offset: int) -> None:
        self.messages.clear()
        self._bytes = 0
        self._room.set()
        self.position = self._pulled_to = next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        taken = [self.messages.popleft() for _ in range(min(count, len(self.messages)))]
        if taken:
            self.position = taken[-1].queue_offset + 1 if self.messages else self._pulled_to
            self._bytes -= sum(len(message.body) for message in taken)
            self._room.set()
        return taken


class AsyncPullConsumer(AsyncClient):
    """Reads chosen queues from chosen offsets; queues are not shared with the group.

    >>> async with AsyncPullConsumer("reports", "127.0.0.1:9876") as consumer:  # doctest: +SKIP
    ...     await consumer.assign(await consumer.queues("orders"), start=FromWhere.FIRST)
    ...     messages = await consumer.poll(timeout_s=1.0)
    ...     await consumer.commit()
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        options: PullOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        check_group_of(group, client)
        common = options_of(ClientOptions, client, "client")
        self.group: str = with_namespace(group, common.namespace)
        self.options: PullOptions = options_of(PullOptions, options, "options")
        super().__init__(ClientCore(env, namesrv, common), f"consumer {group}")
        self._env = self._core.env
        self._offsets: QueueOffsets = QueueOffsets(self._core)
        """Asks brokers for offsets of queues: lowest, highest, at a time, committed."""
        self._queries = MessageQueries(self._core)
        self._progress = BrokerProgress(self._offsets, self.group)
        self._fetched: dict[MessageQueue, _Fetched] = {}
        self._committing = asyncio.Lock()
        self._subscriptions: dict[str, Subscription] = {}
        self._arrived = asyncio.Event()
        self._assigning = asyncio.Lock()
        self._first_seen = FirstSeenQueues()
        self._turn = 0

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic. Raises TopicNotFound or NoNameServer."""
        self._core.check_open()
        topic = with_namespace(topic, self._core.options.namespace)
        return await self._first_seen.queues(self._core, topic)

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Read only messages with one of some tags ("A || B"), or whose properties satisfy a condition
        (`Sql`). It applies to queues that are assigned afterwards."""
        topic = with_namespace(topic, self._core.options.namespace)
        self._subscriptions[topic] = subscribe(topic, expression, self._env.wall.now_ms())

    async def assign(
        self,
        queues: Iterable[MessageQueue],
        start: FromWhere | str = FromWhere.LAST,
        timestamp_ms: int = 0,
    ) -> None:
        """Read exactly these queues. A new queue begins at the group's committed offset, or without one at
        `start`."""
        where = start_of(start, timestamp_ms, "start", "timestamp_ms")
        self._core.check_open()
        wanted = list(dict.fromkeys(queues))
        async with self._assigning:
            for queue in [queue for queue in self._fetched if queue not in wanted]:
                self._fetched.pop(queue).task.cancel()
            for queue in wanted:
                if queue not in self._fetched:
                    await self.queues(queue.topic)
                    offset = await self._progress.load(queue)
                    if offset is None:
                        offset = await self._first_seen.offset(self._offsets, queue, where, timestamp_ms)
                    self._fetch(queue, offset)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads."""
        return sorted(self._fetched)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this queue offset."""
        self._core.check_open()
        fetched = self._of(queue)
        check_offset(offset)
        fetched.task.cancel()
        self._fetch(queue, offset)
        self._fetched[queue].sought = True

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message that is still stored."""
        await self.seek(queue, await self._offsets.lowest(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next message that will be stored."""
        await self.seek(queue, await self._offsets.highest(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after a time, in ms since the epoch."""
        await self.seek(queue, await self._offsets.at_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Offset from which `poll` returns the next message of this queue. The message itself may have a
        higher offset."""
        return self._of(queue).position

    async def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Return messages of the assigned queues, in order per queue; empty when none arrived within
        `timeout_s`. Raises ClientClosed if the consumer is closed meanwhile."""
        self._core.check_open()
        check_wait(timeout_s, max_messages)
        if not self._fetched:
            raise ClientError("no queue is assigned: call assign(queues) first")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = self._take(max_messages)
                    if found:
                        return found
                    if self._stop.is_set():
                        raise ClientClosed(NOT_OPEN)
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return []

    def _stop_soon(self, drain: bool = True) -> None:
        """Request the end. Call it on the loop."""
        super()._stop_soon(drain)
        self._arrived.set()

    async def commit(self) -> None:
        """Commit the current offsets for the group, which continues there after a restart. Raises
        ClientError.

        An offset may become lower than the group's committed offset only in a queue for which `seek` was
        called. A broker refuses such a commit while other consumers of the group are connected, and for a
        minute after its leader has changed.
        """
        self._core.check_loop()
        async with self._committing:  # of two at the same time, the later one could set the group back again
            fetched = dict(self._fetched)
            sought = {queue: one for queue, one in fetched.items() if one.sought}
            await self._progress.save_first({queue: one.position for queue, one in fetched.items()}, sought)
            for one in sought.values():
                one.sought = False

    async def lowest(self, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still stored."""
        return await self._offsets.lowest(queue)

    async def highest(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return await self._offsets.highest(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return await self._offsets.at_time(queue, timestamp_ms)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = NEVER_MS,
        most: int = MAX_MESSAGES,
    ) -> list[ReceivedMessage]:
        """Find the messages that have this key (or unique key) and were stored within [begin, end] (ms since
        the epoch), the oldest first. Each broker group returns its newest `most` (1 to 64). Raises
        ClientError."""
        return await self._queries.by_key(topic, key, begin_ms, end_ms, most)

    async def query_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage | None:
        """Find the message with this unique key (the `message_id` of a send result), None when there is none.
        Raises ClientError."""
        return await self._queries.by_unique_key(topic, unique_key)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue; None if it has none."""
        return await self._progress.load(queue)

    def _take(self, count: int) -> list[ReceivedMessage]:
        """Take up to `count` messages that were pulled in advance. Each call begins with another queue."""
        found: list[ReceivedMessage] = []
        queues = list(self._fetched.values())
        self._turn += 1
        for number in range(len(queues)):
            found += queues[(self._turn + number) % len(queues)].take(count - len(found))
        return found

    def _of(self, queue: MessageQueue) -> _Fetched:
        fetched = self._fetched.get(queue)
        if fetched is None:
            raise ClientError(f"{queue} is not assigned: call assign(queues) first")
        return fetched

    def _fetch(self, queue: MessageQueue, offset: int) -> None:
        subscription = self._subscriptions.get(queue.topic) or subscribe(queue.topic, ALL, 0)
        fetched = _Fetched(offset, self.options, self._arrived)
        fetched.reader = QueueReader(
            self._core, self.group, queue, subscription, self.options, offset, fetched
        )
        name = f"pull {queue.topic} {queue.broker_name} {queue.queue_id}"
        fetched.task = self._core.spawn(fetched.reader.run(), name)
        self._fetched[queue] = fetched
