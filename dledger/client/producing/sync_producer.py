"""The producer for programs without an event loop: it runs an event loop in a thread of its own.

Methods may be called from any thread. Callbacks run on the client's loop thread: they must be short, and must
not call blocking methods of the same client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import overload

from dledger.client.loop_thread import BlockingClient, ending_is_client_closed
from dledger.client.message import (
    Body,
    Message,
    MessageQueue,
    QueueChoice,
    ReceivedMessage,
    SendResult,
    as_message,
    check_body,
    check_ordering_key,
    check_topic,
)
from dledger.client.options import ClientOptions, check_group_of, namesrv_addresses, options_of
from dledger.client.producing.pending_sends import OnSent
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.runtime.loops import Cancelled


class Producer(BlockingClient[AsyncProducer]):
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
        check_group_of(group, client)
        super().__init__(f"producer {group}")
        self.group = group
        self.options: ProducerOptions = options_of(ProducerOptions, options, "options")
        self._namesrv = None if namesrv is None else namesrv_addresses(namesrv, client)
        self._client = options_of(ClientOptions, client, "client")
        self._numbers = count(1)
        self._handed = self._arrived = 0

    def _begin_anew(self) -> None:
        self._numbers = count(1)
        self._handed = self._arrived = 0

    def _make(self) -> AsyncProducer:
        self._begin_anew()
        return AsyncProducer(self.group, self._namesrv, self.options, self._client)

    @overload
    def send(
        self, message: Message, queue: QueueChoice | None = None, ordering_key: str | None = None
    ) -> SendResult: ...
    @overload
    def send(
        self,
        message: str,
        body: Body,
        *,
        queue: QueueChoice | None = None,
        ordering_key: str | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult: ...
    def send(  # type: ignore[misc]  # as in AsyncProducer
        self,
        message: Message | str,
        body: Body | QueueChoice | None = None,
        ordering_key: str | None = None,
        *,
        queue: QueueChoice | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """Send a message and wait for the acknowledgement; see AsyncProducer.send."""
        if type(message) is not Message or body is not None or tags or keys or properties:
            message, queue = as_message(message, body, queue, tags, keys, properties)
        inner, thread = self._open()
        return self._wait(thread, inner.send(message, queue, ordering_key))

    @overload
    async def asend(
        self, message: Message, queue: QueueChoice | None = None, ordering_key: str | None = None
    ) -> SendResult: ...
    @overload
    async def asend(
        self,
        message: str,
        body: Body,
        *,
        queue: QueueChoice | None = None,
        ordering_key: str | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult: ...
    async def asend(  # type: ignore[misc]  # as in AsyncProducer
        self,
        message: Message | str,
        body: Body | QueueChoice | None = None,
        ordering_key: str | None = None,
        *,
        queue: QueueChoice | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """Do the same as `send`, for a caller that runs on an event loop of its own."""
        if type(message) is not Message or body is not None or tags or keys or properties:
            message, queue = as_message(message, body, queue, tags, keys, properties)
        inner, thread = self._open()
        with ending_is_client_closed():
            sent = thread.submit(inner.send(message, queue, ordering_key))
            try:
                return await asyncio.wrap_future(sent)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and not task.cancelling():  # the loop thread has ended
                    raise Cancelled from None
                raise

    def send_async(
        self,
        message: Message,
        callback: OnSent,
        queue: QueueChoice | None = None,
        ordering_key: str | None = None,
    ) -> None:
        """Send a message; `callback` is called on the loop thread with the SendResult or the ClientError.

        Raises InvalidMessage at once. Waits while `max_pending` messages are without an acknowledgement.
        """
        check_topic(message.topic)
        check_body(message.body, self.options.max_message_size)
        check_ordering_key(ordering_key)
        inner, thread = self._open()
        on_the_way = self._handed - self._arrived  # handed to the loop thread; approximate if threads race
        if on_the_way + inner._pending_count >= self.options.max_pending and not thread.inside:
            self._wait(thread, inner._room())
        self._handed = next(self._numbers)
        thread.call_soon(self._send_soon, inner, message, callback, queue, ordering_key)

    def _send_soon(
        self,
        inner: AsyncProducer,
        message: Message,
        callback: OnSent,
        queue: QueueChoice | None,
        ordering_key: str | None,
    ) -> None:
        self._arrived += 1
        inner._take(message, callback, queue, ordering_key)

    def begin_batch(
        self, messages: Iterable[Message], queue: QueueChoice | None = None
    ) -> Callable[[], SendResult]:
        """Begin a `send_batch` without waiting. The function that it returns waits, and raises what
        `send_batch` would."""
        return self._begin(lambda producer: producer.send_batch(messages, queue))

    def begin(self, message: Message, queue: QueueChoice | None = None) -> Callable[[], SendResult]:
        """Begin a `send` without waiting. The function that it returns waits, and raises what `send`
        would."""
        return self._begin(lambda producer: producer.send(message, queue))

    # Generated from AsyncProducer by scripts/blocking_methods.py: change it there.

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait until every message whose send was begun so far has its acknowledgement or its error.

        If `timeout_s` is over before, returns the number of messages that have neither; otherwise returns 0.
        It does not wait for messages whose send begins after the call.
        """
        return self._run(lambda inner: inner.flush(timeout_s))

    def request(
        self,
        message: Message,
        timeout_s: float = 3.0,
        queue: QueueChoice | None = None,
        ordering_key: str | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for its reply. The consumer makes the reply with `reply_to` and sends it.

        `timeout_s` is the longest time from this call to the reply. After it NoReply is raised. Sending has
        its own time-outs (`ProducerOptions`). The reply is pushed to this client and stored nowhere.
        """
        return self._run(lambda inner: inner.request(message, timeout_s, queue, ordering_key))

    def send_batch(self, messages: Iterable[Message], queue: QueueChoice | None = None) -> SendResult:
        """Send messages of one topic as one request: either all are stored in one queue, in order, or none.

        The result has the unique id and queue offset of the first message, and all offset message ids.
        """
        return self._run(lambda inner: inner.send_batch(messages, queue))

    def send_oneway(self, message: Message, queue: QueueChoice | None = None) -> None:
        """Send without an acknowledgement: the message may get lost, and errors of the broker are not
        reported."""
        self._run(lambda inner: inner.send_oneway(message, queue))

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The queues that a message of this topic may be sent to. With `refresh` the NameServers are asked
        again; otherwise the answer may be some seconds old. Raises TopicNotFound."""
        return self._run(lambda inner: inner.queues(topic, refresh=refresh))

    def has_route(self, topic: str) -> bool:
        """Whether the NameServers' last answer contained a route of the topic."""
        return self._call(lambda inner: inner.has_route(topic))

    def recall(self, topic: str, handle: str) -> str:
        """Recall a message that was sent with a `delay` or a delivery time (`deliver_at`). Returns its unique
        id.

        `handle` is `SendResult.recall_handle`. The broker does not report whether there was such a message.
        Raises BrokerRefused if the delivery time has come, so that the message was or will be delivered.
        Raises OutcomeUnknown if an attempt got no answer and no later one succeeded. Then the message may
        have been recalled, and calling `recall` again does no harm.
        """
        return self._run(lambda inner: inner.recall(topic, handle))

    def create_topic(self, topic: str, queues: int = 8, broker_name: str | None = None) -> None:
        """Create a topic in every broker group (or in one) and wait until it can be used."""
        self._run(lambda inner: inner.create_topic(topic, queues, broker_name))

    def delete_topic(self, topic: str, broker_name: str | None = None) -> None:
        """Delete a topic with its messages in every broker group (or in one). A topic that does not exist
        counts as deleted.

        An attempt without an answer is repeated. The first attempt may then arrive very late, when the topic
        has been created again. It does not delete the new topic, with two exceptions: this call found no
        topic in the beginning, or the broker is not one of ours.
        """
        self._run(lambda inner: inner.delete_topic(topic, broker_name))
