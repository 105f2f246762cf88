"""The producer for programs with an event loop; `sync_producer.Producer` is the same without one."""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import NoReturn, cast, overload

from dledger.client.callback_failures import Failures
from dledger.client.compression import compress
from dledger.client.core import NOT_OPEN, ClientCore
from dledger.client.encoding import DEFAULT_TOPIC, RETRY_PREFIX, SendHeader, properties_text
from dledger.client.errors import (
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoReply,
    Overflow,
    TopicNotFound,
)
from dledger.client.lifecycle import AsyncClient
from dledger.client.message import (
    Body,
    Message,
    MessageQueue,
    QueueChoice,
    ReceivedMessage,
    SendResult,
    as_message,
    batch_of,
    check_body,
    check_ordering_key,
    check_topic,
    comes_later,
)
from dledger.client.namespaces import REPLY_SUFFIX, with_namespace
from dledger.client.options import ClientOptions, check_group_of, options_of
from dledger.client.producing.accumulator import Accumulator, BatchItem, Key
from dledger.client.producing.pending_sends import SEND_BATCH, SEND_REPLY, OnSent, PendingSend, Target
from dledger.client.producing.preset_ids import MessageWithId
from dledger.client.producing.producer_options import ProducerOptions
from dledger.client.producing.queue_selection import TopicTargets, selected
from dledger.client.producing.recalls import recall
from dledger.client.producing.request_reply import Requests
from dledger.client.producing.send_hooks import SendContext, SendHooks
from dledger.client.producing.send_kernel import SendKernel
from dledger.client.producing.send_trace import TraceSendHook
from dledger.client.producing.unique_ids import UniqueIds
from dledger.client.routes import inherited_route, publish_queues
from dledger.client.topics import create_topic, delete_topic
from dledger.client.trace import MAX_TRACES_UNDER_WAY, Tracing
from dledger.client.trace_records import TRACE_GROUP
from dledger.formats.checksum import crc32
from dledger.formats.message_ids import pack_ipv4_host
from dledger.formats.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from dledger.remoting.bodies import TopicRoute
from dledger.remoting.client import ClientHandler
from dledger.remoting.codes import RequestCode
from dledger.remoting.errors import Overloaded, RemotingError, TooLarge
from dledger.remoting.messages import BatchMessage, encode_batch
from dledger.runtime import Env, Lane
from dledger.runtime.forks import FORKS
from dledger.runtime.loops import next_turn

MAX_BATCH_OVERHEAD = 64 * 1024
"""How much larger than `max_message_size` a batch may be, in bytes, because of the lengths and properties in
it."""
NOT_SENT = "the producer was closed before this message was sent; it is not stored"
COMPRESS_IN_WORKER_OVER = 64 * 1024
"""Larger bodies, in bytes, are compressed in a worker thread when they are sent by `send` or `send_oneway`.
On the loop the compression would block it for milliseconds. `send_nowait` and `send_soon` always compress on
the loop."""


