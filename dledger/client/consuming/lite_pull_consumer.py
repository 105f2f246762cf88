"""The lite pull consumer on an event loop (DefaultLitePullConsumer).

Queues are divided among the group as for a push consumer, and the application asks for messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Self

from msgspec.structs import asdict, astuple

from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.group_consumer import GroupConsumer, MessageModel
from dledger.client.consuming.initial_offsets import FirstSeenQueues
from dledger.client.consuming.offsets import FromWhere, check_offset, start_of
from dledger.client.consuming.open_consumers import OPEN_CONSUMERS
from dledger.client.consuming.rebalancing import AssignedQueue
from dledger.client.consuming.send_back import BROKERS_CHOICE, SendBack, level_of
from dledger.client.consuming.subscription import ALL, Subscription, subscribe
from dledger.client.core import NOT_OPEN, ClientCore
from dledger.client.errors import ClientClosed, ClientError, ended_by
from dledger.client.message import MessageQueue, ReceivedMessage
from dledger.client.namespaces import with_namespace
from dledger.client.options import ClientOptions, check_group_of, check_wait, namesrv_addresses
from dledger.remoting.bodies import ConsumerData
from dledger.runtime import Env


class Delivery(ReceivedMessage, frozen=True):
    """A message that waits to be acknowledged: what `async for` over a consumer gives."""

    _inbox: Inbox
    _assigned: AssignedQueue

    async def ack(self) -> bool:
        """It is consumed. The group's position moves up to the first message that is not. False when the
        queue went to another consumer meanwhile, where it comes again."""
        return self._inbox.consumed(self._assigned, [self])

    async def nack(self, delay_level: int = BROKERS_CHOICE, *, delay: float | None = None) -> bool:
        """It is not: it comes again to the group, and the position moves on. `delay_level` (1: 1 s, 3: 10 s,
        5: 1 min, ...) says when; 0: as retries do, and as a dead letter in the end; -1: as a dead letter at
        once. Or `delay` in seconds: the first level that lasts so long, 2 h at most (brokers may have other
        delays: `messageDelayLevel`). Where the broker does not take it back it comes again here. False as
        `ack`."""
        if delay is not None:
            if delay_level != BROKERS_CHOICE:
                raise ClientError("give nack either delay_level or delay")
            delay_level = level_of(delay)
        return await self._inbox.send_back(self._assigned, self, delay_level)


class Inbox:
    """What was pulled, and not handed out yet, by queue."""

    def __init__(self, core: ClientCore, group: str, options: ConsumerOptions) -> None:
        self.paused: dict[MessageQueue, None] = {}
        self.arrived: asyncio.Event = asyncio.Event()
        self._options = options
        self._send_back = SendBack(core, group, options)
        self._waiting: dict[AssignedQueue, deque[ReceivedMessage]] = {}
        self._turn = 0

    def put(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """See `Receiver`."""
        if messages and not assigned.process.dropped:
            self._waiting.setdefault(assigned, deque()).extend(messages)
            self.arrived.set()

    def take(self, count: int) -> list[tuple[AssignedQueue, list[ReceivedMessage]]]:
        """Up to so many, whole runs of one queue after the other, beginning with another one each time."""
        for assigned in [one for one in self._waiting if one.process.dropped]:
            del self._waiting[assigned]
        ready = [one for one in self._waiting if self._waiting[one] and one.process.queue not in self.paused]
        self._turn += 1
        found: list[tuple[AssignedQueue, list[ReceivedMessage]]] = []
        for number in range(len(ready)):
            assigned = ready[(self._turn + number) % len(ready)]
            waiting = self._waiting[assigned]
            taken = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            count -= len(taken)
            if taken:
                found.append((assigned, taken))
        return found

    def first(self, assigned: AssignedQueue) -> int | None:
        """Queue offset of the first message that waits of a queue."""
        waiting = self._waiting.get(assigned)
        return waiting[0].queue_offset if waiting else None

    def consumed(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> bool:
        """These are. False where the queue is somebody else's."""
        if assigned.process.dropped:
            return False
        assigned.consumed(messages)
        return True

    async def send_back(self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int) -> bool:
        """To the broker; else it comes again here after a pause."""
        if assigned.process.dropped:
            return False
        if await self._send_back.send(message, delay_level):
            return self.consumed(assigned, [message])
        pause_s = self._options.send_back_retry_s
        asyncio.get_running_loop().call_later(pause_s, self.put, assigned, [_plain(message)])
        return not assigned.process.dropped


