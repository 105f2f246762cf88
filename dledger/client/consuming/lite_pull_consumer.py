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
    """A message that waits to be acknowledged; `async for` over a consumer returns these."""

    _inbox: Inbox
    _assigned: AssignedQueue

    async def ack(self) -> bool:
        """Acknowledge the message as consumed. The group's offset moves up to the first message that is not
        acknowledged. Returns False if the queue moved to another consumer meanwhile; that consumer gets the
        message again."""
        return self._inbox.consumed(self._assigned, [self])

    async def nack(self, delay_level: int = BROKERS_CHOICE, *, delay: float | None = None) -> bool:
        """Reject the message: the group gets it again later, and the offset moves on.

        `delay_level` (1: 1 s, 3: 10 s, 5: 1 min, ...) says when it comes again. Level 0 means the usual
        delays of retries, and after the last retry the dead letters. Level -1 means the dead letters at once.
        Instead of a level you can give `delay` in seconds: the first level of at least this length is used,
        at most 2 h (brokers may have other delays: `messageDelayLevel`).

        If the broker does not take the message back, this consumer gets it again. Returns False in the same
        case as `ack`.
        """
        if delay is not None:
            if delay_level != BROKERS_CHOICE:
                raise ClientError("give nack either delay_level or delay")
            delay_level = level_of(delay)
        return await self._inbox.send_back(self._assigned, self, delay_level)


class Inbox:
    """Messages that were pulled and not yet handed to the application, by queue."""

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
        """Take up to `count` waiting messages, as pairs of a queue and messages of it. Each call begins with
        another queue."""
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
        """Queue offset of the first waiting message of a queue."""
        waiting = self._waiting.get(assigned)
        return waiting[0].queue_offset if waiting else None

    def consumed(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> bool:
        """Note that these messages are consumed. Returns False if the queue belongs to another consumer
        now."""
        if assigned.process.dropped:
            return False
        assigned.consumed(messages)
        return True

    async def send_back(self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int) -> bool:
        """Send a message back to the broker. If that fails, the application gets the message again from this
        inbox after a pause."""
        if assigned.process.dropped:
            return False
        if await self._send_back.send(message, delay_level):
            return self.consumed(assigned, [message])
        pause_s = self._options.send_back_retry_s
        asyncio.get_running_loop().call_later(pause_s, self.put, assigned, [_plain(message)])
        return not assigned.process.dropped


class AsyncLitePullConsumer(GroupConsumer):
    """Shares the queues of some topics with its group, and returns messages when the application asks for
    them.

    >>> consumer = AsyncLitePullConsumer("reports", "127.0.0.1:9876", topic="orders")  # doctest: +SKIP
    >>> async with consumer:                                                           # doctest: +SKIP
    ...     async for message in consumer:
    ...         print(message.body)
    ...         await message.ack()

    Or use `poll`. The messages that it returned count as consumed at the next call of `poll` (`auto_commit`),
    or when `commit` is called. With `assign` instead of `subscribe` the application chooses the queues, and
    they are not shared with the group.
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
        """Messages that `poll` returned and that are not consumed yet."""
        self._assigning = asyncio.Lock()
        self._first_seen = FirstSeenQueues()
        self._begin_with(self._inbox, from_timestamp_ms, None)
        if topic is not None:
            self.subscribe(topic, expression)

    # --- which queues ---------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Share the queues of a topic with the group and consume all messages ("*"), or messages with one of
        some tags."""
        if self._assigned_by_hand:
            raise ClientError(
                "queues were assigned with assign(): a consumer uses either assign() or subscribe()"
            )
        super().subscribe(topic, expression)

    async def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read exactly these queues. A new queue begins at the group's committed offset, or without one at
        `from_where`. Other members of the group do not know of this assignment."""
        if self._subscriptions:
            raise ClientError(
                "topics were subscribed with subscribe(): a consumer uses either assign() or subscribe()"
            )
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
            await self._share.commit()  # also where nothing is consumed yet: a restart continues there

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, also those that other consumers read. Raises TopicNotFound or
        NoNameServer."""
        self._core.check_open()
        return await self._queues(with_namespace(topic, self._core.options.namespace))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer has now."""
        return self._share.queues

    # --- messages -------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Return messages of this consumer's queues; those of one queue are in order. Returns an empty list
        if no message arrived within `timeout_s`.

        With `ConsumerOptions.auto_commit` the messages of the previous call count as consumed now; otherwise
        call `commit`. The messages of the last call are not committed, and come again after a restart. Raises
        ClientClosed if the consumer is closed meanwhile.
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
        """Return the next message, which has to be acknowledged. The iteration ends when the consumer
        ends."""
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
        """Request the end. Call it on the loop."""
        super()._stop_soon(drain)
        self._inbox.arrived.set()

    async def commit(self) -> None:
        """Commit the messages that `poll` returned as consumed: after a restart the group continues after
        them. Raises ClientError if a broker refused the commit."""
        self._core.check_loop()
        self._settle()
        await self._share.commit_now()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`. The queues stay assigned to this consumer."""
        self._inbox.paused |= dict.fromkeys(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again, after `pause`."""
        for queue in queues:
            self._inbox.paused.pop(queue, None)
        self._inbox.arrived.set()

    # --- positions ------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this queue offset. Messages of this queue that were returned earlier and not committed
        yet will not be committed."""
        self._core.check_open()
        self._of(queue)
        check_offset(offset)
        self._share.restart(queue, offset, sought=True)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message that is still stored."""
        await self.seek(queue, await self._offsets.lowest(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next message that will be stored."""
        await self.seek(queue, await self._offsets.highest(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return await self._offsets.at_time(queue, timestamp_ms)

    def position(self, queue: MessageQueue) -> int:
        """Offset from which the next message of this queue is read. The message itself may have a higher
        offset."""
        assigned = self._of(queue)
        first = self._inbox.first(assigned)
        return assigned.reader.next_offset if first is None else first

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue; None if it has none."""
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
        return super()._consumer_data() if self._subscriptions else []  # else queues would be kept for us

    def _wanted(self) -> dict[str, Subscription]:
        return super()._wanted() if self._subscriptions else {}

    def _settle(self) -> None:
        handed, self._handed = self._handed, []
        for assigned, messages in handed:
            self._inbox.consumed(assigned, messages)

    def _of(self, queue: MessageQueue) -> AssignedQueue:
        found = self._share.assigned(queue)
        if found is None:
            raise ClientError(
                f"{queue} is not assigned to this consumer now; it has {len(self._share.queues)} other queues"
            )
        return found

    def _delivery(self, assigned: AssignedQueue, message: ReceivedMessage) -> Delivery:
        return Delivery(**asdict(message), _inbox=self._inbox, _assigned=assigned)


def _plain(message: ReceivedMessage) -> ReceivedMessage:
    return ReceivedMessage(*astuple(message)[: len(ReceivedMessage.__struct_fields__)])
