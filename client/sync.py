"""The same clients for programs without an event loop: each runs one in a thread of its own.

Methods may be called from any thread. Callbacks run on the client's loop thread: they must be short, and
must not call blocking methods of the same client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import overload

from dledger.client.bulk.ranges import RangeOptions, RangeReader
from dledger.client.core import NOT_OPEN, OPENED_BEFORE_FORK
from dledger.client.errors import ClientClosed, ClientError
from dledger.client.hosting import Hosted
from dledger.client.listening import BatchListener, Listener
from dledger.client.message import (
    Body,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    as_message,
    check_body,
    check_group,
    check_topic,
)
from dledger.client.offsets import FromWhere
from dledger.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    PullOptions,
    namesrv_addresses,
    options_of,
)
from dledger.client.pending import OnSent
from dledger.client.producer import AsyncProducer
from dledger.client.pull_consumer import AsyncPullConsumer
from dledger.client.push_consumer import AsyncPushConsumer, MessageModel, check_consumer, ended_by
from dledger.client.queries import MAX_MESSAGES, NEVER_MS
from dledger.client.subscription import ALL, subscribe
from dledger.runtime.signals import terminated_by_exception

PULLED_AHEAD = 8
"""Queues that a `RangePuller` pulls from at once, and answers that wait for the application at most."""


class Producer(Hosted[AsyncProducer]):
    """Sends messages.

    >>> with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:    # doctest: +SKIP
    ...     result = producer.send(Message("orders", b"body", tags="paid", keys="order-17"))
    ...     print(result.message_id, result.queue, result.queue_offset)
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        options: ProducerOptions | None = None,
        client: ClientOptions | None = None,
    ) -> None:
        check_group(group)
        super().__init__(f"producer {group}")
        self.group = group
        self.options: ProducerOptions = options_of(ProducerOptions, options, "options")
        self._namesrv = None if namesrv is None else namesrv_addresses(namesrv)
        self._client = options_of(ClientOptions, client, "client")
        self._numbers = count(1)
        self._handed = self._arrived = 0

    def _make(self) -> AsyncProducer:
        self._numbers = count(1)
        self._handed = self._arrived = 0
        return AsyncProducer(self.group, self._namesrv, self.options, self._client)

    @overload
    def send(
        self, message: Message, queue: MessageQueue | None = None, ordering_key: str | None = None
    ) -> SendResult: ...
    @overload
    def send(
        self,
        message: str,
        body: Body,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult: ...
    def send(  # type: ignore[misc]  # as in AsyncProducer
        self,
        message: Message | str,
        body: Body | MessageQueue | None = None,
        ordering_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """Send and wait for the acknowledgement; see AsyncProducer.send."""
        if type(message) is not Message or body is not None or tags or keys or properties:
            message, queue = as_message(message, body, queue, tags, keys, properties)
        inner, thread = self._open()
        return self._wait(thread, inner.send(message, queue, ordering_key))

    @overload
    async def asend(
        self, message: Message, queue: MessageQueue | None = None, ordering_key: str | None = None
    ) -> SendResult: ...
    @overload
    async def asend(
        self,
        message: str,
        body: Body,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult: ...
    async def asend(  # type: ignore[misc]  # as in AsyncProducer
        self,
        message: Message | str,
        body: Body | MessageQueue | None = None,
        ordering_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """The same for a caller on some event loop of its own."""
        if type(message) is not Message or body is not None or tags or keys or properties:
            message, queue = as_message(message, body, queue, tags, keys, properties)
        inner, thread = self._open()
        return await asyncio.wrap_future(thread.submit(inner.send(message, queue, ordering_key)))

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait until everything that was begun so far is acknowledged or reported.

        Returns how many messages had neither when `timeout_s` was over: 0 when all have.
        """
        return self._run(lambda producer: producer.flush(timeout_s))

    def send_async(
        self,
        message: Message,
        callback: OnSent,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
    ) -> None:
        """Send; `callback` gets the SendResult or the ClientError, on the loop thread.

        Raises InvalidMessage at once. Waits while `max_pending` messages have no acknowledgement yet.
        """
        check_topic(message.topic)
        check_body(message.body, self.options.max_message_size)
        inner, thread = self._open()
        on_the_way = self._handed - self._arrived  # to the loop; a few more or less where threads race
        if on_the_way + inner.pending >= self.options.max_pending and not thread.inside:
            self._wait(thread, inner.room())
        self._handed = next(self._numbers)
        thread.call_soon(self._send_soon, inner, message, callback, queue, ordering_key)

    def _send_soon(
        self,
        inner: AsyncProducer,
        message: Message,
        callback: OnSent,
        queue: MessageQueue | None,
        ordering_key: str | None,
    ) -> None:
        self._arrived += 1
        inner.take(message, callback, queue, ordering_key)

    def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send without an acknowledgement; see AsyncProducer.send_oneway."""
        self._run(lambda producer: producer.send_oneway(message, queue))

    def send_batch(self, messages: Sequence[Message], queue: MessageQueue | None = None) -> SendResult:
        """Send messages of one topic as one; see AsyncProducer.send_batch."""
        return self._run(lambda producer: producer.send_batch(messages, queue))

    def begin_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None
    ) -> Callable[[], SendResult]:
        """`send_batch` that does not wait: the function that it returns does, and raises what it would."""
        return self._begin(lambda producer: producer.send_batch(messages, queue))

    def begin(self, message: Message, queue: MessageQueue | None = None) -> Callable[[], SendResult]:
        """The same for one message, as `send`."""
        return self._begin(lambda producer: producer.send(message, queue))

    def has_route(self, topic: str) -> bool:
        """Whether the topic exists, as far as the NameServers' last answer says."""
        return self._open()[0].has_route(topic)

    def create_topic(self, topic: str, queues: int = 8, broker_name: str | None = None) -> None:
        """Create a topic and wait until it can be used."""
        self._run(lambda producer: producer.create_topic(topic, queues, broker_name))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a message of this topic may go to."""
        return self._run(lambda producer: producer.queues(topic))


class PushConsumer(Hosted[AsyncPushConsumer]):
    """Calls a listener with messages, until closed.

    >>> def handle(message): print(message.body)
    >>> with PushConsumer("billing", "127.0.0.1:9876", handle, topic="orders") as consumer:  # doctest: +SKIP
    ...     consumer.wait()
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        listener: Listener | None = None,
        *,
        topic: str | None = None,
        expression: str = ALL,
        batch_listener: BatchListener | None = None,
        model: MessageModel | str = MessageModel.CLUSTERING,
        from_where: FromWhere | str = FromWhere.LAST,
        from_timestamp_ms: int = 0,
        options: ConsumerOptions | None = None,
        client: ClientOptions | None = None,
    ) -> None:
        check_consumer(group, listener, batch_listener, model, from_where, from_timestamp_ms)
        super().__init__(f"consumer {group}")
        self.group = group
        self.options: ConsumerOptions = options_of(ConsumerOptions, options, "options")
        addresses = None if namesrv is None else namesrv_addresses(namesrv)
        common = options_of(ClientOptions, client, "client")
        self._subscribed: dict[str, str] = {}
        if topic is not None:
            self.subscribe(topic, expression)

        def make() -> AsyncPushConsumer:
            consumer = AsyncPushConsumer(
                group,
                addresses,
                listener,
                batch_listener=batch_listener,
                model=model,
                from_where=from_where,
                from_timestamp_ms=from_timestamp_ms,
                options=self.options,
                client=common,
            )
            for name, tags in self._subscribed.items():
                consumer.subscribe(name, tags)
            return consumer

        self._factory = make

    def _make(self) -> AsyncPushConsumer:
        return self._factory()

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consume one more topic: all of it ("*"), messages with one of some tags ("A || B"), or those whose
        properties fulfil a condition (`Sql`)."""
        check_topic(topic)
        subscribe(topic, expression, 0)  # refuses here what the loop thread would refuse later
        self._subscribed[topic] = expression
        if self._thread is not None:
            inner, thread = self._open()
            thread.call_soon(inner.subscribe, topic, expression)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the consumer has ended (True) or the time is over (False).

        Ctrl-C interrupts. On the main thread SIGTERM does as well, with SystemExit(143), unless the program
        has a handler of its own: so a `with` block around it is left in good order. ClientError when the
        consumer ended for a reason of its own: its listener raised SystemExit, for example.
        """
        thread = self._thread
        if thread is not None and thread.forked:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if thread is None and not self._closing:
            raise ClientClosed(NOT_OPEN)
        with terminated_by_exception():
            ended = self._ended.wait(timeout_s)
        if ended and self._failure is not None:
            raise ended_by(self._failure) from self._failure
        return ended

    def _called_by(self, inner: AsyncPushConsumer) -> bool:
        return inner.inside

    def _hand_out_no_more(self, inner: AsyncPushConsumer) -> None:
        inner.hand_out_no_more()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        inner, _ = self._open()
        return inner.queues


class RangePuller(Hosted[RangeReader]):
    """Knows queues and pulls ranges of them, in no group's progress; see client.ranges.

    >>> with RangePuller("127.0.0.1:9876", RangeOptions("reports")) as puller:  # doctest: +SKIP
    ...     bounds = puller.bounds(puller.queues("orders"))
    ...     for queue, records in puller.pull([(queue, *ends) for queue, ends in bounds.items()]): ...
    """

    def __init__(self, namesrv: str | Sequence[str], options: RangeOptions) -> None:
        super().__init__("range reader")
        self.options = options
        self._namesrv = namesrv

    def _make(self) -> RangeReader:
        return RangeReader(self._namesrv, self.options)

    def topics(self) -> list[str]:
        """All topics that the NameServer knows."""
        return self._run(lambda reader: reader.topics())

    def system_topics(self) -> list[str]:
        """Those that brokers made for themselves."""
        return self._run(lambda reader: reader.system_topics())

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic."""
        return self._run(lambda reader: reader.queues(topic))

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Of each queue the offset of the oldest message, and that which the next one will get."""
        return self._run(lambda reader: reader.bounds(queues))

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """Of each queue the offset of the first message stored at or after a time, in ms since the epoch."""
        return self._run(lambda reader: reader.at_time(queues, timestamp_ms))

    def keeps_order(self, group: str) -> bool:
        """Whether store times never go back in the queues of a broker group."""
        return self._run(lambda reader: reader.keeps_order(group))

    def pull(
        self, ranges: Iterable[tuple[MessageQueue, int, int]], expression: str = ALL
    ) -> Iterator[tuple[MessageQueue, bytes]]:
        """Records of messages [start, end) of all ranges, each in order, pulled side by side."""
        inner, thread = self._open()
        arrived: asyncio.Queue[tuple[MessageQueue, bytes] | ClientError | None] = asyncio.Queue(PULLED_AHEAD)
        pulling = thread.submit(_pull_all(inner, list(ranges), expression, arrived))
        try:
            while (item := self._wait(thread, arrived.get())) is not None:
                if isinstance(item, ClientError):
                    raise item
                yield item
            pulling.result()
        finally:
            pulling.cancel()


async def _pull_all(
    reader: RangeReader,
    ranges: Sequence[tuple[MessageQueue, int, int]],
    expression: str,
    arrived: asyncio.Queue[tuple[MessageQueue, bytes] | ClientError | None],
) -> None:
    free = asyncio.Semaphore(PULLED_AHEAD)

    async def one(queue: MessageQueue, start: int, end: int) -> None:
        async with free:
            try:
                async for records in reader.pull(queue, start, end, expression):
                    await arrived.put((queue, records))
            except ClientError as error:
                await arrived.put(error)

    try:
        async with asyncio.TaskGroup() as tasks:
            for queue, start, end in ranges:
                tasks.create_task(one(queue, start, end), name=f"pull {queue.topic} {queue.queue_id}")
    finally:
        await arrived.put(None)


class PullConsumer(Hosted[AsyncPullConsumer]):
    """Reads chosen queues from chosen positions.

    >>> with PullConsumer("reports", "127.0.0.1:9876") as consumer:             # doctest: +SKIP
    ...     consumer.assign(consumer.queues("orders"), start=FromWhere.FIRST)
    ...     for message in consumer.poll(timeout_s=1.0): print(message.body)
    ...     consumer.commit()
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        options: PullOptions | None = None,
        client: ClientOptions | None = None,
    ) -> None:
        check_group(group)
        super().__init__(f"consumer {group}")
        self.group = group
        self.options: PullOptions = options_of(PullOptions, options, "options")
        self._namesrv = None if namesrv is None else namesrv_addresses(namesrv)
        self._client = options_of(ClientOptions, client, "client")

    def _make(self) -> AsyncPullConsumer:
        return AsyncPullConsumer(self.group, self._namesrv, self.options, self._client)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic."""
        return self._run(lambda consumer: consumer.queues(topic))

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Read only messages with one of some tags, or whose properties fulfil a condition (`Sql`); counts
        for queues assigned afterwards."""
        check_topic(topic)
        subscribe(topic, expression, 0)  # refuses here what the loop thread would refuse later
        inner, thread = self._open()
        thread.call_soon(inner.subscribe, topic, expression)

    def assign(
        self, queues: Iterable[MessageQueue], start: FromWhere | str = FromWhere.LAST, timestamp_ms: int = 0
    ) -> None:
        """Read exactly these queues: new ones from the group's committed offset, else from `start`."""
        self._run(lambda consumer: consumer.assign(queues, start, timestamp_ms))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with this queue offset."""
        self._run(lambda consumer: consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the oldest message that is still there."""
        self._run(lambda consumer: consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that is stored."""
        self._run(lambda consumer: consumer.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on with the first message stored at or after a time, in ms since the epoch."""
        self._run(lambda consumer: consumer.seek_to_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that `poll` will return of this queue."""
        inner, _ = self._open()
        return inner.position(queue)

    def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Messages of the assigned queues, in order per queue; empty when none came in time."""
        return self._run(lambda consumer: consumer.poll(timeout_s, max_messages))

    def commit(self) -> None:
        """Make the positions those of the group."""
        self._run(lambda consumer: consumer.commit())

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue, None without one."""
        return self._run(lambda consumer: consumer.committed(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return self._run(lambda consumer: consumer.offsets.at_time(queue, timestamp_ms))

    def query_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = NEVER_MS,
        most: int = MAX_MESSAGES,
    ) -> list[ReceivedMessage]:
        """Messages with this key, or this unique key, stored within [begin, end] (ms since the epoch), the
        oldest first: of each broker group the newest `most` (1 to 64)."""
        return self._run(lambda consumer: consumer.query_by_key(topic, key, begin_ms, end_ms, most))

    def query_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage | None:
        """The message with this unique key, which is the `message_id` of a send result; None without one."""
        return self._run(lambda consumer: consumer.query_by_unique_key(topic, unique_key))

    def lowest(self, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still there."""
        return self._run(lambda consumer: consumer.offsets.lowest(queue))

    def highest(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return self._run(lambda consumer: consumer.offsets.highest(queue))
