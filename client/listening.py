"""Handing messages to the application's listener, and what happens when it fails."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import Enum
from traceback import extract_tb
from typing import Protocol, cast

from dledger.client.core import ClientCore
from dledger.client.errors import ClientError
from dledger.client.message import ReceivedMessage
from dledger.client.options import ConsumerOptions
from dledger.client.process_queue import ProcessQueue
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import ConsumerSendMsgBackHeader
from dledger.runtime import Lane

MAX_CHUNK = 32
"""Messages that one worker takes at once when many wait."""


class ConsumeStatus(Enum):
    """What a listener may return. Returning nothing means SUCCESS, raising means RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


Result = ConsumeStatus | None
Listener = Callable[[ReceivedMessage], Result | Awaitable[Result]]
"""Called for every message: a function (in a worker thread) or a coroutine function (on the loop)."""
BatchListener = Callable[[Sequence[ReceivedMessage]], Result | Awaitable[Result]]
"""The same for up to `ConsumerOptions.batch_size` messages of one queue."""


class Assigned(Protocol):
    """A queue of ours, with what waits of it."""

    process: ProcessQueue

    def consumed(self, messages: Sequence[ReceivedMessage]) -> None:
        """These are done with."""


class ListenerCalls:
    """Calls the listener with one message or one batch after the other, in a thread or on the loop."""

    def __init__(
        self, core: ClientCore, listener: Listener | None, batch_listener: BatchListener | None
    ) -> None:
        if (listener is None) == (batch_listener is None):
            raise ClientError("give either listener= or batch_listener=")
        call = listener or batch_listener
        self.batches = listener is None
        self._call = cast(Callable[[object], object], call)
        self._on_loop = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            vars(type(call)).get("__call__")
        )
        self._core = core

    async def run(self, units: Sequence[ReceivedMessage | Sequence[ReceivedMessage]]) -> list[bool]:
        """Whether each was consumed. What the listener raises is logged and means no."""
        results: list[object] = []
        while len(results) < len(units):
            outcome = await self._attempt(units, results)
            if isinstance(outcome, Exception):
                unit = units[len(results)]
                first = unit if isinstance(unit, ReceivedMessage) else unit[0]
                self._core.log.warning(
                    "listener failed", error=repr(outcome), at=_raised_at(outcome), **_name(first)
                )
                results.append(ConsumeStatus.RECONSUME_LATER)
            elif outcome is not None:
                raise outcome
        return [result is not ConsumeStatus.RECONSUME_LATER for result in results]

    async def _attempt(
        self, units: Sequence[ReceivedMessage | Sequence[ReceivedMessage]], results: list[object]
    ) -> BaseException | None:
        """Go on behind the results so far, until the end or the first exception."""
        call = self._call
        if self._on_loop:
            job: Awaitable[None] = self._on_this_loop(units, results)
        else:

            def in_thread() -> None:
                for unit in units[len(results) :]:
                    results.append(call(unit))

            job = self._core.env.workers.run(Lane.DISK, in_thread)
        (outcome,) = await asyncio.gather(job, return_exceptions=True)
        return outcome

    async def _on_this_loop(
        self, units: Sequence[ReceivedMessage | Sequence[ReceivedMessage]], results: list[object]
    ) -> None:
        for unit in units[len(results) :]:
            results.append(await cast(Awaitable[object], self._call(unit)))


