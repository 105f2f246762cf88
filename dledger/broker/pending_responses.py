"""Answers that wait until their entries are committed. Each advance of the commit index handles all of them
in one pass."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.services import LeaderService
from dledger.broker.stats.put_times import PutTimes
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection

MARK_EVERY = 64
"""Largest number of log indexes that share one noted time. Their answers count as equally old, because
reading the clock for each of them costs time."""


class AnswerRun:
    """Answers to sends whose messages were sealed one directly after the other, so that their indexes follow
    each other."""

    __slots__ = ("frames", "opaques", "sizes")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.opaques: list[int] = []
        """The numbers (opaque) of the requests. These requests are encoded as JSON and are not one-way."""
        self.sizes: list[int] = []
        """For each request, its size in the account of what its connection has in flight."""

    def cut(self, count: int) -> AnswerRun:
        """Remove the first `count` answers and return them."""
        cut = AnswerRun()
        cut.frames, self.frames = self.frames[:count], self.frames[count:]
        cut.opaques, self.opaques = self.opaques[:count], self.opaques[count:]
        cut.sizes, self.sizes = self.sizes[:count], self.sizes[count:]
        return cut


class PendingResponses(LeaderService):
    """Waiting answers in order of the index of their entries. An answer is an encoded frame, or a function
    that sends the answer. Answers that wait until their entries are applied use the same class, with the
    applied index as the commit index."""

    def __init__(self) -> None:
        self._waiting: deque[
            tuple[int, Connection, Request, bytes | Callable[[], None]]
            | tuple[int, Connection, AnswerRun, None]
        ] = deque()
        self._in_runs = 0
        """Number of answers in runs, minus one for each run, because `_waiting` counts each run as one
        answer."""
        self._marks: deque[tuple[int, float]] = deque()
        """Pairs of an index and the loop time at which the answer with this index was added. Only some of the
        waiting answers have a pair."""
        self._next_mark = 0
        self.times: PutTimes = PutTimes()
        """How long answers have waited, since this node began to lead."""

    def __len__(self) -> int:
        return len(self._waiting) + self._in_runs

    def add(
        self, index: int, connection: Connection, request: Request, answer: bytes | Callable[[], None]
    ) -> None:
        """Send `answer` when entry `index` is committed. From call to call, `index` must not decrease."""
        self._waiting.append((index, connection, request, answer))
        if index >= self._next_mark or not self._marks:
            self._mark(index)

    def add_run(self, first: int, connection: Connection, run: AnswerRun) -> None:
        """Send each answer of a run when its entry is committed. `first`: the index of the entry of the first
        answer."""
        self._waiting.append((first, connection, run, None))
        self._in_runs += len(run.frames) - 1
        if first >= self._next_mark or not self._marks:
            self._mark(first)

    def _mark(self, index: int) -> None:
        self._next_mark = index + MARK_EVERY
        self._marks.append((index, asyncio.get_running_loop().time()))

    @property
    def oldest(self) -> float:
        """Loop time at which the oldest waiting answer, or an answer shortly before it, was added; 0 if no
        answer waits."""
        return self._marks[0][1] if self._marks else 0.0

    def on_commit(self, commit_index: int) -> None:
        """Send all answers whose entries have an index up to `commit_index`."""
        waiting, marks = self._waiting, self._marks
        before = len(waiting) + self._in_runs
        while waiting and waiting[0][0] <= commit_index:
            index, connection, request, answer = waiting.popleft()
            if isinstance(request, AnswerRun):
                done, ready = request, commit_index - index + 1
                if ready < len(request.frames):
                    done = request.cut(ready)
                    waiting.appendleft((commit_index + 1, connection, request, None))
                    self._in_runs -= ready
                else:
                    self._in_runs -= len(done.frames) - 1
                connection.respond_run(done.frames, sum(done.sizes))
            elif isinstance(answer, bytes):
                connection.respond_parts(request, (answer,))
            elif answer is not None:
                answer()
        if (answered := before - len(waiting) - self._in_runs) and marks:
            self.times.add(answered, asyncio.get_running_loop().time() - marks[0][1])
        if not waiting:
            marks.clear()
        else:  # a mark holds for all answers until the next mark
            while len(marks) > 1 and marks[1][0] <= waiting[0][0]:
                marks.popleft()

    def begin(self, writer: CommitLogWriter) -> None:
        """Forget the waiting times of earlier leaderships."""
        self.times = PutTimes()

    def end(self, reason: str) -> None:
        """Answer all waiting requests that their outcome is unknown. Leadership ended, and the next leader
        decides whether their entries survive (safety.md S24)."""
        waiting, self._waiting = self._waiting, deque()
        self._in_runs = 0
        self._marks.clear()
        for _, connection, request, _ in waiting:
            for one in _requests(request):
                connection.respond(one, ResponseCode.SYSTEM_ERROR, remark=f"outcome unknown: {reason}")


def _requests(waiting: Request | AnswerRun) -> Iterable[Request]:
    if isinstance(waiting, AnswerRun):
        return map(_request, waiting.opaques, waiting.sizes)
    return (waiting,)


def _request(opaque: int, size: int) -> Request:
    return Request(RequestCode.SEND_MESSAGE_V2, opaque, size=size)
