"""Measures for how long the disk has not answered (safety.md S8), with a wrapper around the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from dledger.runtime import Lane, Workers

P = ParamSpec("P")
T = TypeVar("T")


class WatchedWorkers:
    """`Workers` that remember when each unfinished job of the FLUSH lane was submitted."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._began: dict[int, float] = {}
        self._number = 0

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run the workers, as `Workers.run` does."""
        future = self._workers.run(lane, job, *args, **kwargs)
        if lane is Lane.FLUSH:
            self._number += 1
            number = self._number
            self._began[number] = asyncio.get_running_loop().time()
            future.add_done_callback(lambda _: self._began.pop(number, None))
        return future

    def start(
        self, lane: Lane, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Start a job, as `Workers.start` does."""
        if lane is Lane.FLUSH:
            self._number = number = self._number + 1
            self._began[number] = asyncio.get_running_loop().time()
            self._workers.start(lane, job, partial(self._ended, number, done))
        else:
            self._workers.start(lane, job, done)

    def _ended(
        self,
        number: int,
        done: Callable[[T | None, BaseException | None], None],
        result: T | None,
        error: BaseException | None,
    ) -> None:
        del self._began[number]
        done(result, error)

    def close(self) -> None:
        """Close the workers, as `Workers.close` does."""
        self._workers.close()

    def waiting_s(self, now: float) -> float:
        """Return the age, in seconds, of the oldest unfinished job; 0.0 if all are finished."""
        for began in self._began.values():
            return now - began
        return 0.0