class AsyncLitePullConsumer(GroupConsumer):
    """Shares the queues of some topics with its group, and hands out messages when it is asked.

    >>> consumer = AsyncLitePullConsumer("reports", "127.0.0.1:9876", topic="orders")  # doctest: +SKIP
    >>> async with consumer:                                                           # doctest: +SKIP
    ...     async for message in consumer:
    ...         print(message.body)
    ...         await message.ack()

    Or `poll`, which counts what it gave as consumed when it is called again (`auto_commit`), or when `commit`
    is called. With `assign` instead of `subscribe` the application chooses the queues: nothing is divided.
    """

    _consume_type = "CONSUME_ACTIVELY"

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        topic: str | None = None,
        expression: str = ALL,
        from_where: FromWhere | str = FromWhere.LAST,
        from_timestamp_ms: int = 0,
        options: ConsumerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        addresses = namesrv_addresses(namesrv, client)
        check_group_of(group, client)
        where = start_of(from_where, from_timestamp_ms, "from_where", "from_timestamp_ms")
        super().__init__(group, addresses, MessageModel.CLUSTERING, where, options, client, env)
        self._from_timestamp_ms = from_timestamp_ms
        self._inbox = Inbox(self._core, self.group, self.options)
        self._handed: list[tuple[AssignedQueue, list[ReceivedMessage]]] = []
        """By `poll`, and not consumed yet."""
        self._assigning = asyncio.Lock()
        self._first_seen = FirstSeenQueues()
        self._begin_with(self._inbox, from_timestamp_ms, None)
        if topic is not None:
            self.subscribe(topic, expression)

    # --- which queues ---------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Share the queues of a topic with the group; all of it ("*"), or messages with one of some tags."""
        if self._assigned_by_hand:
            raise ClientError("queues were assigned: a consumer has either assign() or subscribe()")
        super().subscribe(topic, expression)

    async def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read exactly these queues: new ones from the group's committed offset, else from `from_where`.
        Others of the group do not know of it."""
        if self._subscriptions:
            raise ClientError("topics were subscribed: a consumer has either assign() or subscribe()")
        self._core.check_open()
        wanted = list(dict.fromkeys(queues))
        async with self._assigning:
            if self.options.auto_commit:
                self._settle()
            await self._share.remove([queue for queue in self._share.queues if queue not in wanted])
            for queue in wanted:
                if queue in self._share.queues:
                    continue
                await self._queues(queue.topic)
                start = await self._share.committed(queue)
                if start is None:
                    start = await self._first_seen.offset(
                        self._offsets, queue, self._from_where, self._from_timestamp_ms
                    )
                self._share.add(queue, subscribe(queue.topic, expression, self._env.wall.now_ms()), start)
            await self._share.commit()  # also where nothing was consumed yet: a restart goes on there

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, ours and others'. TopicNotFound, NoNameServer."""
        self._core.check_open()
        return await self._queues(with_namespace(topic, self._core.options.namespace))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._share.queues

    # --- messages -------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Messages of our queues, in order per queue; empty when none came in time.

        With `ConsumerOptions.auto_commit` what the last call gave counts as consumed now; else `commit` says
        so. What was handed out last comes again after a restart. ClientClosed when closed meanwhile.
        """
        if self._failure is not None:
            raise ended_by(self._failure) from self._failure
        self._core.check_open()
        check_wait(timeout_s, max_messages)
        if self.options.auto_commit:
            self._settle()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = self._inbox.take(max_messages)
                    if found:
                        self._handed += found
                        return [message for _, messages in found for message in messages]
                    if self._stop.is_set():
                        if self._failure is not None:
                            raise ended_by(self._failure) from self._failure
                        raise ClientClosed(NOT_OPEN)
                    self._inbox.arrived.clear()
                    await self._inbox.arrived.wait()
        except TimeoutError:
            return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message, to be acknowledged; ends when the consumer does."""
        if not self._stop.is_set():
            self._core.check_open()
        while not self._stop.is_set():
            for assigned, messages in self._inbox.take(1):
                return self._delivery(assigned, messages[0])
            self._inbox.arrived.clear()
            await self._inbox.arrived.wait()
        if self._failure is not None:
            raise ended_by(self._failure) from self._failure
        raise StopAsyncIteration

    def _stop_soon(self, drain: bool = True) -> None:
        """Ask for the end. On the loop."""
        super()._stop_soon(drain)
        self._inbox.arrived.set()

    async def commit(self) -> None:
        """What `poll` gave is consumed, and the group goes on behind it after a restart. ClientError when a
        broker did not take it."""
        self._core.check_loop()
        self._settle()
        await self._share.commit_now()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these until `resume`. They stay ours."""
        self._inbox.paused |= dict.fromkeys(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with these."""
        for queue in queues:
            self._inbox.paused.pop(queue, None)
        self._inbox.arrived.set()

    # --- positions ------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with this queue offset. What was handed out of the queue does not count any more."""
        self._core.check_open()
        self._of(queue)
        check_offset(offset)
        self._share.restart(queue, offset, sought=True)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the oldest message that is still there."""
        await self.seek(queue, await self._offsets.lowest(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that is stored."""
        await self.seek(queue, await self._offsets.highest(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return await self._offsets.at_time(queue, timestamp_ms)

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message of this queue, at least."""
        assigned = self._of(queue)
        first = self._inbox.first(assigned)
        return assigned.reader.next_offset if first is None else first

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue, None without one."""
        self._core.check_loop()
        return await self._share.committed(queue)

    # --------------------------------------------------------------------------------------------------

    async def _queues(self, topic: str) -> list[MessageQueue]:
        return await self._first_seen.queues(self._core, topic)

    @property
    def _assigned_by_hand(self) -> bool:
        return not self._subscriptions and bool(self._share.queues)

    def _check(self) -> None:
        self._name_taken = OPEN_CONSUMERS.register(self._core, self.group)

    def _consumer_data(self) -> list[ConsumerData]:
        return super()._consumer_data() if self._subscriptions else []  # else a share would be kept for us

    def _wanted(self) -> dict[str, Subscription]:
        return super()._wanted() if self._subscriptions else {}

    def _settle(self) -> None:
        handed, self._handed = self._handed, []
        for assigned, messages in handed:
            self._inbox.consumed(assigned, messages)

    def _of(self, queue: MessageQueue) -> AssignedQueue:
        found = self._share.assigned(queue)
        if found is None:
            raise ClientError(f"{queue} is not ours now: {len(self._share.queues)} other queues are")
        return found

    def _delivery(self, assigned: AssignedQueue, message: ReceivedMessage) -> Delivery:
        return Delivery(**asdict(message), _inbox=self._inbox, _assigned=assigned)


def _plain(message: ReceivedMessage) -> ReceivedMessage:
    return ReceivedMessage(*astuple(message)[: len(ReceivedMessage.__struct_fields__)])
