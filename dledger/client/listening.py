"""Handing messages to the application's listener, and what happens when it fails."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Protocol, cast

from msgspec.structs import replace

from dledger.client.consume_statistics import ConsumeStatistics
from dledger.client.core import ClientCore
from dledger.client.failures import Failures, short
from dledger.client.giving_back import GivingBack, message_name
from dledger.client.hooks import ConsumeContext, ConsumeHook, ConsumeHooks, ConsumeReturnType
from dledger.client.message import ReceivedMessage
from dledger.client.options import ConsumerOptions
from dledger.client.process_queue import ProcessQueue
from dledger.client.trace import TraceConsumeHook, Tracing
from dledger.runtime import Lane

MAX_CHUNK = 32
"""Messages that one worker takes at once when many wait."""
WATCHED_TIMES = 8
"""So often within `consume_timeout_s` running calls are looked at."""
RETRY_LEVEL = 3
"""Delay level (10 s) of messages whose call took too long, as in RocketMQ."""
MAX_NESTED = 8
"""Awaitables inside one another that a listener's result may be: more is no result."""


class ConsumeStatus(Enum):
    """What a listener may return. Returning nothing means SUCCESS, raising means RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What a listener that works in order may return. Returning nothing means SUCCESS, raising means
    SUSPEND_CURRENT_QUEUE_A_MOMENT."""

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    """Everything since the last COMMIT comes again after `ConsumerOptions.suspend_s`."""
    COMMIT = "COMMIT"
    """This and everything since the last COMMIT is consumed; it counts with `auto_commit=False`."""
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """The same message comes again after `ConsumerOptions.suspend_s`, and nothing of its queue before."""


Status = ConsumeStatus | ConsumeOrderlyStatus
Result = Status | None
Listener = Callable[[ReceivedMessage], Result | Awaitable[Result]]
"""Called for every message: a coroutine function on the loop, anything else in a worker thread. What it
returns is awaited (on the loop) where it can be. Only None and SUCCESS mean that the message is consumed."""
BatchListener = Callable[[Sequence[ReceivedMessage]], Result | Awaitable[Result]]
"""The same for up to `ConsumerOptions.batch_size` messages of one queue."""
Unit = ReceivedMessage | Sequence[ReceivedMessage]
"""What a listener is called with once."""

