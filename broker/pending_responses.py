"""Answers that wait for the commit of their entry (performance.md 2): one pass per commit advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dledger.broker.services import LeaderService
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection


class PendingResponses(LeaderService):
    """In order of index. An answer is a finished frame, or a function that answers later."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Connection, Request, bytes | Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, index: int, connection: Connection, request: Request, answer: bytes | Callable[[], None]
    ) -> None:
        """Give `answer` when entry `index` is committed. Indexes do not fall from call to call."""
        self._waiting.append((index, connection, request, answer))

    def on_commit(self, commit_index: int) -> None:
        """Answer everything up to `commit_index`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= commit_index:
            _, connection, request, answer = waiting.popleft()
            if type(answer) is bytes:
                connection.respond_parts(request, (answer,))
            else:
                answer()  # type: ignore[operator]  # the only other type

    def end(self, reason: str) -> None:
        """Whether the entries survive is for the next leader to say (safety.md S24)."""
        waiting, self._waiting = self._waiting, deque()
        for _, connection, request, _ in waiting:
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=f"outcome unknown: {reason}")
