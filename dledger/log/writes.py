"""Workers of one log that record a failed write themselves (safety.md S3).

The caller of a write may be cancelled before the write fails, and would not learn of it. The next fsync
"works", as Linux reports an error only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from dledger.runtime import Lane, Workers

P = ParamSpec("P")
T = TypeVar("T")


class NotingWorkers:
    """`Workers` that remember the first OSError of a job of the FLUSH lane, the lane in which the log changes
    its files. A job that may fail, because it only prepares, raises another error."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.failure: OSError | None = None

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Like `Workers.run`."""
        if lane is not Lane.FLUSH:
            return self._workers.run(lane, job, *args, **kwargs)
        return self._workers.run(lane, self._noted, partial(job, *args, **kwargs))

    def start(
        self, lane: Lane, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Like `Workers.start`."""
        self._workers.start(lane, partial(self._noted, job) if lane is Lane.FLUSH else job, done)

    def _noted(self, job: Callable[[], T]) -> T:
        try:
            return job()
        except OSError as error:
            self.note(error)
            raise

    def note(self, error: OSError) -> None:
        """Record that a write or fsync failed."""
        self.failure = self.failure or error

    def close(self) -> None:
        """Like `Workers.close`."""
        self._workers.close()
