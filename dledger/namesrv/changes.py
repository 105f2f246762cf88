"""Changes of the route tables, one after the other and each in steps.

A registration may bring 50,000 topics. While they are entered, other requests must be answered. So a change
is a generator, which yields after each step. Between two steps the event loop does other work, and requests
are answered from the present state of the tables. No other change begins before this one has ended; changes
wait in their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection, Handler

MAX_WAITING = 1000
"""Largest number of requests that wait for a change to end; one more is refused with SYSTEM_BUSY."""

Change = Iterator[None]


class Changes:
    """Runs changes. A change that needs only one step, as nearly all do, is executed at once."""

    def __init__(self) -> None:
        self._owner: object = None
        """The owner of the running change; None when no change is running."""
        self._change: Change | None = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    def handler(self, change: Callable[[Connection, Request], Change]) -> Handler:
        """Make a handler of requests that change something. If the change raises an exception in any step,
        the exception becomes the answer."""

        def handle(connection: Connection, request: Request) -> None:
            if self._owner is not None and self._owner is not request and len(self._waiting) >= MAX_WAITING:
                remark = f"{MAX_WAITING} changes wait for a large one: try again later"
                raise RemotingError(ResponseCode.SYSTEM_BUSY, remark)
            self._go_on(request, partial(change, connection, request), partial(connection.again, request))

        return handle

    def event(self, change: Callable[[], Change]) -> None:
        """Run a change that no request asked for, because a connection closed or a broker became silent."""
        owner = object()

        def again() -> None:
            self._go_on(owner, change, again)

        again()

    def _go_on(self, owner: object, begin: Callable[[], Change], again: Callable[[], None]) -> None:
        """Do the next step of a change, or queue the change if it may not begin yet. `again` calls this
        method again."""
        if self._owner is None:
            self._owner = owner
        if self._owner is not owner:
            self._waiting.append((owner, again))
            return
        if self._change is None:
            self._change = begin()
        over = True
        try:
            over = next(self._change, self) is self
        finally:
            if over:
                self._next()
        if not over:
            asyncio.get_running_loop().call_soon(again)

    def _next(self) -> None:
        self._owner = self._change = None
        if self._waiting:
            self._owner, again = self._waiting.popleft()
            asyncio.get_running_loop().call_soon(again)
