"""Consumers for programs without an event loop: each runs an event loop in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from dledger.client.consuming.consumer_options import ConsumerOptions, PopOptions, PullOptions
from dledger.client.consuming.group_consumer import MessageModel
from dledger.client.consuming.lite_pull_consumer import AsyncLitePullConsumer
from dledger.client.consuming.offsets import FromWhere, start_of
from dledger.client.consuming.pop_consumer import AsyncPopConsumer, check_pop_consumer
from dledger.client.consuming.pull_consumer import AsyncPullConsumer
from dledger.client.consuming.push_consumer import AsyncPushConsumer, check_consumer
from dledger.client.consuming.subscription import ALL, subscribe
from dledger.client.core import NOT_OPEN, OPENED_BEFORE_FORK
from dledger.client.errors import ClientClosed, ended_by
from dledger.client.listeners import BatchListener, Listener
from dledger.client.loop_thread import BlockingClient
from dledger.client.message import (
    MessageQueue,
    ReceivedMessage,
    check_topic,
)
from dledger.client.message_queries import MAX_MESSAGES, NEVER_MS
from dledger.client.options import ClientOptions, check_group_of, namesrv_addresses, options_of
from dledger.runtime.loops import LoopClosed
from dledger.runtime.signals import Interrupted, terminated_by_exception


class PushConsumer(BlockingClient[AsyncPushConsumer]):
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
        check_consumer(group, listener, batch_listener, model, from_where, from_timestamp_ms, client)
        super().__init__(f"consumer {group}")
        self.group = group
        self.options: ConsumerOptions = options_of(ConsumerOptions, options, "options")
        addresses = None if namesrv is None else namesrv_addresses(namesrv, client)
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
        """Consume one more topic: all messages ("*"), messages with one of some tags ("A || B"), or messages
        whose properties satisfy a condition (`Sql`)."""
        check_topic(topic)
        subscribe(topic, expression, 0)  # refuses here what the loop thread would refuse later
        self._subscribed[topic] = expression
        if self._thread is not None:
            inner, thread = self._open()
            thread.call_soon(inner.subscribe, topic, expression)
            if not thread.inside:
                self._wait(thread, inner._looked(topic))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the consumer has ended (True) or `timeout_s` is over (False).

        Ctrl-C closes the consumer: `wait` waits for running listeners, commits, and then raises an
        `Interrupted`. `except KeyboardInterrupt` catches it; a program that does not catch it ends with exit
        code 130 and without a traceback. After a second Ctrl-C it does not wait for listeners. On the main
        thread SIGTERM does the same with SystemExit(143), unless the program has its own handler. Raises
        ClientError if the consumer ended by itself, for example because its listener raised SystemExit.
        """
        thread = self._thread
        if thread is not None and thread.forked:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if thread is None and not self._closing:
            raise ClientClosed(NOT_OPEN)
        try:
            with terminated_by_exception():
                ended = self._ended.wait(timeout_s)
        except KeyboardInterrupt:
            self.close()
            raise Interrupted from None
        except SystemExit:
            self.close()
            raise
        if ended and self._failure is not None:
            raise ended_by(self._failure) from self._failure
        return ended

    def _called_by(self, inner: AsyncPushConsumer) -> bool:
        return inner._inside

    def _stop_handing_out(self, inner: AsyncPushConsumer) -> None:
        inner._stop_handing_out()

    # Generated from AsyncPushConsumer by scripts/blocking_methods.py: change it there.

    @property
    def client_id(self) -> str:
        """The name by which brokers know this consumer."""
        return self._call(lambda inner: inner.client_id)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer has now."""
        return self._call(lambda inner: inner.queues)


class PullConsumer(BlockingClient[AsyncPullConsumer]):
    """Reads chosen queues from chosen offsets; queues are not shared with the group.

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
        check_group_of(group, client)
        super().__init__(f"consumer {group}")
        self.group = group
        self.options: PullOptions = options_of(PullOptions, options, "options")
        self._namesrv = None if namesrv is None else namesrv_addresses(namesrv, client)
        self._client = options_of(ClientOptions, client, "client")

    def _make(self) -> AsyncPullConsumer:
        return AsyncPullConsumer(self.group, self._namesrv, self.options, self._client)

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Read only messages with one of some tags ("A || B"), or whose properties satisfy a condition
        (`Sql`). It applies to queues that are assigned afterwards."""
        check_topic(topic)
        subscribe(topic, expression, 0)  # refuses here what the loop thread would refuse later
        inner, thread = self._open()
        thread.call_soon(inner.subscribe, topic, expression)

    # Generated from AsyncPullConsumer by scripts/blocking_methods.py: change it there.

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic. Raises TopicNotFound or NoNameServer."""
        return self._run(lambda inner: inner.queues(topic))

    def assign(
        self, queues: Iterable[MessageQueue], start: FromWhere | str = FromWhere.LAST, timestamp_ms: int = 0
    ) -> None:
        """Read exactly these queues. A new queue begins at the group's committed offset, or without one at
        `start`."""
        self._run(lambda inner: inner.assign(queues, start, timestamp_ms))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads."""
        return self._call(lambda inner: inner.assignment)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this queue offset."""
        self._run(lambda inner: inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message that is still stored."""
        self._run(lambda inner: inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next message that will be stored."""
        self._run(lambda inner: inner.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after a time, in ms since the epoch."""
        self._run(lambda inner: inner.seek_to_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Offset from which `poll` returns the next message of this queue. The message itself may have a
        higher offset."""
        return self._call(lambda inner: inner.position(queue))

    def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Return messages of the assigned queues, in order per queue; empty when none arrived within
        `timeout_s`. Raises ClientClosed if the consumer is closed meanwhile."""
        return self._run(lambda inner: inner.poll(timeout_s, max_messages))

    def commit(self) -> None:
        """Commit the current offsets for the group, which continues there after a restart. Raises
        ClientError.

        An offset may become lower than the group's committed offset only in a queue for which `seek` was
        called. A broker refuses such a commit while other consumers of the group are connected, and for a
        minute after its leader has changed.
        """
        self._run(lambda inner: inner.commit())

    def lowest(self, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still stored."""
        return self._run(lambda inner: inner.lowest(queue))

    def highest(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return self._run(lambda inner: inner.highest(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return self._run(lambda inner: inner.offset_at(queue, timestamp_ms))

    def query_by_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = NEVER_MS, most: int = MAX_MESSAGES
    ) -> list[ReceivedMessage]:
        """Find the messages that have this key (or unique key) and were stored within [begin, end] (ms since
        the epoch), the oldest first. Each broker group returns its newest `most` (1 to 64). Raises
        ClientError."""
        return self._run(lambda inner: inner.query_by_key(topic, key, begin_ms, end_ms, most))

    def query_by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage | None:
        """Find the message with this unique key (the `message_id` of a send result), None when there is none.
        Raises ClientError."""
        return self._run(lambda inner: inner.query_by_unique_key(topic, unique_key))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue; None if it has none."""
        return self._run(lambda inner: inner.committed(queue))


class LitePullConsumer(BlockingClient[AsyncLitePullConsumer]):
    """Shares the queues of some topics with its group, and returns messages when the application asks for
    them.

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
        check_group_of(group, client)
        where = start_of(from_where, from_timestamp_ms, "from_where", "from_timestamp_ms")
        super().__init__(f"consumer {group}")
        self.group = group
        self.options: ConsumerOptions = options_of(ConsumerOptions, options, "options")
        addresses = None if namesrv is None else namesrv_addresses(namesrv, client)
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
            self._call(lambda consumer: consumer.subscribe(topic, expression))
            self._run(lambda consumer: consumer._looked(topic))
        self._subscribed[topic] = expression

    # Generated from AsyncLitePullConsumer by scripts/blocking_methods.py: change it there.

    @property
    def client_id(self) -> str:
        """The name by which brokers know this consumer."""
        return self._call(lambda inner: inner.client_id)

    def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read exactly these queues. A new queue begins at the group's committed offset, or without one at
        `from_where`. Other members of the group do not know of this assignment."""
        self._run(lambda inner: inner.assign(queues, expression))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, also those that other consumers read. Raises TopicNotFound or
        NoNameServer."""
        return self._run(lambda inner: inner.fetch_queues(topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer has now."""
        return self._call(lambda inner: inner.assignment)

    def poll(self, timeout_s: float = 1.0, max_messages: int = 500) -> list[ReceivedMessage]:
        """Return messages of this consumer's queues; those of one queue are in order. Returns an empty list
        if no message arrived within `timeout_s`.

        With `ConsumerOptions.auto_commit` the messages of the previous call count as consumed now; otherwise
        call `commit`. The messages of the last call are not committed, and come again after a restart. Raises
        ClientClosed if the consumer is closed meanwhile.
        """
        return self._run(lambda inner: inner.poll(timeout_s, max_messages))

    def commit(self) -> None:
        """Commit the messages that `poll` returned as consumed: after a restart the group continues after
        them. Raises ClientError if a broker refused the commit."""
        self._run(lambda inner: inner.commit())

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`. The queues stay assigned to this consumer."""
        self._call(lambda inner: inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again, after `pause`."""
        self._call(lambda inner: inner.resume(queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this queue offset. Messages of this queue that were returned earlier and not committed
        yet will not be committed."""
        self._run(lambda inner: inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message that is still stored."""
        self._run(lambda inner: inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next message that will be stored."""
        self._run(lambda inner: inner.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch."""
        return self._run(lambda inner: inner.offset_for_timestamp(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Offset from which the next message of this queue is read. The message itself may have a higher
        offset."""
        return self._call(lambda inner: inner.position(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue; None if it has none."""
        return self._run(lambda inner: inner.committed(queue))


class PopConsumer(BlockingClient[AsyncPopConsumer]):
    """Takes messages of a topic, each for a limited time, and acknowledges them one by one.

    >>> with PopConsumer("billing", "127.0.0.1:9876", topic="orders") as consumer:  # doctest: +SKIP
    ...     for message in consumer.pop(timeout_s=5.0):
    ...         print(message.body)
    ...         consumer.ack(message)
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        topic: str,
        expression: str = ALL,
        from_where: FromWhere | str = FromWhere.LAST,
        options: PopOptions | None = None,
        client: ClientOptions | None = None,
    ) -> None:
        where = check_pop_consumer(group, topic, from_where, client)
        subscribe(topic, expression, 0)  # refuses here what the loop thread would refuse later
        super().__init__(f"pop consumer {group}")
        self.group = group
        self.topic = topic
        self.options: PopOptions = options_of(PopOptions, options, "options")
        addresses = None if namesrv is None else namesrv_addresses(namesrv, client)
        common = options_of(ClientOptions, client, "client")

        def make() -> AsyncPopConsumer:
            return AsyncPopConsumer(
                group,
                addresses,
                topic=topic,
                expression=expression,
                from_where=where,
                options=self.options,
                client=common,
            )

        self._factory = make

    def _make(self) -> AsyncPopConsumer:
        return self._factory()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each message until the consumer is closed; see AsyncPopConsumer.listen.

        After Ctrl-C or SIGTERM no further message is passed to the listener. The call waits for running
        listeners, and then raises the same exceptions as `PushConsumer.wait`.
        """
        inner, thread = self._open()
        ended = self._begin(lambda consumer: consumer.listen(listener))
        with terminated_by_exception():
            try:
                ended()
            except (KeyboardInterrupt, SystemExit) as end:
                with suppress(LoopClosed):  # it is closed meanwhile
                    thread.call_soon(inner._stop_listening)
                ended()
                if isinstance(end, KeyboardInterrupt):
                    raise Interrupted from None
                raise

    def _called_by(self, inner: AsyncPopConsumer) -> bool:
        return inner._inside

    # Generated from AsyncPopConsumer by scripts/blocking_methods.py: change it there.

    def pop(self, timeout_s: float = 15.0) -> list[ReceivedMessage]:
        """Return messages that are reserved for this consumer for `PopOptions.invisible_s`. All of them come
        from one broker group, and there are at most `PopOptions.batch_size`. Returns an empty list if no
        message arrived within `timeout_s`.

        Brokers may hold a request longer than this call waits. The next call then returns its messages.
        Concurrent calls share the requests, and each answer goes to one of these calls.

        Raises TopicNotFound, NoNameServer, NoBroker or BrokerRefused, and ClientClosed if the consumer is
        closed meanwhile.
        """
        return self._run(lambda inner: inner.pop(timeout_s))

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message as consumed: it does not come again. If it was delivered again before this
        call, the broker does not report that. Raises NoBroker or BrokerRefused."""
        self._run(lambda inner: inner.ack(message))

    def ack_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledge several messages at the same time, as `ack` does."""
        self._run(lambda inner: inner.ack_all(messages))

    def change_invisible(self, message: ReceivedMessage, invisible_s: float) -> ReceivedMessage:
        """Change how long a message stays reserved for this consumer, counted from now. After that time the
        message comes again. Returns the message with a new handle, which has to be used to acknowledge it.

        Raises BrokerRefused, also if the message was delivered again before this call.
        """
        return self._run(lambda inner: inner.change_invisible(message, invisible_s))
