"""Changes of the route tables, one after the other and each in pieces.

A registration may bring 50,000 topics, and while these are entered others are to be answered. So a change is
a generator, which stops where it has done a piece; between two pieces the loop goes on, and questions are
answered from what there is by then. No other change begins before it is over: they wait in their order.
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
"""Requests that wait for a change to be over; one more is refused with SYSTEM_BUSY."""

Change = Iterator[None]


class Changes:
    """Runs them. A change that is done with its first piece, as nearly all are, is done at once."""

    def __init__(self) -> None:
        self._owner: object = None
        """Whose turn it is; None: nobody's."""
        self._change: Change | None = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    def handler(self, change: Callable[[Connection, Request], Change]) -> Handler:
        """A handler of requests that change something. What the change raises, in whichever piece, becomes
        the answer."""

        def handle(connection: Connection, request: Request) -> None:
            if self._owner is not None and self._owner is not request and len(self._waiting) >= MAX_WAITING:
                remark = f"{MAX_WAITING} changes wait for a large one: try again"
                raise RemotingError(ResponseCode.SYSTEM_BUSY, remark)
            self._go_on(request, partial(change, connection, request), partial(connection.again, request))

        return handle

    def event(self, change: Callable[[], Change]) -> None:
        """A change that nobody asked for: a connection that closed, a broker that fell silent."""
        owner = object()

        def again() -> None:
            self._go_on(owner, change, again)

        again()

    def _go_on(self, owner: object, begin: Callable[[], Change], again: Callable[[], None]) -> None:
        """The next piece of a change, or its place in the queue. `again` comes back here."""
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
