"""Answers that wait for the commit of their entries (performance.md 2): one pass for each advance of the
commit index."""

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
"""Most answers after one whose time is noted; they count as equally old, because reading a clock costs
time."""


class AnswerRun:
    """Answers to sends that were sealed in a row; each has the next index."""

    __slots__ = ("frames", "opaques", "sizes")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.opaques: list[int] = []
        """Numbers of the requests, which are JSON and not one-way."""
        self.sizes: list[int] = []
        """The size of each request in the in-flight account of its connection."""

    def cut(self, count: int) -> AnswerRun:
        """Remove and return the first `count` answers."""
        cut = AnswerRun()
        cut.frames, self.frames = self.frames[:count], self.frames[count:]
        cut.opaques, self.opaques = self.opaques[:count], self.opaques[count:]
        cut.sizes, self.sizes = self.sizes[:count], self.sizes[count:]
        return cut


class PendingResponses(LeaderService):
    """Waiting answers in order of index. An answer is an encoded frame, or a function that sends one."""

    def __init__(self) -> None:
        self._waiting: deque[
            tuple[int, Connection, Request, bytes | Callable[[], None]]
            | tuple[int, Connection, AnswerRun, None]
        ] = deque()
        self._in_runs = 0
        """Answers in runs, minus one for each run, because `_waiting` counts each run as one."""
        self._marks: deque[tuple[int, float]] = deque()
        """(index, loop time) of some of the waiting answers."""
        self._next_mark = 0
        self.times: PutTimes = PutTimes()
        """How long answers have waited, since this node leads."""

    def __len__(self) -> int:
        return len(self._waiting) + self._in_runs

    def add(
        self, index: int, connection: Connection, request: Request, answer: bytes | Callable[[], None]
    ) -> None:
        """Give `answer` when entry `index` is committed. Indexes must not decrease from call to call."""
        self._waiting.append((index, connection, request, answer))
        if index >= self._next_mark or not self._marks:
            self._mark(index)

    def add_run(self, first: int, connection: Connection, run: AnswerRun) -> None:
        """Give the answers of a run of entries as each of them is committed; `first` is the index of the
        first one."""
        self._waiting.append((first, connection, run, None))
        self._in_runs += len(run.frames) - 1
        if first >= self._next_mark or not self._marks:
            self._mark(first)

    def _mark(self, index: int) -> None:
        self._next_mark = index + MARK_EVERY
        self._marks.append((index, asyncio.get_running_loop().time()))

    @property
    def oldest(self) -> float:
        """Loop time since when the oldest answer, or one shortly before it, has waited; 0 if none waits."""
        return self._marks[0][1] if self._marks else 0.0

    def on_commit(self, commit_index: int) -> None:
        """Give all answers up to `commit_index`."""
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
        else:  # a mark stands for what came until the next one
            while len(marks) > 1 and marks[1][0] <= waiting[0][0]:
                marks.popleft()

    def begin(self, writer: CommitLogWriter) -> None:
        """Start without waiting times."""
        self.times = PutTimes()

    def end(self, reason: str) -> None:
        """Leadership ended: the outcome of the waiting requests is unknown, because the next leader decides
        whether their entries survive (safety.md S24)."""
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
