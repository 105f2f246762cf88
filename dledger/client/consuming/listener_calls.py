"""Calls the listener of the application, in a worker thread or on the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import cast

from dledger.client.callback_failures import Failures, short
from dledger.client.consuming.consume_hooks import ConsumeContext, ConsumeHooks, ConsumeReturnType
from dledger.client.consuming.send_back import message_name
from dledger.client.core import ClientCore
from dledger.client.listeners import (
    CONSUMED,
    BatchListener,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Listener,
    Status,
    Unit,
    messages_of,
)
from dledger.client.message import ReceivedMessage
from dledger.runtime import Lane

MAX_NESTED = 8
"""How many awaitables may be nested in a listener's result. A result with more of them is not accepted."""
WANTED = "None, ConsumeStatus.SUCCESS or ConsumeStatus.RECONSUME_LATER"
ORDERLY_WANTED = "None, or one of ConsumeOrderlyStatus"
_CALLING: ContextVar[object] = ContextVar("calling", default=None)
"""The `ListenerCalls` whose listener is running in this worker thread, or in this task and the tasks that it
started."""


class Raised:
    """The result of a call that raised an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _is_fatal(result: object) -> bool:
    """Whether a call raised an exception that concerns the program and not a message."""
    return isinstance(result, Raised) and isinstance(result.error, KeyboardInterrupt | SystemExit)


class ListenerCalls:
    """Calls the listener, in a thread or on the loop, with one *unit* after the other. A unit is the argument
    of one call: a message or a batch."""

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
        """Set from any thread when no further call may begin."""
        self._call = cast(Callable[[object], object], call)
        self._on_loop = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(type(call), "__call__", None)  # noqa: B004  # looked at, not asked whether it is there
        )
        self._core = core
        self._failures = Failures(core.log)

    @property
    def inside(self) -> bool:
        """Whether the caller is itself running inside the listener. Then it must not wait for the listener to
        end, because that would last for ever."""
        return _CALLING.get() is self

    async def run(
        self, units: Sequence[Unit], results: list[object] | None = None
    ) -> tuple[list[Status], BaseException | None]:
        """Call the listener with each unit, and return the status of each. There are fewer statuses than
        units if the calls were stopped during the run.

        `results` grows during the run, so that another task can see how far the run is (`place`). Meanwhile,
        that task may remove units from the end of `units`, but not the unit at this place.

        Any exception of the listener is logged and means RECONSUME_LATER. Only SystemExit and
        KeyboardInterrupt do not concern a message: they end the run, and are returned as the second value.
        """
        results = [] if results is None else results
        while len(results) < len(units) and not self.stopped:
            began = len(results)
            job = self._on_this_loop(units, results) if self._on_loop else self._in_thread(units, results)
            # The job runs in a task of its own: a listener that cancels its task must not cancel this worker.
            (outcome,) = await asyncio.gather(job, return_exceptions=True)
            if isinstance(outcome, BaseException):
                if len(results) > began and inspect.isawaitable(results[-1]):
                    results.pop()
                if len(results) < len(units):
                    results.append(Raised(outcome))
            if results and _is_fatal(results[-1]):
                self.stopped = True
        verdicts: list[Status] = []
        for unit, result in zip(units, results, strict=False):
            if isinstance(result, Raised) and _is_fatal(result):
                return verdicts, result.error
            verdicts.append(self.verdict(unit, result))
        return verdicts, None

    def verdict(self, unit: Unit, result: object) -> Status:
        """The status that the result of a call stands for. A result of a wrong type, or an exception, is
        logged and means RECONSUME_LATER."""
        if result is None:
            return ConsumeStatus.SUCCESS
        kinds = ConsumeStatus | ConsumeOrderlyStatus if self._orderly else ConsumeStatus
        if isinstance(result, kinds):
            return result
        first = unit if isinstance(unit, ReceivedMessage) else unit[0]
        if isinstance(result, Raised):
            self._failures.log_raised("listener failed", result.error, **message_name(first))
        else:
            self._failures.log_returned(
                "listener returned a value that is not a ConsumeStatus",
                result,
                wanted=ORDERLY_WANTED if self._orderly else WANTED,
                listener=getattr(self._call, "__qualname__", None) or short(self._call),
                **message_name(first),
            )
        return ConsumeStatus.RECONSUME_LATER

    async def _in_thread(self, units: Sequence[Unit], results: list[object]) -> None:
        """Call the listener in a worker thread with the units that have no result yet. It returns at the end,
        after a stop, or after the first result that is not a plain ConsumeStatus or None."""
        context = await self._core.env.workers.run(Lane.DISK, self._call_in_a_row, units, results)
        if results and inspect.isawaitable(results[-1]):
            token = _CALLING.set(self)
            try:
                results[-1] = await _settled(results[-1])
                self._after(context, results[-1])
            finally:
                _CALLING.reset(token)

    def _before(self, unit: Unit) -> ConsumeContext | None:
        return None if self._hooks is None else self._hooks.before(messages_of(unit))

    def _after(self, context: ConsumeContext | None, result: object) -> None:
        if self._hooks is None or context is None:
            return
        if isinstance(result, Raised):
            self._hooks.after(context, ConsumeReturnType.EXCEPTION, None, result.error)
        else:
            consumed = result is None or any(result is status for status in CONSUMED)
            ended = ConsumeReturnType.SUCCESS if consumed else ConsumeReturnType.FAILED
            self._hooks.after(context, ended, result, None)

    def _call_in_a_row(self, units: Sequence[Unit], results: list[object]) -> ConsumeContext | None:
        """Call the listener with one unit after the other. If the last result has to be awaited, returns the
        context of that call."""
        token = _CALLING.set(self)
        try:
            for unit in units[len(results) :]:
                if self.stopped or len(results) >= len(units):
                    return None
                context = self._before(unit)
                try:
                    result = self._call(unit)
                except BaseException as error:
                    result = Raised(error)
                awaitable = result is not None and inspect.isawaitable(result)
                if not awaitable:
                    self._after(context, result)
                results.append(result)
                if result is not None and type(result) is not ConsumeStatus:
                    return context if awaitable else None  # to be awaited, or to be checked
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
                result = Raised(error)
            result = await _settled(result)
            self._after(context, result)
            results.append(result)
            if _is_fatal(result):
                return


async def _settled(result: object) -> object:
    """Await the result until it is a plain value, and return that value; `Raised` if awaiting it raised an
    exception."""
    try:
        for _ in range(MAX_NESTED):
            if not inspect.isawaitable(result):
                break
            result = await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the listener did not raise it: this task is being cancelled
        return Raised(error)
    except BaseException as error:
        return Raised(error)
    return result


def place(results: Sequence[object]) -> int:
    """Number of the unit that a run is working on, given the results so far."""
    return len(results) - bool(results and inspect.isawaitable(results[-1]))