class AsyncProducer(AsyncClient):
    """Sends messages of one producer group.

    >>> async with AsyncProducer("orders", "127.0.0.1:9876") as producer:       # doctest: +SKIP
    ...     result = await producer.send(Message("orders", b"body", tags="paid", keys="order-17"))

    If the acknowledgement of a message is lost, the message is sent again under the same unique id, with the
    property `__RESEND`, to the same broker group, which stores it once. At the end of the block (also after
    an exception), and in `close`, the producer waits until every send that was begun has its acknowledgement
    or its error. It waits at most `ProducerOptions.close_timeout_s`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        options: ProducerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        check_group_of(group, client)
        common = options_of(ClientOptions, client, "client")
        self._namespace = common.namespace
        self.group: str = with_namespace(group, common.namespace)
        self.options: ProducerOptions = options_of(ProducerOptions, options, "options")
        self._requests = Requests()
        self._compress_lane = Lane.DISK
        super().__init__(
            ClientCore(env, namesrv, common, self._handlers(), self._disk_threads),
            f"producer {group}",
        )
        self._env = self._core.env
        self._core.producer_groups.append(self.group)
        self._core.on_route.append(self._route_changed)
        try:
            ip = pack_ipv4_host(self._core.options.client_ip, 0)[:4]
        except ValueError as error:
            raise ClientError(f"client_ip: {error}") from error
        self._forks = FORKS.count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._max_pending = self.options.max_pending
        self._max_size = self.options.max_message_size
        self._ids = UniqueIds(self._env, ip)
        self._topics: dict[str, TopicTargets] = {}
        self._early: dict[str, list[tuple[Message, OnSent, QueueChoice | None, str | None]]] = {}
        self._early_count = 0
        self._asked: dict[str, asyncio.Future[None]] = {}  # routes that are asked for, by topic
        self._kernel: SendKernel = cast(SendKernel, _NotStarted())
        self._accumulator: Accumulator | None = None
        self._hooks: SendHooks | None = None
        self._tracing: Tracing | None = None
        # Maps the number of a call that has not reached the kernel yet to the number of its messages.
        self._entering: dict[int, int] = {}
        self._entered = 0
        self._entry = asyncio.Event()

    @property
    def _disk_threads(self) -> int:
        return 2

    def _handlers(self) -> dict[int, ClientHandler]:
        """Handlers for the requests that brokers send to this client."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.pushed}

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._kernel = SendKernel(self._core, self.options, self._elsewhere)
        hooks = self.options.hooks
        self._tracing = tracing_of(self._core)
        if self._tracing is not None:
            hooks = (*hooks, TraceSendHook(self._core, self._tracing.dispatcher))
            self._kernel.regions = {}
            await self._tracing.start()
        if hooks:
            self._hooks = SendHooks(self.group, hooks, Failures(self._core.log))
            self._hooks.complete = self._complete
        if self.options.auto_batch:
            self._accumulator = Accumulator(self.options, self._send_held, self._kernel.tell)

    async def _finish(self, drain: bool) -> None:
        try:
            if drain:
                await next_turn()  # lets tasks run that were made, but have not run yet
                left = await self.flush(self.options.close_timeout_s)
                if left:
                    self._core.log.warning("messages were not acknowledged before close", messages=left)
        finally:
            self._max_pending = 0
            if self._accumulator is not None:
                self._accumulator.close(ClientClosed(NOT_SENT))
            await self._kernel.close()
            if self._tracing is not None:
                await self._tracing.close(drain)
        await self._core.unregister(self.group, None)

    async def flush(self, timeout_s: float | None = None) -> int:
        """Wait until every message whose send was begun so far has its acknowledgement or its error.

        If `timeout_s` is over before, returns the number of messages that have neither; otherwise returns 0.
        It does not wait for messages whose send begins after the call.
        """
        self._core.check_open()
        try:
            async with asyncio.timeout(timeout_s):
                if self._early:
                    await next_turn()  # lets the task run that asks for their route
                entering = list(self._entering)
                while any(number in self._entering for number in entering):
                    self._entry.clear()
                    await self._entry.wait()
                if self._accumulator is not None:
                    self._accumulator.send_all()
                await self._kernel.flush()
        except TimeoutError:
            return self._pending_count + sum(self._entering.values())
        return 0

    @contextmanager
    def _on_the_way(self, messages: int = 1) -> Iterator[None]:
        """Context manager around a call that has to wait before it can pass its message to the kernel. With
        it `flush` waits for this message, too."""
        self._entered = number = self._entered + 1
        self._entering[number] = messages
        try:
            yield
        finally:
            del self._entering[number]
            self._entry.set()

    # --- sending --------------------------------------------------------------------------------------

    @overload
    async def send(
        self, message: Message, queue: QueueChoice | None = None, ordering_key: str | None = None
    ) -> SendResult: ...
    @overload
    async def send(
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
    async def send(  # type: ignore[misc]  # the second of the first form goes by two names here
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
        """Send a message and wait for the acknowledgement.

        Give a `Message`, or a topic and a body, with tags, keys and properties as keyword arguments. Without
        `queue` and `ordering_key` the queues are used in turn. `queue` is one of `queues(topic)`, or a
        function that chooses among them (`QueueSelector`). Messages with the same `ordering_key` go to the
        same queue one after the other. They keep their order even if attempts fail.

        Raises InvalidMessage, TopicNotFound, NoBroker, Overflow (the connection did not accept it in time),
        SendFailed or ClientClosed; after all of these the message is not stored. Raises OutcomeUnknown if the
        message may be stored.
        """
        if type(message) is not Message or body is not None or tags or keys or properties:
            message, queue = as_message(message, body, queue, tags, keys, properties)
        if self._namespace:
            message = self._named(message)
        size = len(message.body) if type(message.body) is bytes else 0
        if not 0 < size <= self._max_size:
            check_body(message.body, self._max_size)
        compressed = None
        if (
            message.topic not in self._topics
            or self._kernel.pending >= self._max_pending
            or size > COMPRESS_IN_WORKER_OVER
        ):
            with self._on_the_way():
                await self.prepare(message.topic)
                await self._room()
                compressed = await self._compress_large(message.body)
        elif self._forks != FORKS.count or _get_running_loop() is not self._loop:
            self._core.check_open()
        done = _Done()
        self._submit(message, done, queue, ordering_key, compressed)
        return await done.future

    async def request(
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
        deadline = self._core.now() + timeout_s
        await self.prepare(message.topic)
        correlation_id = f"{self._env.random.getrandbits(128):032x}"
        asking = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._core.client_id,
            TTL: str(round(timeout_s * 1000)),
        }
        asked = Message(
            message.topic,
            message.body,
            None,
            message.keys,
            {**(message.properties or {}), **asking},
            message.flag,
            message.delay_level,
            message.delay,
            message.deliver_at,
        )
        asked.tags = message.tags
        with self._requests.expecting(correlation_id) as reply:  # it may be here before the acknowledgement
            await self.send(asked, queue, ordering_key)
            try:
                async with asyncio.timeout_at(deadline):
                    return await reply
            except TimeoutError:
                remark = (
                    f"no reply within {timeout_s:g} s: check that a consumer of {message.topic} "
                    "runs and sends replies"
                )
                raise NoReply(f"{remark} (see reply_to)") from None

    async def send_batch(self, messages: Iterable[Message], queue: QueueChoice | None = None) -> SendResult:
        """Send messages of one topic as one request: either all are stored in one queue, in order, or none.

        The result has the unique id and queue offset of the first message, and all offset message ids.
        """
        messages = messages if isinstance(messages, list | tuple) else batch_of(messages)
        if not messages:
            raise InvalidMessage("the batch is empty")
        messages = [self._named(message) for message in messages] if self._namespace else messages
        with self._on_the_way():
            await self.prepare(messages[0].topic)
            await self._room()
        done = _Done()
        self.send_batch_nowait(messages, done, queue)
        return await done.future

    async def send_oneway(self, message: Message, queue: QueueChoice | None = None) -> None:
        """Send without an acknowledgement: the message may get lost, and errors of the broker are not
        reported."""
        check_body(message.body, self._max_size)
        with self._on_the_way():
            await self._send_oneway(self._named(message), queue)

    async def _send_oneway(self, message: Message, queue: QueueChoice | None) -> None:
        if self._hooks is not None:
            context = self._hooks.before([message])
            message = context.messages[0]
            try:
                await self._go_oneway(message, queue)
            finally:
                self._hooks.after(context, None)
        else:
            await self._go_oneway(message, queue)

    async def _go_oneway(self, message: Message, queue: QueueChoice | None) -> None:
        await self.prepare(message.topic)
        target = self._choose(message, queue, None)
        leader = target.lane.group.leader or target.lane.group.registered_leader
        if leader is None:
            return
        send = self._pending(message, target, _ignore, await self._compress_large(message.body))
        try:
            await self._core.remoting.invoke_oneway(leader, send.code, send.header(), send.body)
        except RemotingError as error:
            if not isinstance(error, Overloaded | TooLarge):
                self._core.leader_failed(target.lane.group, leader, message.topic)
            self._core.log.debug("one-way message lost", topic=message.topic, error=error)

    def send_nowait(
        self,
        message: Message,
        on_done: OnSent,
        queue: QueueChoice | None = None,
        ordering_key: str | None = None,
    ) -> None:
        """Send without waiting; `on_done` is called on the loop with the SendResult or the ClientError.

        This is the cheapest way to send: it makes no task and no future. The topic must be prepared (`await
        prepare(topic)`, or an earlier send). Raises InvalidMessage, Overflow if `max_pending` is reached, or
        TopicNotFound if the topic is not prepared.
        """
        kernel = self._kernel
        if kernel.pending >= self._max_pending or self._forks != FORKS.count:
            self._core.check_open()
            if not self._max_pending:
                raise ClientClosed(NOT_OPEN)
            raise Overflow(self._too_many())
        if self._namespace:
            message = self._named(message)
        body = message.body
        if type(body) is not bytes or not 0 < len(body) <= self._max_size:
            check_body(body, self._max_size)
        self._submit(message, on_done, queue, ordering_key, None)

    def send_soon(
        self,
        message: Message,
        on_done: OnSent,
        queue: QueueChoice | None = None,
        ordering_key: str | None = None,
    ) -> None:
        """Send like `send_nowait`, but first ask for the topic's route where needed, and report every error
        to `on_done`.

        Messages of one topic keep their order.
        """
        if 0 < self._max_pending <= self._pending_count:
            self._kernel.tell(on_done, Overflow(self._too_many()), message.topic)
        else:
            self._take(message, on_done, queue, ordering_key)

    def _take(
        self, message: Message, on_done: OnSent, queue: QueueChoice | None, ordering_key: str | None
    ) -> None:
        """Do the same as `send_soon`, for callers that wait for `_room` themselves. Therefore it accepts a
        few messages more than `max_pending`."""
        if self._namespace:
            message = self._named(message)
        if message.topic in self._topics and message.topic not in self._early:
            self._send_reporting(message, on_done, queue, ordering_key)
            return
        waiting = self._early.setdefault(message.topic, [])
        waiting.append((message, on_done, queue, ordering_key))
        self._early_count += 1
        if len(waiting) == 1:
            try:
                self._core.spawn(self._send_early(message.topic), f"prepare {message.topic}")
            except ClientClosed as error:
                del self._early[message.topic]
                self._early_count -= 1
                self._kernel.tell(on_done, error, message.topic)

    def _too_many(self) -> str:
        return (
            f"{self._pending_count} messages wait for their acknowledgement, and that is the limit "
            "(max_pending): wait for some of them first"
        )

    async def _room(self) -> None:
        """Wait until fewer than `max_pending` messages are without an acknowledgement."""
        while self._kernel.full or self._pending_count >= self._max_pending:
            if self._kernel.full:
                await self._kernel.room()
            elif self._accumulator is not None and self._accumulator.messages:
                self._accumulator.send_all()  # a batch counts as one
            else:  # messages wait for the route of their topic
                self._entry.clear()
                await self._entry.wait()

    def send_batch_nowait(
        self, messages: Sequence[Message], on_done: OnSent, queue: QueueChoice | None = None
    ) -> None:
        """Send a batch as `send_batch` does, under the conditions of `send_nowait`."""
        if self._kernel.full:
            raise Overflow(self._too_many())
        messages = [self._named(message) for message in messages] if self._namespace else messages
        if self._hooks is None:
            self._enter_batch(messages, on_done, queue)
            return
        context = self._hooks.before(messages)
        try:
            self._enter_batch(context.messages, self._hooks.around(context, on_done), queue)
        except ClientError as error:
            self._hooks.after(context, error)
            raise

    def _enter_batch(self, messages: Sequence[Message], on_done: OnSent, queue: QueueChoice | None) -> None:
        topic = messages[0].topic
        items: list[BatchItem] = []
        for message in messages:
            if message.topic != topic:
                raise InvalidMessage(
                    f"all messages of a batch must have the same topic, not {topic!r} and {message.topic!r}"
                )
            if comes_later(message):
                raise InvalidMessage("a batch cannot hold a delayed message: send it by itself")
            check_body(message.body, self.options.max_message_size)
            items.append(self._item(message))
        if topic.startswith(RETRY_PREFIX):
            raise InvalidMessage("batches cannot be sent to retry topics")
        again = any(type(message) is MessageWithId and message.again for message in messages)
        target = self._choose(messages[0], queue, None)
        self._submit_batch(target, items, on_done, queue is not None, again)

    def _item(self, message: Message) -> BatchItem:
        unique_id = message.unique_id if isinstance(message, MessageWithId) else self._ids.next()
        return BatchItem(message.flag, message.body, properties_text(message, unique_id), unique_id)

    def _submit_batch(
        self, target: Target, items: Sequence[BatchItem], on_done: OnSent, pinned: bool, again: bool = False
    ) -> None:
        """Send a batch. `again`: whether a broker may have stored it already."""

        def encode(further: str) -> bytes:
            return encode_batch(
                BatchMessage(item.flag, item.body, (item.properties + further).encode()) for item in items
            )

        body = encode("")
        if len(body) > self.options.max_message_size + MAX_BATCH_OVERHEAD:
            raise InvalidMessage(
                f"the batch has {len(body)} bytes; the limit is {self.options.max_message_size} "
                "(max_message_size): send it in parts"
            )
        send = PendingSend(self._kernel, target, body, "", 0, 0, items[0].unique_id, on_done)
        send.code = SEND_BATCH
        send.batch = encode
        send.pinned = pinned
        if again:
            send.mark_unknown()
        self._kernel.submit(send)

    def _hold(self, held: Accumulator, message: Message, on_done: OnSent, queue: QueueChoice | None) -> bool:
        """Add a message to a batch, if it may wait in one. Returns whether it was added."""
        size = len(message.body)
        if comes_later(message) or not held.has_room(size) or 0 < self.options.compress_over < size:
            return False
        if type(message) is not Message:
            return False  # it has an id of its own, or is a half message
        if message.topic.startswith(RETRY_PREFIX) or message.topic.endswith(REPLY_SUFFIX):
            return False
        if queue is not None:
            queue = self._choose(message, queue, None).queue
        item = self._item(message)
        if not held.has_room(item.size):
            return False
        held.add((message.topic, queue), item, on_done)
        return True

    def _send_held(self, key: Key, items: list[BatchItem], on_done: OnSent) -> None:
        topic, queue = key
        target = self._choose(Message(topic, b""), queue, None)
        self._submit_batch(target, items, on_done, queue is not None)

    # --- topics ---------------------------------------------------------------------------------------

    async def prepare(self, topic: str) -> None:
        """Make sure that the topic's queues are known. Raises TopicNotFound if no broker has the topic or
        creates it."""
        self._core.check_open()
        if not isinstance(topic, str):
            check_topic(topic)
        topic = with_namespace(topic, self._namespace)
        if topic in self._topics:
            return
        check_topic(topic)
        asked = self._asked.get(topic)
        if asked is None:  # one request for all callers that wait for the route
            asked = self._asked[topic] = asyncio.get_running_loop().create_future()
            self._core.spawn(self._ask(topic, asked), f"prepare {topic}")
        await asyncio.shield(asked)

    async def _ask(self, topic: str, asked: asyncio.Future[None]) -> None:
        failure: ClientError | None = ClientClosed(
            "the producer was closed while it looked for the route of the topic"
        )
        try:
            await self._find_queues(topic)
            failure = None
        except ClientError as error:
            failure = error
        finally:
            del self._asked[topic]
            if failure is None:
                asked.set_result(None)
            else:
                asked.set_exception(failure)
                asked.exception()  # marks it as read: all callers may have been cancelled

    async def _find_queues(self, topic: str) -> None:
        try:
            await self._core.refresh(topic)  # _route_changed makes the entry
        except TopicNotFound as missing:
            try:
                default = await self._core.refresh(DEFAULT_TOPIC)
            except TopicNotFound:
                raise missing from None
            route = inherited_route(default, self.options.default_topic_queues)
            if not publish_queues(topic, route):
                raise missing from None
            self._core.watched[topic] = None  # it has a route of its own after the first message
            self._use(topic, route)
        if topic not in self._topics:
            self._use(topic, self._core.routes[topic])
        if topic not in self._topics:
            raise TopicNotFound(f"the topic {topic!r} has no writable queue: check its perm")
        self._core.beat_soon()

    async def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The queues that a message of this topic may be sent to. With `refresh` the NameServers are asked
        again; otherwise the answer may be some seconds old. Raises TopicNotFound."""
        await self.prepare(topic)
        if refresh:
            await self._core.refresh(with_namespace(topic, self._namespace))
        return list(self._topics[with_namespace(topic, self._namespace)].queues)

    def has_route(self, topic: str) -> bool:
        """Whether the NameServers' last answer contained a route of the topic."""
        return with_namespace(topic, self._namespace) in self._core.routes

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a message that was sent with a `delay` or a delivery time (`deliver_at`). Returns its unique
        id.

        `handle` is `SendResult.recall_handle`. The broker does not report whether there was such a message.
        Raises BrokerRefused if the delivery time has come, so that the message was or will be delivered.
        Raises OutcomeUnknown if an attempt got no answer and no later one succeeded. Then the message may
        have been recalled, and calling `recall` again does no harm.
        """
        self._core.check_open()
        return await recall(self._core, self.group, with_namespace(topic, self._namespace), handle)

    async def create_topic(self, topic: str, queues: int = 8, broker_name: str | None = None) -> None:
        """Create a topic in every broker group (or in one) and wait until it can be used."""
        self._core.check_open()
        topic = with_namespace(topic, self._namespace)
        await create_topic(self._core, topic, queues, broker_name)
        self._use(topic, self._core.routes[topic])

    async def delete_topic(self, topic: str, broker_name: str | None = None) -> None:
        """Delete a topic with its messages in every broker group (or in one). A topic that does not exist
        counts as deleted.

        An attempt without an answer is repeated. The first attempt may then arrive very late, when the topic
        has been created again. It does not delete the new topic, with two exceptions: this call found no
        topic in the beginning, or the broker is not one of ours.
        """
        self._core.check_open()
        topic = with_namespace(topic, self._namespace)
        await delete_topic(self._core, topic, broker_name)
        self._topics.pop(topic, None)
        if broker_name is None:
            self._core.routes.pop(topic, None)

    @property
    def _pending_count(self) -> int:
        """Number of messages without an acknowledgement, including those that wait for the route of their
        topic. A batch counts as one once it is sent."""
        held = self._accumulator.messages if self._accumulator is not None else 0
        return self._kernel.pending + self._early_count + held

    @property
    def _resent_count(self) -> int:
        """How many attempts were repeated because the outcome of an earlier one was unknown."""
        return self._kernel.resent

    @property
    def _unanswered_count(self) -> int:
        """How many requests to leaders (`create_topic`, `delete_topic`, `recall`) were sent and got no
        answer. Each of them may be carried out later."""
        return self._core.unanswered

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        if topic in self._topics:
            self._use(topic, route)

    def _use(self, topic: str, route: TopicRoute) -> None:
        queues = publish_queues(topic, route)
        if not queues:
            return  # keep the known queues, which are better than none
        known = self._topics.get(topic)
        old = {target.queue: target for target in known.targets} if known is not None else {}
        targets = [old.get(queue) or self._target(queue) for queue in queues]
        turn = known.turn if known is not None else self._env.random.randrange(len(targets))
        self._topics[topic] = TopicTargets(targets, turn % len(targets), self._kernel.faults)

    def _target(self, queue: MessageQueue) -> Target:
        lane = self._kernel.lane(self._core.group(queue.broker_name))
        return Target(queue, lane, SendHeader.of(self.group, queue, self.options.default_topic_queues))

    def _named(self, message: Message) -> Message:
        """The message with the name of its topic as brokers know it. If that differs, a copy is returned, and
        the application's own message is not changed."""
        topic = with_namespace(message.topic, self._namespace)
        if topic != message.topic:
            message = copy(message)
            message.topic = topic
        return message

    def _complete(self, context: SendContext) -> None:
        """Add to the hooks' context what the producer knows only after a send."""
        if context.result is not None:
            name = context.result.queue.broker_name
            context.broker_address = self._core.group(name).leader or ""
            if self._kernel.regions is not None:
                context.region_id, context.trace_on = self._kernel.regions.get(name, ("", False))

    # --- inside ---------------------------------------------------------------------------------------

    def _choose(self, message: Message, queue: QueueChoice | None, ordering_key: str | None) -> Target:
        topic = message.topic
        known = self._topics.get(topic)
        if known is None:
            self._core.check_open()
            raise TopicNotFound(f"the topic {topic!r} is not prepared: `await producer.prepare(topic)` first")
        if ordering_key is not None:
            check_ordering_key(ordering_key)
        if queue is not None:
            if callable(queue):
                queue = selected(queue, known.queues, message)
            elif not isinstance(queue, MessageQueue):
                raise InvalidMessage(
                    f"queue={queue!r}: give one of queues(topic), or a function that chooses"
                )
            if self._namespace:
                queue = queue._replace(topic=with_namespace(queue.topic, self._namespace))
            for target in known.targets:
                if target.queue == queue:
                    return target
            if queue.topic != topic:
                raise InvalidMessage(f"{queue} is not a queue of the topic of the message, {topic!r}")
            raise InvalidMessage(f"{queue} is not among the queues of its topic: see queues(topic)")
        if ordering_key is not None:
            return known.targets[crc32(ordering_key.encode()) % len(known.targets)]
        usable = known.next_target()
        if usable is not None:
            return usable
        known.turn = (known.turn + 1) % len(known.targets)
        return known.targets[known.turn]

    def _elsewhere(self, send: PendingSend) -> Target | None:
        """Find a queue of another broker group for a message that failed at its own group; None if there is
        none."""
        if send.ordered:
            return None
        queue = send.target.queue
        known = self._topics.get(queue.topic)  # the topic may have been deleted meanwhile
        return None if known is None else known.next_target(avoid=queue.broker_name)

    def _submit(
        self,
        message: Message,
        on_done: OnSent,
        queue: QueueChoice | None,
        ordering_key: str | None,
        compressed: tuple[bytes, int] | None,
    ) -> None:
        if self._hooks is not None:
            context = self._hooks.before([message])
            if context.messages[0] is not message:
                message, compressed = context.messages[0], None
            on_done = self._hooks.around(context, on_done)
            try:
                check_body(message.body, self._max_size)
                self._enter(message, on_done, queue, ordering_key, compressed)
            except ClientError as error:
                self._hooks.after(context, error)
                raise
        else:
            self._enter(message, on_done, queue, ordering_key, compressed)

    def _enter(
        self,
        message: Message,
        on_done: OnSent,
        queue: QueueChoice | None,
        ordering_key: str | None,
        compressed: tuple[bytes, int] | None,
    ) -> None:
        held = self._accumulator
        if held is not None and ordering_key is None and self._hold(held, message, on_done, queue):
            return
        target = None
        if queue is None and ordering_key is None:
            known = self._topics.get(message.topic)
            if known is not None:
                target = known.next_target()
        send = self._pending(
            message, target or self._choose(message, queue, ordering_key), on_done, compressed
        )
        if ordering_key is not None:
            send.pinned = send.ordered = True
        elif queue is not None:
            send.pinned = True
        self._kernel.submit(send)

    def _send_reporting(
        self, message: Message, on_done: OnSent, queue: QueueChoice | None, ordering_key: str | None
    ) -> None:
        try:
            if not self._max_pending:
                raise ClientClosed(NOT_OPEN)
            check_body(message.body, self._max_size)
            self._submit(message, on_done, queue, ordering_key, None)
        except ClientError as error:
            self._kernel.tell(on_done, error, message.topic)
        except Exception as error:
            failure = ClientError(f"the message was not sent: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._kernel.tell(on_done, failure, message.topic)

    async def _send_early(self, topic: str) -> None:
        """Send the messages that were waiting for their topic's route."""
        failure: ClientError | None = ClientClosed(NOT_SENT)
        with self._on_the_way(0):
            try:
                await self.prepare(topic)
                failure = None
            except ClientError as error:
                failure = error
            finally:
                early = self._early.pop(topic)
                self._early_count -= len(early)
                for message, on_done, queue, ordering_key in early:
                    if failure is None:
                        self._send_reporting(message, on_done, queue, ordering_key)
                    else:
                        self._kernel.tell(on_done, failure, message.topic)

    def _pending(
        self, message: Message, target: Target, on_done: OnSent, compressed: tuple[bytes, int] | None
    ) -> PendingSend:
        named = type(message) is MessageWithId
        unique_id = message.unique_id if named else self._ids.next()  # type: ignore[attr-defined]
        properties = properties_text(message, unique_id)
        body, sys_flag = message.body, 0
        if compressed is not None:
            body, sys_flag = compressed
        elif 0 < self.options.compress_over < len(body):
            body, sys_flag = compress(body, self.options.compress_type)
        send = PendingSend(self._kernel, target, body, properties, sys_flag, message.flag, unique_id, on_done)
        if message.topic.endswith(REPLY_SUFFIX):
            send.code = SEND_REPLY
        if named and message.again:  # type: ignore[attr-defined]
            send.mark_unknown()
        return send

    async def _compress_large(self, body: bytes) -> tuple[bytes, int] | None:
        if self.options.compress_over and len(body) > COMPRESS_IN_WORKER_OVER:
            return await self._env.workers.run(
                self._compress_lane, compress, body, self.options.compress_type
            )
        return None


def trace_producer(core: ClientCore) -> AsyncProducer:
    """Make the producer of trace messages for a client that traces (TraceProducerFactory)."""
    client = replace(core.options, namespace="", trace=False, instance_name=None)
    options = ProducerOptions(timeout_s=5.0, max_pending=MAX_TRACES_UNDER_WAY, default_topic_queues=1)
    return AsyncProducer(TRACE_GROUP, core.namesrv, options, client, core.env)


def tracing_of(core: ClientCore) -> Tracing | None:
    """Make the message trace of a client; None if tracing is off."""
    return Tracing(core, trace_producer(core)) if core.options.trace else None


class _NotStarted:
    """Stands in for the send kernel before the start."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ClientClosed(NOT_OPEN)


class _Done:
    """The `on_done` callback of a coroutine that waits for the result of a send."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

    def __call__(self, result: SendResult | ClientError) -> None:
        if self.future.done():  # the caller was cancelled
            return
        if isinstance(result, ClientError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


def _ignore(result: SendResult | ClientError) -> None:
    """The `on_done` callback of a oneway message, whose result is not reported."""