class Dispatcher:
    """Workers between pulled messages and the listener of one consumer."""

    def __init__(
        self,
        core: ClientCore,
        calls: ListenerCalls,
        options: ConsumerOptions,
        consumer_group: str,
        broadcasting: bool,
    ) -> None:
        self._core = core
        self._calls = calls
        self._options = options
        self._group = consumer_group
        self._broadcasting = broadcasting
        self._backlog: deque[tuple[Assigned, deque[ReceivedMessage]]] = deque()
        self._waiting = 0
        self._running = 0
        self._available = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False
        self._unsupported: dict[str, None] = {}  # brokers that do not take messages back

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._options.concurrency):
            self._core.spawn(self._work(), f"consume {self._group} {number}")

    async def stop(self) -> None:
        """Start no further call, and wait for the running ones (up to `close_timeout_s`)."""
        self._stopped = True
        self._backlog.clear()
        try:
            async with asyncio.timeout(self._options.close_timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._core.log.warning("listeners still running at close", group=self._group, calls=self._running)

    def put(self, assigned: Assigned, messages: Sequence[ReceivedMessage]) -> None:
        """Have messages of one queue consumed."""
        if messages and not self._stopped:
            self._backlog.append((assigned, deque(messages)))
            self._waiting += len(messages)
            self._available.set()

    async def _work(self) -> None:
        while True:
            await self._available.wait()
            taken = self._take()
            if taken is None:
                self._available.clear()
                continue
            self._running += 1
            self._idle.clear()
            try:
                await self._consume(*taken)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

    def _take(self) -> tuple[Assigned, list[ReceivedMessage]] | None:
        """The next piece of work: small while little waits, so that all workers get some."""
        while self._backlog:
            assigned, messages = self._backlog[0]
            if assigned.process.dropped:
                self._waiting -= len(messages)
                self._backlog.popleft()
                continue
            count = min(MAX_CHUNK, max(1, self._waiting // self._options.concurrency))
            if self._calls.batches:
                count = max(count, self._options.batch_size)
            chunk = [messages.popleft() for _ in range(min(count, len(messages)))]
            self._waiting -= len(chunk)
            if not messages:
                self._backlog.popleft()
            return assigned, chunk
        self._waiting = 0
        return None

    async def _consume(self, assigned: Assigned, messages: list[ReceivedMessage]) -> None:
        units: Sequence[ReceivedMessage | Sequence[ReceivedMessage]] = messages
        if self._calls.batches:
            size = self._options.batch_size
            units = [messages[at : at + size] for at in range(0, len(messages), size)]
        results = await self._calls.run(units)
        done: list[ReceivedMessage] = []
        failed: list[ReceivedMessage] = []
        for unit, good in zip(units, results, strict=True):
            members = [unit] if isinstance(unit, ReceivedMessage) else list(unit)
            (done if good else failed).extend(members)
        if assigned.process.dropped:
            return  # the queue's new owner consumes them again
        for message in failed:
            if self._broadcasting:
                self._core.log.warning("message dropped: broadcasting has no retry", **_name(message))
                done.append(message)
            elif await self._give_back(message):
                done.append(message)
            else:
                self._retry_here(assigned, message)
        assigned.consumed(done)

    async def _give_back(self, message: ReceivedMessage) -> bool:
        """Ask the broker to deliver it again later (36). False when it stays with us."""
        broker = message.queue.broker_name
        if broker in self._unsupported:
            return False
        header = ConsumerSendMsgBackHeader(
            offset=message.physical_offset,
            group=self._group,
            delayLevel=0,
            originMsgId=message.offset_message_id,
            originTopic=message.topic,
            maxReconsumeTimes=self._options.max_reconsume_times,
        )
        try:
            answer = await self._core.invoke_leader(
                self._core.group(broker), message.queue.topic, RequestCode.CONSUMER_SEND_MSG_BACK, header
            )
        except ClientError as error:
            self._core.log.warning("message not given back", error=error, **_name(message))
            return False
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._core.log.info("broker takes no messages back: retrying here", broker=broker)
            self._unsupported[broker] = None
        elif answer.code != ResponseCode.SUCCESS:
            self._core.log.warning("message not given back", code=answer.code, remark=answer.remark)
        return answer.code == ResponseCode.SUCCESS

    def _retry_here(self, assigned: Assigned, message: ReceivedMessage) -> None:
        """Call the listener again after a pause; the committed offset stays in front of the message."""
        options = self._options
        pause = options.send_back_retry_s
        if message.queue.broker_name in self._unsupported:
            tries = min(message.reconsume_times, 16)
            pause = min(options.local_retry_first_s * 2**tries, options.local_retry_longest_s)
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        asyncio.get_running_loop().call_later(pause, self.put, assigned, [again])


def _raised_at(error: BaseException) -> str:
    """Where to look: the innermost line, as the log has one line an event."""
    for frame in reversed(extract_tb(error.__traceback__)):
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "an unknown place"


def _name(message: ReceivedMessage) -> dict[str, object]:
    """Which message, for the log; never its content."""
    return {"message_id": message.message_id, "queue": message.queue, "offset": message.queue_offset}