CONSUMED = (ConsumeStatus.SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
"""Results that mean that a message is."""
WANTED = "None, ConsumeStatus.SUCCESS or ConsumeStatus.RECONSUME_LATER"
ORDERLY_WANTED = "None, or one of ConsumeOrderlyStatus"

_RESULTS = {
    "CONSUME_SUCCESS": "CR_SUCCESS",
    "SUCCESS": "CR_SUCCESS",
    "COMMIT": "CR_COMMIT",
    "ROLLBACK": "CR_ROLLBACK",
}
"""What a listener returned, as CMResult; anything else is CR_LATER."""
_CALLING: ContextVar[object] = ContextVar("calling", default=None)
"""Whose listener runs here: in this worker thread, or in this task and those that it began."""


class Assigned(Protocol):
    """A queue of ours, with what waits of it."""

    process: ProcessQueue

    def consumed(self, messages: Sequence[ReceivedMessage]) -> None:
        """These are done with."""


class _Raised:
    """A call that ended with an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _is_fatal(result: object) -> bool:
    """Whether a call ended with what is not about a message, but about the program."""
    return isinstance(result, _Raised) and isinstance(result.error, KeyboardInterrupt | SystemExit)


class ListenerCalls:
    """Calls the listener with one message or one batch after the other, in a thread or on the loop."""

    def __init__(
        self,
        core: ClientCore,
        listener: Listener | None,
        batch_listener: BatchListener | None,
        orderly: bool = False,
        hooks: ConsumeHooks | None = None,
    ) -> None:
        self._hooks = hooks
        call = batch_listener if listener is None else listener
        self._orderly = orderly
        self.batches: bool = listener is None
        self.stopped: bool = False
        """Set (from any thread) when no further call may begin."""
        self._call = cast(Callable[[object], object], call)
        self._on_loop = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(type(call), "__call__", None)  # noqa: B004  # looked at, not asked whether it is there
        )
        self._core = core
        self._failures = Failures(core.log)

    @property
    def inside(self) -> bool:
        """Whether the caller is the listener itself: to wait here for its end would be for ever."""
        return _CALLING.get() is self

    async def run(
        self, units: Sequence[Unit], results: list[object] | None = None
    ) -> tuple[list[Status], BaseException | None]:
        """What became of each; fewer than there are units when it was stopped in between.

        `results` grows meanwhile, for whoever looks at how far it is (`place`). Units behind that place may
        be taken away from the end of `units`.

        What a listener raises, of any class, is logged and means RECONSUME_LATER. But SystemExit and
        KeyboardInterrupt are not about a message: they end the run, and are what is returned beside the
        results.
        """
        results = [] if results is None else results
        while len(results) < len(units) and not self.stopped:
            began = len(results)
            job = self._on_this_loop(units, results) if self._on_loop else self._in_thread(units, results)
            # A task of its own: what a listener does to its task is not done to this worker.
            (outcome,) = await asyncio.gather(job, return_exceptions=True)
            if isinstance(outcome, BaseException):
                if len(results) > began and inspect.isawaitable(results[-1]):
                    results.pop()
                if len(results) < len(units):
                    results.append(_Raised(outcome))
            if results and _is_fatal(results[-1]):
                self.stopped = True
        verdicts: list[Status] = []
        for unit, result in zip(units, results, strict=False):
            if isinstance(result, _Raised) and _is_fatal(result):
                return verdicts, result.error
            verdicts.append(self.verdict(unit, result))
        return verdicts, None

    def verdict(self, unit: Unit, result: object) -> Status:
        """What the result of a call means; what is no status is logged."""
        if result is None:
            return ConsumeStatus.SUCCESS
        kinds = ConsumeStatus | ConsumeOrderlyStatus if self._orderly else ConsumeStatus
        if isinstance(result, kinds):
            return result
        first = unit if isinstance(unit, ReceivedMessage) else unit[0]
        if isinstance(result, _Raised):
            self._failures.tell("listener failed", result.error, **message_name(first))
        else:
            self._failures.tell_returned(
                "listener returned what is no ConsumeStatus",
                result,
                wanted=ORDERLY_WANTED if self._orderly else WANTED,
                listener=getattr(self._call, "__qualname__", None) or short(self._call),
                **message_name(first),
            )
        return ConsumeStatus.RECONSUME_LATER

    async def _in_thread(self, units: Sequence[Unit], results: list[object]) -> None:
        """Go on behind the results so far, until the end, a stop, or the first unusual result."""
        context = await self._core.env.workers.run(Lane.DISK, self._call_in_a_row, units, results)
        if results and inspect.isawaitable(results[-1]):
            token = _CALLING.set(self)
            try:
                results[-1] = await _settled(results[-1])
                self._after(context, results[-1])
            finally:
                _CALLING.reset(token)

    def _before(self, unit: Unit) -> ConsumeContext | None:
        return None if self._hooks is None else self._hooks.before(_members(unit))

    def _after(self, context: ConsumeContext | None, result: object) -> None:
        if self._hooks is None or context is None:
            return
        if isinstance(result, _Raised):
            self._hooks.after(context, ConsumeReturnType.EXCEPTION, None, result.error)
        else:
            consumed = result is None or any(result is status for status in CONSUMED)
            ended = ConsumeReturnType.SUCCESS if consumed else ConsumeReturnType.FAILED
            self._hooks.after(context, ended, result, None)

    def _call_in_a_row(self, units: Sequence[Unit], results: list[object]) -> ConsumeContext | None:
        """The context of the last call where its result is still to be awaited."""
        token = _CALLING.set(self)
        try:
            for unit in units[len(results) :]:
                if self.stopped or len(results) >= len(units):
                    return None
                context = self._before(unit)
                try:
                    result = self._call(unit)
                except BaseException as error:
                    result = _Raised(error)
                awaitable = result is not None and inspect.isawaitable(result)
                if not awaitable:
                    self._after(context, result)
                results.append(result)
                if result is not None and type(result) is not ConsumeStatus:
                    return context if awaitable else None  # to be awaited, or looked at
        finally:
            _CALLING.reset(token)
        return None

    async def _on_this_loop(self, units: Sequence[Unit], results: list[object]) -> None:
        _CALLING.set(self)
        for unit in units[len(results) :]:
            if self.stopped or len(results) >= len(units):
                return
            context = self._before(unit)
            try:
                result = self._call(unit)
            except BaseException as error:
                result = _Raised(error)
            result = await _settled(result)
            self._after(context, result)
            results.append(result)
            if _is_fatal(result):
                return


async def _settled(result: object) -> object:
    """What a result is in the end; `_Raised` when awaiting it raised anything."""
    try:
        for _ in range(MAX_NESTED):
            if not inspect.isawaitable(result):
                break
            result = await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # not the listener's own affair: somebody cancels this task
        return _Raised(error)
    except BaseException as error:
        return _Raised(error)
    return result


def consume_hooks(
    core: ClientCore, group: str, hooks: Sequence[ConsumeHook], timeout_s: float, tracing: Tracing | None
) -> ConsumeHooks | None:
    """The hooks of a consumer, None without any: a call longer than `timeout_s` counts as TIME_OUT."""
    if tracing is not None:
        hooks = (*hooks, TraceConsumeHook(core, tracing.dispatcher))
    if not hooks:
        return None
    return ConsumeHooks(group, hooks, Failures(core.log), core.env.wall.now_ms, timeout_s)


def place(results: Sequence[object]) -> int:
    """Number of the unit that a run is at."""
    return len(results) - bool(results and inspect.isawaitable(results[-1]))


class _Run:
    """A piece of work of one worker, watched for calls that take too long."""

    def __init__(self, assigned: Assigned, units: list[Unit], now: float) -> None:
        self.assigned = assigned
        self.units = units
        self.results: list[object] = []
        self.at = 0
        self.settled = 0
        """So many units from the first are done with: not to wait for a later one that takes too long."""
        self.since = now
        """Loop time at which the unit `at` was first seen."""
        self.given_back: set[int] = set()
        """Queue offsets of messages whose call took too long."""


class Workers:
    """Between pulled messages and the listener of one consumer: what both ways of consuming share."""

    def __init__(
        self,
        core: ClientCore,
        calls: ListenerCalls,
        options: ConsumerOptions,
        consumer_group: str,
        broadcasting: bool,
        on_fatal: Callable[[BaseException], None],
        statistics: ConsumeStatistics,
    ) -> None:
        """`on_fatal` is told what a listener raised that ends the consumer."""
        self._statistics = statistics
        self._core = core
        self._calls = calls
        self._on_fatal = on_fatal
        self._options = options
        self._group = consumer_group
        self._broadcasting = broadcasting
        self._running = 0
        self._available = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._giving_back = GivingBack(core, consumer_group, options)

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._options.concurrency):
            self._core.spawn(self._work(), f"consume {self._group} {number}")

    @property
    def inside(self) -> bool:
        """Whether the caller is the listener itself."""
        return self._calls.inside

    def stop_soon(self) -> None:
        """Start no further call. May be called from any thread."""
        self._calls.stopped = True

    async def stop(self) -> None:
        """Start no further call, and wait for the running ones (up to `close_timeout_s`)."""
        self.stop_soon()
        self.clear()
        try:
            async with asyncio.timeout(self._options.close_timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._core.log.warning("listeners still running at close", group=self._group, calls=self._running)

    async def consume_now(self, message: ReceivedMessage) -> tuple[str, str | None]:
        """Call the listener with a message that somebody sent us: CMResult, and what it raised. Nothing else
        becomes of it."""
        results: list[object] = []
        unit: Unit = [message] if self._calls.batches else message
        verdicts, fatal = await self._calls.run([unit], results)
        if fatal is not None:
            self.stop_soon()
            self._on_fatal(fatal)
        if results and isinstance(results[-1], _Raised):
            return "CR_THROW_EXCEPTION", repr(results[-1].error)
        return (_RESULTS.get(verdicts[0].value, "CR_LATER"), None) if verdicts else ("CR_LATER", "stopped")

    def put(self, assigned: Assigned, messages: Sequence[ReceivedMessage]) -> None:
        """Have messages of one queue consumed."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget what waits."""
        raise NotImplementedError

    async def _work_on_next(self) -> bool:
        """Do the next piece of work; False when there is none."""
        raise NotImplementedError

    async def _work(self) -> None:
        while True:
            await self._available.wait()
            self._running += 1
            self._idle.clear()
            try:
                if not await self._work_on_next():
                    self._available.clear()
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()


class Dispatcher(Workers):
    """Calls the listener with messages as they come, of any queue, many at once."""

    def __init__(
        self,
        core: ClientCore,
        calls: ListenerCalls,
        options: ConsumerOptions,
        consumer_group: str,
        broadcasting: bool,
        on_fatal: Callable[[BaseException], None],
        statistics: ConsumeStatistics,
    ) -> None:
        super().__init__(core, calls, options, consumer_group, broadcasting, on_fatal, statistics)
        self._backlog: deque[tuple[Assigned, deque[ReceivedMessage]]] = deque()
        self._waiting = 0
        self._runs: dict[_Run, None] = {}

    def start(self) -> None:
        """See `Workers`."""
        super().start()
        self._core.spawn(self._watch(), f"watch {self._group}")

    def put(self, assigned: Assigned, messages: Sequence[ReceivedMessage]) -> None:
        """See `Workers`."""
        if messages and not self._calls.stopped:
            self._backlog.append((assigned, deque(messages)))
            self._waiting += len(messages)
            self._available.set()

    def clear(self) -> None:
        """See `Workers`."""
        self._backlog.clear()

    async def _work_on_next(self) -> bool:
        taken = self._take()
        if taken is None:
            return False
        await self._consume(*taken)
        return True

    def _take(self) -> tuple[Assigned, list[ReceivedMessage]] | None:
        """The next piece of work: small while little waits, so that all workers get some."""
        while self._backlog and not self._calls.stopped:
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
        units: list[Unit] = list(messages)
        if self._calls.batches:
            size = self._options.batch_size
            units = [messages[at : at + size] for at in range(0, len(messages), size)]
        run = _Run(assigned, units, self._core.now())
        self._runs[run] = None
        began = self._core.now()
        try:
            verdicts, fatal = await self._calls.run(units, run.results)
        finally:
            del self._runs[run]
        if fatal is not None:
            self.stop_soon()
            self._on_fatal(fatal)
        done, failed = _parted(run, units, verdicts)
        self._statistics.called(
            assigned.process.queue.topic, len(done), len(failed), len(verdicts), self._core.now() - began
        )
        if run.settled:
            done, failed = _parted(run, units[run.settled :], verdicts[run.settled :])
        await self._settle(assigned, done, failed)

    async def _settle(
        self, assigned: Assigned, done: list[ReceivedMessage], failed: list[ReceivedMessage]
    ) -> None:
        if assigned.process.dropped:
            return  # the queue's new owner consumes them again
        for message in failed:
            if self._broadcasting:
                self._core.log.warning("message dropped: broadcasting has no retry", **message_name(message))
                done.append(message)
            elif await self._giving_back.give(message):
                done.append(message)
            else:
                self._retry_here(assigned, message)
        assigned.consumed(done)

    async def _watch(self) -> None:
        """Until cancelled: look for calls that take too long."""
        limit_s = self._options.consume_timeout_s
        while True:
            await asyncio.sleep(limit_s / WATCHED_TIMES)
            now = self._core.now()
            for run in list(self._runs):
                at = place(run.results)
                if at != run.at:
                    run.at, run.since = at, now
                elif now - run.since >= limit_s and at < len(run.units):
                    await self._too_long(run, at)

    async def _too_long(self, run: _Run, at: int) -> None:
        messages = [one for one in _members(run.units[at]) if one.queue_offset not in run.given_back]
        if not messages:
            return
        limit_s = self._options.consume_timeout_s
        self._core.log.warning("listener takes too long", limit_s=limit_s, **message_name(messages[0]))
        behind = [message for unit in run.units[at + 1 :] for message in _members(unit)]
        del run.units[at + 1 :]  # somebody else is free for them
        self.put(run.assigned, behind)
        await self._take_back(run, messages)
        if run in self._runs:
            # Nor must the committed offset wait for this call in front of those before it.
            units, results = run.units[run.settled : at], run.results[run.settled : at]
            run.settled = at
            verdicts = [self._calls.verdict(*one) for one in zip(units, results, strict=True)]
            await self._settle(run.assigned, *_parted(run, units, verdicts))

    async def _take_back(self, run: _Run, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            if self._broadcasting or run.assigned.process.dropped:
                return
            run.given_back.add(
                message.queue_offset
            )  # first: the call may end meanwhile, and would do it again
            if await self._giving_back.give(message, RETRY_LEVEL):
                run.assigned.consumed([message])
                continue
            run.given_back.discard(message.queue_offset)  # what the call says counts, or the next look tries
            if run not in self._runs:
                self._retry_here(run.assigned, message)  # it has said something meanwhile, and was not heard

    def _retry_here(self, assigned: Assigned, message: ReceivedMessage) -> None:
        """Call the listener again after a pause; the committed offset stays in front of the message."""
        options = self._options
        pause = options.send_back_retry_s
        if not self._giving_back.supported(message):
            tries = min(message.reconsume_times, 16)
            pause = min(options.local_retry_first_s * 2**tries, options.local_retry_longest_s)
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        asyncio.get_running_loop().call_later(pause, self.put, assigned, [again])


def _parted(
    run: _Run, units: Sequence[Unit], verdicts: Sequence[Status]
) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
    """Messages that are consumed, and those that failed; without those that were given back meanwhile."""
    done: list[ReceivedMessage] = []
    failed: list[ReceivedMessage] = []
    # Those behind a stop have no verdict: they stay in process, in front of the committed offset.
    for unit, status in zip(units, verdicts, strict=False):
        members = [one for one in _members(unit) if one.queue_offset not in run.given_back]
        (done if status is ConsumeStatus.SUCCESS else failed).extend(members)
    return done, failed


def _members(unit: Unit) -> list[ReceivedMessage]:
    return [unit] if isinstance(unit, ReceivedMessage) else list(unit)
