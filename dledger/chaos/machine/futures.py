"""Futures, tasks and callbacks of a simulated loop.

Tasks and futures hash by number instead of by address. With the usual hash, the order in which `TaskGroup`
aborts its children, or `asyncio.wait` goes through its futures, would differ from run to run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dledger.chaos.machine.loop import SimLoop


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is a number. It gets the number from the counter of its loop when the hash is first
    used."""

    __slots__ = ("_number",)
    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            self._number = self.get_loop().next_number()  # type: ignore[attr-defined]
            return self._number


class SimTask(asyncio.Task[Any]):
    """A task whose hash is a number. It gets the number from the counter of its loop when the hash is first
    used."""

    __slots__ = ("_number",)
    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            self._number = self.get_loop().next_number()  # type: ignore[attr-defined]
            return self._number


class SimHandle(asyncio.Handle):
    """A callback of the loop. This is the standard class without its debug look-ups, which would cost as much
    time as the callback itself."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: Any, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the callback: it will not run."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


new_handle: Callable[[type[SimHandle]], Any] = SimHandle.__new__
"""Makes a `SimHandle` whose fields the caller fills in. Calling the constructor would take a third of the
time of `call_soon`."""


class SimTimer(asyncio.TimerHandle):
    """A callback at a time of the machine's clock, without debug look-ups, like `SimHandle`."""

    __slots__ = ()
    _cancelled: bool
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        """Cancel the timer: its callback will not run."""
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            self._loop._timer_handle_cancelled(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._when}>"
