"""The same clients for programs without an event loop: each runs one in a thread of its own.

Methods may be called from any thread. Callbacks run on the client's loop thread: they must be short, and
must not call blocking methods of the same client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

from dledger.client.bulk.ranges import RangeOptions, RangeReader
from dledger.client.errors import ClientClosed, ClientError
from dledger.client.listening import BatchListener, Listener
from dledger.client.message import Message, MessageQueue, ReceivedMessage, SendResult, check_body, check_topic
from dledger.client.offsets import FromWhere
from dledger.client.options import ClientOptions, ConsumerOptions, ProducerOptions, PullOptions
from dledger.client.pending import OnSent
from dledger.client.producer import AsyncProducer
from dledger.client.pull_consumer import AsyncPullConsumer
from dledger.client.push_consumer import AsyncPushConsumer, MessageModel
from dledger.client.subscription import ALL
from dledger.runtime.loops import LoopThread, Waiter

PULLED_AHEAD = 8
"""Queues that a `RangePuller` pulls from at once, and answers that wait for the application at most."""

T = TypeVar("T")
C = TypeVar("C", bound=AbstractAsyncContextManager)  # type: ignore[type-arg]


class _Hosted(Generic[C]):
    """An asynchronous client on a loop thread. `make` builds it there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: LoopThread | None = None
        self._inner: C | None = None
        self._stop: asyncio.Event | None = None
        self._ended = Waiter()

    def _make(self) -> C:
        raise NotImplementedError

    def start(self) -> Self:
        """Start; `with` does it too. ClientError when it cannot."""
        if self._thread is not None:
            raise ClientError("already started")
        self._thread = thread = LoopThread(self._name)
        ready = Waiter()
        failure: list[BaseException] = []
        hosting = thread.submit(self._host(ready))
        hosting.add_done_callback(lambda done: self._hosted(done.exception(), failure, ready))
        ready.wait()
        if failure:
            self._thread = None
            thread.close()
            raise failure[0]
        return self

    def close(self) -> None:
        """End in order: what is under way is finished or reported, offsets are committed. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._stop is not None:
            thread.call_soon(self._stop.set)
        self._ended.wait()
        thread.close()

    async def _host(self, ready: Waiter) -> None:
        self._stop = asyncio.Event()
        async with self._make() as inner:
            self._inner = inner
            ready.set()
            await self._stop.wait()

    def _hosted(self, error: BaseException | None, failure: list[BaseException], ready: Waiter) -> None:
        self._inner = None
        if error is not None:
            failure.append(error)
        self._ended.set()
        ready.set()

    def _run(self, call: Callable[[C], Awaitable[T]]) -> T:
        """Run something on the loop and wait for it."""
        inner, thread = self._open()

        async def run() -> T:
            return await call(inner)

        return thread.run(run())

    def _open(self) -> tuple[C, LoopThread]:
        inner, thread = self._inner, self._thread
        if inner is None or thread is None:
            raise ClientClosed("not started, or closed: use it inside its `with` block")
        return inner, thread

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Hosted[AsyncProducer]):
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
        super().__init__(f"producer {group}")
        self.group = group
        self.options = options or ProducerOptions()
        self._namesrv = namesrv
        self._client = client

    def _make(self) -> AsyncProducer:
        return AsyncProducer(self.group, self._namesrv, self.options, self._client)

    def send(
        self, message: Message, queue: MessageQueue | None = None, ordering_key: str | None = None
    ) -> SendResult:
        """Send and wait for the acknowledgement; see AsyncProducer.send."""
        return self._run(lambda producer: producer.send(message, queue, ordering_key))

    async def asend(
        self, message: Message, queue: MessageQueue | None = None, ordering_key: str | None = None
    ) -> SendResult:
        """The same for a caller on some event loop of its own."""
        inner, thread = self._open()
        return await asyncio.wrap_future(thread.submit(inner.send(message, queue, ordering_key)))

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
        if inner.pending >= self.options.max_pending and not thread.inside:
            thread.run(inner.room())
        thread.call_soon(self._send_soon, inner, message, callback, queue, ordering_key)

    def _send_soon(
        self,
        inner: AsyncProducer,
        message: Message,
        callback: OnSent,
        queue: MessageQueue | None,
        ordering_key: str | None,
    ) -> None:
        inner.send_soon(message, callback, queue, ordering_key)

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
        inner, thread = self._open()
        return thread.submit(inner.send_batch(messages, queue)).result

    def begin(self, message: Message, queue: MessageQueue | None = None) -> Callable[[], SendResult]:
        """The same for one message, as `send`."""
        inner, thread = self._open()
        return thread.submit(inner.send(message, queue)).result

    def has_route(self, topic: str) -> bool:
        """Whether the topic exists, as far as the NameServers' last answer says."""
        return self._open()[0].has_route(topic)

    def create_topic(self, topic: str, queues: int = 8, broker_name: str | None = None) -> None:
        """Create a topic and wait until it can be used."""
        self._run(lambda producer: producer.create_topic(topic, queues, broker_name))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a message of this topic may go to."""
        return self._run(lambda producer: producer.queues(topic))


class PushConsumer(_Hosted[AsyncPushConsumer]):
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
        model: MessageModel = MessageModel.CLUSTERING,
        from_where: FromWhere = FromWhere.LAST,
        from_timestamp_ms: int = 0,
        options: ConsumerOptions | None = None,
        client: ClientOptions | None = None,
    ) -> None:
        super().__init__(f"consumer {group}")
        self.group = group
        self._subscribed: dict[str, str] = {} if topic is None else {topic: expression}

        def make() -> AsyncPushConsumer:
            consumer = AsyncPushConsumer(
                group,
                namesrv,
                listener,
                batch_listener=batch_listener,
                model=model,
                from_where=from_where,
                from_timestamp_ms=from_timestamp_ms,
                options=options,
                client=client,
            )
            for name, tags in self._subscribed.items():
                consumer.subscribe(name, tags)
            return consumer

        self._factory = make

    def _make(self) -> AsyncPushConsumer:
        return self._factory()

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consume one more topic: all of it ("*"), or messages with one of some tags ("A || B")."""
        self._subscribed[topic] = expression
        if self._thread is not None:
            inner, thread = self._open()
            thread.call_soon(inner.subscribe, topic, expression)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the consumer has ended (True) or the time is over (False); Ctrl-C interrupts."""
        return self._ended.wait(timeout_s)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        inner, _ = self._open()
        return inner.queues


class RangePuller(_Hosted[RangeReader]):
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
            while (item := thread.run(arrived.get())) is not None:
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


class PullConsumer(_Hosted[AsyncPullConsumer]):
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
        super().__init__(f"consumer {group}")
        self.group = group
        self._namesrv = namesrv
        self._options = options
        self._client = client

    def _make(self) -> AsyncPullConsumer:
        return AsyncPullConsumer(self.group, self._namesrv, self._options, self._client)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic."""
        return self._run(lambda consumer: consumer.queues(topic))

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Read only messages with one of some tags; counts for queues assigned afterwards."""
        inner, thread = self._open()
        thread.call_soon(inner.subscribe, topic, expression)

    def assign(
        self, queues: Iterable[MessageQueue], start: FromWhere = FromWhere.LAST, timestamp_ms: int = 0
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

    def lowest(self, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still there."""
        return self._run(lambda consumer: consumer.offsets.lowest(queue))

    def highest(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return self._run(lambda consumer: consumer.offsets.highest(queue))
