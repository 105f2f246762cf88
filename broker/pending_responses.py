"""Answers that wait for the commit of their entry (performance.md 2): one pass per commit advance."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dledger.broker.services import LeaderService
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection

MARK_EVERY = 64
"""Answers behind one whose time is known: theirs is taken to be the same. Looking at a clock costs."""


class PendingResponses(LeaderService):
    """In order of index. An answer is a finished frame, or a function that answers later."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Connection, Request, bytes | Callable[[], None]]] = deque()
        self._marks: deque[tuple[int, float]] = deque()
        """(index, loop time): some of what waits, with when it came."""
        self._next_mark = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, index: int, connection: Connection, request: Request, answer: bytes | Callable[[], None]
    ) -> None:
        """Give `answer` when entry `index` is committed. Indexes do not fall from call to call."""
        self._waiting.append((index, connection, request, answer))
        if index >= self._next_mark or not self._marks:
            self._next_mark = index + MARK_EVERY
            self._marks.append((index, asyncio.get_running_loop().time()))

    @property
    def oldest(self) -> float:
        """Loop time since when the oldest answer waits, or one not long before it; 0 when none does."""
        return self._marks[0][1] if self._marks else 0.0

    def on_commit(self, commit_index: int) -> None:
        """Answer everything up to `commit_index`."""
        waiting, marks = self._waiting, self._marks
        while waiting and waiting[0][0] <= commit_index:
            _, connection, request, answer = waiting.popleft()
            if type(answer) is bytes:
                connection.respond_parts(request, (answer,))
            else:
                answer()  # type: ignore[operator]  # the only other type
        if not waiting:
            marks.clear()
        else:  # a mark stands for what came until the next one
            while len(marks) > 1 and marks[1][0] <= waiting[0][0]:
                marks.popleft()

    def end(self, reason: str) -> None:
        """Whether the entries survive is for the next leader to say (safety.md S24)."""
        waiting, self._waiting = self._waiting, deque()
        self._marks.clear()
        for _, connection, request, _ in waiting:
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=f"outcome unknown: {reason}")
