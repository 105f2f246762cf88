"""The pop consumer on an event loop. Brokers hand out single messages, and each is acknowledged by itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from dledger.client.broker_group import BrokerGroup
from dledger.client.consuming.consume_trace import traced_hooks
from dledger.client.consuming.consumer_options import PopOptions
from dledger.client.consuming.listener_calls import ListenerCalls
from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.subscription import ALL, Subscription, subscribe
from dledger.client.core import NOT_OPEN, ClientCore
from dledger.client.encoding import received_all
from dledger.client.errors import BrokerRefused, ClientClosed, ClientError, refused_text
from dledger.client.lifecycle import AsyncClient
from dledger.client.listeners import ConsumeStatus, Listener
from dledger.client.message import ReceivedMessage, check_topic
from dledger.client.namespaces import with_namespace
from dledger.client.options import ClientOptions, check_group_of, check_wait, member_of, options_of
from dledger.client.producing.producer import tracing_of
from dledger.formats.pop_handles import Handle, decode_handle, decode_info, real_topic, retry_mark
from dledger.formats.properties import FIRST_POP_TIME, POP_CK
from dledger.formats.record import CorruptRecord
from dledger.remoting.bodies import PERM_READ, ConsumerData
from dledger.remoting.bodies import Subscription as WireSubscription
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadHeader
from dledger.remoting.pop_headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from dledger.runtime import Env

NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
"""Answers to a pop that found no message."""


@dataclass(slots=True)
class _Asked:
    """A pop request to one broker group. `ended_s` is the loop time at which it ended."""

    answer: asyncio.Future[list[ReceivedMessage]]
    ended_s: float = 0.0


class AsyncPopConsumer(AsyncClient):
    """Takes messages of a topic, each for a limited time, and acknowledges them one by one.

    >>> consumer = AsyncPopConsumer("billing", "127.0.0.1:9876", topic="orders")  # doctest: +SKIP
    >>> async with consumer:                                                       # doctest: +SKIP
    ...     for message in await consumer.pop(timeout_s=5.0):
    ...         print(message.body)
    ...         await consumer.ack(message)

    Queues are not divided: any number of consumers of a group may share even a single queue. A message that
    is not acknowledged within `PopOptions.invisible_s` comes again, to any of them, so a message may be
    delivered more than once. Messages have no order, and one that takes long does not delay others.
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
        env: Env | None = None,
    ) -> None:
        where = check_pop_consumer(group, topic, from_where, client)
        common = options_of(ClientOptions, client, "client")
        self.group: str = with_namespace(group, common.namespace)
        self.topic: str = with_namespace(topic, common.namespace)
        self.options: PopOptions = options_of(PopOptions, options, "options")
        core = ClientCore(
            env,
            namesrv,
            common,
            disk_threads=self.options.concurrency,
        )
        super().__init__(core, f"pop consumer {group}")
        self._from_where = where
        self._subscription: Subscription = subscribe(self.topic, expression, self._core.env.wall.now_ms())
        self._core.consumers = self._consumer_data
        self._asked: dict[str, _Asked] = {}
        """Maps the name of a broker group to the pop that is in flight there. A pop may outlive the call that
        began it."""
        self._turn = 0
        self._calls: ListenerCalls | None = None
        """The calls of the listener while `listen` runs, otherwise None."""
        self._listening_ends = asyncio.Event()
        self._listened = asyncio.Event()
        self._tracing = tracing_of(self._core)

    async def _begin(self) -> None:
        if self._tracing is not None:
            await self._tracing.start()

    # -- popping ----------------------------------------------------------------------------------------

    async def pop(self, timeout_s: float = 15.0) -> list[ReceivedMessage]:
        """Return messages that are reserved for this consumer for `PopOptions.invisible_s`. All of them come
        from one broker group, and there are at most `PopOptions.batch_size`. Returns an empty list if no
        message arrived within `timeout_s`.

        Brokers may hold a request longer than this call waits. The next call then returns its messages.
        Concurrent calls share the requests, and each answer goes to one of these calls.

        Raises TopicNotFound, NoNameServer, NoBroker or BrokerRefused, and ClientClosed if the consumer is
        closed meanwhile.
        """
        check_wait(timeout_s)
        until = self._core.now() + timeout_s
        self._forget_old()
        others_took = True
        while others_took:
            self._core.check_open()
            if self._stop.is_set():
                raise ClientClosed(NOT_OPEN)
            route = await self._core.route(self.topic)
            names = sorted({data.brokerName for data in route.queueDatas if data.perm & PERM_READ})
            if not names:
                raise ClientError(f"no broker allows reads of the topic {self.topic!r}: check its perm")
            for name in names:
                if name not in self._asked:
                    self._asked[name] = self._ask_for_messages(name)
            asked = dict(self._asked)  # also of groups that left the route meanwhile
            ended, _ = await asyncio.wait(
                [one.answer for one in asked.values()],
                timeout=max(0.0, until - self._core.now()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._turn += 1
            order = list(asked)[self._turn % len(asked) :] + list(asked)[: self._turn % len(asked)]
            others_took = bool(ended)
            for name in order:
                if asked[name].answer in ended and self._asked.get(name) is asked[name]:
                    others_took = False
                    found = self._asked.pop(name).answer.result()
                    if found:
                        return found
        return []

    def _forget_old(self) -> None:
        """Drop stale answers that no call has taken. These are empty answers, errors (the outage may be
        over), and messages whose invisible time is over (they come again)."""
        for name, one in list(self._asked.items()):
            if one.answer.done() and not one.answer.cancelled():
                error = one.answer.exception()
                if error is not None:
                    self._core.log.info("a pop failed meanwhile", topic=self.topic, error=error)
                old = self._core.now() - one.ended_s >= self.options.invisible_s
                if error is not None or old or not one.answer.result():
                    del self._asked[name]

    async def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message as consumed: it does not come again. If it was delivered again before this
        call, the broker does not report that. Raises NoBroker or BrokerRefused."""
        handle = handle_of(message)
        header = AckMessageHeader(
            self.group, self._real_topic(handle), handle.queue, handle.encode(), _offset(handle, message)
        )
        await self._ask(handle, RequestCode.ACK_MESSAGE, header)

    async def ack_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledge several messages at the same time, as `ack` does."""
        outcomes = await asyncio.gather(*map(self.ack, messages), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def change_invisible(self, message: ReceivedMessage, invisible_s: float) -> ReceivedMessage:
        """Change how long a message stays reserved for this consumer, counted from now. After that time the
        message comes again. Returns the message with a new handle, which has to be used to acknowledge it.

        Raises BrokerRefused, also if the message was delivered again before this call.
        """
        if not invisible_s >= 0:
            raise ClientError(f"invisible_s={invisible_s!r}: give a number of seconds, 0 or more")
        handle = handle_of(message)
        offset = _offset(handle, message)
        header = ChangeInvisibleTimeHeader(
            self.group,
            self._real_topic(handle),
            handle.queue,
            handle.encode(),
            offset,
            round(invisible_s * 1000),
        )
        answer = await self._ask(handle, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        try:
            told = answer.header(ChangeInvisibleTimeResponseHeader)
        except BadHeader as error:
            raise BrokerRefused(f"the response cannot be read: {error}") from error
        start = handle.start if handle.in_order else offset
        new = handle._replace(
            start=start,
            time=told.popTime,
            invisible=told.invisibleTime,
            revive_queue=told.reviveQid,
            offset=offset,
        )
        return replace(message, properties={**message.properties, POP_CK: new.encode()})

    # -- listening --------------------------------------------------------------------------------------

    async def listen(self, listener: Listener) -> None:
        """Call `listener` with each message until the consumer is closed, and acknowledge those that it
        consumed.

        As for a push consumer, a message is consumed when the listener returned None or
        `ConsumeStatus.SUCCESS`. Any other message comes again after one of the delays in
        `PopOptions.retry_s`, which grow with each failure. At most `PopOptions.concurrency` calls run at
        once; a plain function runs in a thread.
        """
        if self._calls is not None:
            raise ClientError("already listening: a pop consumer has only one listener")
        hooks = traced_hooks(
            self._core, self.group, self.options.hooks, self.options.invisible_s, self._tracing
        )
        self._calls = calls = ListenerCalls(self._core, listener, None, hooks=hooks)
        self._listened.clear()
        free = asyncio.Semaphore(self.options.concurrency)
        waiting: deque[ReceivedMessage] = deque()
        try:
            async with asyncio.TaskGroup() as tasks:
                handing = tasks.create_task(
                    self._hand_out(calls, tasks, free, waiting), name=f"pop {self.topic}"
                )
                await self._listening_ends.wait()
                handing.cancel()
            await asyncio.gather(*map(self._give_back, waiting))
        finally:
            self._calls = None
            self._listened.set()
            if not self._stop.is_set():
                self._listening_ends.clear()

    def _stop_listening(self) -> None:
        """Make `listen` end before the next message. Call it on the loop."""
        if self._calls is not None:
            self._calls.stopped = True
        self._listening_ends.set()

    def _stop_soon(self, drain: bool = True) -> None:
        """Request the end: no further message is handed out. Call it on the loop."""
        self._stop_listening()
        super()._stop_soon(drain)

    @property
    def _inside(self) -> bool:
        return self._calls is not None and self._calls.inside

    async def _hand_out(
        self,
        calls: ListenerCalls,
        tasks: asyncio.TaskGroup,
        free: asyncio.Semaphore,
        waiting: deque[ReceivedMessage],
    ) -> None:
        """Hand out messages until cancelled. `waiting`: messages that were popped and not handed out yet."""
        while True:
            waiting.extend(await self._pop_patiently())
            while waiting:
                await free.acquire()
                tasks.create_task(self._consume(calls, waiting.popleft(), free), name="listen")

    async def _give_back(self, message: ReceivedMessage) -> None:
        """Make a message available to other consumers at once, instead of when its invisible time is over."""
        try:
            await self.change_invisible(message, 0.0)
        except ClientError as error:
            self._core.log.info(
                "popped message not given back: it is delivered again when its invisible time ends",
                topic=self.topic,
                error=error,
            )

    async def _pop_patiently(self) -> list[ReceivedMessage]:
        try:
            return await self.pop(self.options.poll_s)
        except ClientError as error:
            self._core.log.warning("pop failed, trying again", topic=self.topic, error=error)
            await asyncio.sleep(self.options.error_pause_s)
            return []

    async def _consume(self, calls: ListenerCalls, message: ReceivedMessage, free: asyncio.Semaphore) -> None:
        try:
            verdicts, fatal = await calls.run([message])
            if fatal is not None:
                raise fatal
            if not verdicts:  # stopped before this message
                await self._give_back(message)
                return
            try:
                if verdicts[0] is ConsumeStatus.SUCCESS:
                    await self.ack(message)
                else:
                    delays = self.options.retry_s
                    again_s = delays[min(message.reconsume_times, len(delays) - 1)]
                    await self.change_invisible(message, again_s)
            except ClientError as error:
                self._core.log.warning(
                    "popped message not acknowledged: it is delivered again", topic=self.topic, error=error
                )
        finally:
            free.release()

    # -- requests ---------------------------------------------------------------------------------------

    def _ask_for_messages(self, name: str) -> _Asked:
        """Begin a pop at a broker group."""
        asked = _Asked(asyncio.get_running_loop().create_future())

        async def ask() -> None:
            outcome: list[ReceivedMessage] | ClientError
            try:
                outcome = await self._pop(self._core.group(name))
            except ClientError as error:
                outcome = error
            asked.ended_s = self._core.now()
            if asked.answer.done():
                return
            if isinstance(outcome, ClientError):
                asked.answer.set_exception(outcome)
            else:
                asked.answer.set_result(outcome)

        self._core.spawn(ask(), f"pop {name}")
        return asked

    async def _pop(self, group: BrokerGroup) -> list[ReceivedMessage]:
        options = self.options
        header = self._question()
        answer = await self._core.invoke_leader(
            group,
            self.topic,
            RequestCode.POP_MESSAGE,
            header,
            timeout_s=options.timeout_s,
            poll_s=options.poll_s,
        )
        if answer.code in NOTHING:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(refused_text(answer.code, answer.remark), answer.code)
        try:
            found = popped(answer, group.name, self._core.options.namespace)
        except (BadHeader, CorruptRecord, ValueError, KeyError) as error:
            raise BrokerRefused(f"the popped messages cannot be read: {error!r}") from error
        wanted = [message for message in found if self._subscription.matches(message.tags)]
        for message in found:
            if not self._subscription.matches(message.tags):  # two tags have the same hash
                await self.ack(message)
        return wanted

    def _question(self) -> PopMessageHeader:
        options = self.options
        return PopMessageHeader(
            consumerGroup=self.group,
            topic=self.topic,
            queueId=-1,
            maxMsgNums=options.batch_size,
            invisibleTime=round(options.invisible_s * 1000),
            pollTime=round(options.poll_s * 1000),
            bornTime=self._core.env.wall.now_ms(),
            initMode=0 if self._from_where is FromWhere.FIRST else 1,
            expType="TAG",
            exp=self._subscription.expression,
        )

    async def _ask(self, handle: Handle, code: int, header: AckMessageHeader) -> Response:
        what = "acknowledgement" if code == RequestCode.ACK_MESSAGE else "change of the invisible time"
        return await self._core.change(self._core.group(handle.broker), self.topic, code, header, what)

    def _real_topic(self, handle: Handle) -> str:
        return real_topic(self.topic, self.group, handle.retry)

    async def _finish(self, drain: bool) -> None:
        if drain and self._calls is not None:  # messages in running calls are acknowledged
            try:
                async with asyncio.timeout(self.options.close_timeout_s):
                    await self._listened.wait()
            except TimeoutError:
                self._core.log.warning(
                    "a listener has not ended: its message is delivered again", topic=self.topic
                )
        self._forget_old()
        popped = [one.answer.result() for one in self._asked.values() if one.answer.done()]
        for asked in self._asked.values():
            asked.answer.cancel()
        self._asked.clear()
        if drain and popped:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.timeout_s):
                    await asyncio.gather(*(self._give_back(one) for found in popped for one in found))
        if self._tracing is not None:
            await self._tracing.close(drain)
        await self._core.unregister(None, self.group)

    def _consumer_data(self) -> list[ConsumerData]:
        wanted = self._subscription
        told = WireSubscription(
            topic=wanted.topic,
            subString=wanted.expression,
            tagsSet=list(wanted.tags),
            codeSet=list(wanted.codes),
            subVersion=wanted.version,
        )
        return [
            ConsumerData(
                groupName=self.group,
                consumeType="CONSUME_POP",
                messageModel="CLUSTERING",
                consumeFromWhere=self._from_where.value,
                subscriptionDataSet=[told],
            )
        ]


def check_pop_consumer(
    group: str, topic: str, from_where: FromWhere | str, client: ClientOptions | None
) -> FromWhere:
    """Check the arguments of a pop consumer. Raises ClientError, which names the bad one."""
    check_group_of(group, client)
    check_topic(topic)
    where = member_of(FromWhere, from_where, "from_where")
    if where is FromWhere.TIMESTAMP:
        raise ClientError("from_where=TIMESTAMP is not possible: a pop consumer begins with FIRST or LAST")
    return where


def popped(answer: Response, broker_name: str, namespace: str = "") -> list[ReceivedMessage]:
    """Decode the messages of an answer, and give each one its handle (MQClientAPIImpl.processPopResponse).
    Raises BadHeader, CorruptRecord, ValueError or KeyError if the answer is malformed."""
    told = answer.header(PopMessageResponseHeader)
    starts = decode_info(told.startOffsetInfo or "")
    counts = decode_info(told.orderCountInfo or "")
    found = []
    for message in received_all(answer.body, broker_name, namespace):
        properties = dict(message.properties)
        if POP_CK not in properties:
            topic, _, queue_id = message.queue
            mark, queue = retry_mark(topic), str(queue_id)
            properties[POP_CK] = Handle(
                int(starts[mark, queue]),
                told.popTime,
                told.invisibleTime,
                told.reviveQid,
                mark,
                broker_name,
                queue_id,
                message.queue_offset,
            ).encode()
            exact, least = (mark, f"qo{queue}%{message.queue_offset}"), (mark, queue)
            times = int(counts.get(exact, counts.get(least, "0")))
            if times > 0:
                message = replace(message, reconsume_times=times)
        properties.setdefault(FIRST_POP_TIME, str(told.popTime))
        found.append(replace(message, properties=properties))
    return found


def handle_of(message: ReceivedMessage) -> Handle:
    """The handle of a popped message; raises ClientError for one that was not popped."""
    text = message.properties.get(POP_CK)
    if text is None:
        raise ClientError("this message was not popped: it has no handle (property POP_CK)")
    try:
        return decode_handle(text)
    except ValueError as error:
        raise ClientError(f"the handle of this message (property POP_CK) is not valid: {error}") from None


def _offset(handle: Handle, message: ReceivedMessage) -> int:
    return message.queue_offset if handle.offset is None else handle.offset
