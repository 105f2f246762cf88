"""The same clients for programs without an event loop: each runs one in a thread of its own.

Methods may be called from any thread. Callbacks run on the client's loop thread: they must be short, and
must not call blocking methods of the same client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import overload

from dledger.client.core import NOT_OPEN, OPENED_BEFORE_FORK
from dledger.client.errors import ClientClosed
from dledger.client.group_consumer import MessageModel
from dledger.client.hosting import Hosted, T
from dledger.client.listening import BatchListener, Listener
from dledger.client.lite_pull_consumer import AsyncLitePullConsumer
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
from dledger.client.offsets import FromWhere, start_of
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
from dledger.client.push_consumer import AsyncPushConsumer, check_consumer, ended_by
from dledger.client.queries import MAX_MESSAGES, NEVER_MS
from dledger.client.subscription import ALL, subscribe
from dledger.runtime.signals import terminated_by_exception


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

    def request(
        self,
        message: Message,
        timeout_s: float = 3.0,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for its reply; see AsyncProducer.request."""
        return self._run(lambda producer: producer.request(message, timeout_s, queue, ordering_key))

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
        orderly: bool = False,
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
                orderly=orderly,
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


class LitePullConsumer(Hosted[AsyncLitePullConsumer]):
    """Shares the queues of some topics with its group, and hands out messages when it is asked.

    >>> with LitePullConsumer("reports", "127.0.0.1:9876", topic="orders") as consumer:  # doctest: +SKIP
    ...     for message in consumer.poll(timeout_s=1.0): print(message.body)
    ...     consumer.commit()
    """

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
    ) -> None:
        check_group(group)
        where = start_of(from_where, from_timestamp_ms, "from_where", "from_timestamp_ms")
        super().__init__(f"consumer {group}")
        self.group = group
        self.options: ConsumerOptions = options_of(ConsumerOptions, options, "options")
        addresses = None if namesrv is None else namesrv_addresses(namesrv)
        common = options_of(ClientOptions, client, "client")
        self._subscribed: dict[str, str] = {}
        if topic is not None:
            self.subscribe(topic, expression)

        def make() -> AsyncLitePullConsumer:
            consumer = AsyncLitePullConsumer(
                group,
                addresses,
                from_where=where,
                from_timestamp_ms=from_timestamp_ms,
                options=self.options,
                client=common,
            )
            for name, tags in self._subscribed.items():
                consumer.subscribe(name, tags)
            return consumer

        self._factory = make

    def _make(self) -> AsyncLitePullConsumer:
        return self._factory()

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Share the queues of one more topic with the group."""
        check_topic(topic)
        subscribe(topic, expression, 0)  # refuses here what the loop thread would refuse later
        if self._thread is not None:
            self._do(lambda consumer: consumer.subscribe(topic, expression))
        self._subscribed[topic] = expression

    def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read exactly these queues: new ones from the group's committed offset, else from `from_where`."""
        self._run(lambda consumer: consumer.assign(queues, expression))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, ours and others'."""
        return self._run(lambda consumer: consumer.fetch_queues(topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._do(lambda consumer: consumer.assignment)

    def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Messages of our queues, in order per queue; empty when none came in time. With
        `ConsumerOptions.auto_commit` what the last call gave counts as consumed now."""
        return self._run(lambda consumer: consumer.poll(timeout_s, max_messages))

    def commit(self) -> None:
        """What `poll` gave is consumed, and the group goes on behind it after a restart."""
        self._run(lambda consumer: consumer.commit())

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these until `resume`. They stay ours."""
        self._do(lambda consumer: consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with these."""
        self._do(lambda consumer: consumer.resume(queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with this queue offset. What was handed out of the queue does not count any more."""
        self._run(lambda consumer: consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the oldest message that is still there."""
        self._run(lambda consumer: consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that is stored."""
        self._run(lambda consumer: consumer.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return self._run(lambda consumer: consumer.offset_for_timestamp(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message of this queue, at least."""
        return self._do(lambda consumer: consumer.position(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue, None without one."""
        return self._run(lambda consumer: consumer.committed(queue))

    def _do(self, call: Callable[[AsyncLitePullConsumer], T]) -> T:
        """The same as `_run` for what is quick, and not awaited."""

        async def run(consumer: AsyncLitePullConsumer) -> T:
            return call(consumer)

        return self._run(run)
