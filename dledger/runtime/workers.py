"""Worker threads, which run everything that waits for the disk (safety.md S8)."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_LIMIT_S = 5.0
"""Time, in seconds, that a close waits for jobs that do not end."""


class Lane(Enum):
    """Lanes of jobs. Jobs of one lane never wait for those of another.

    FLUSH is a single thread, which runs jobs in order: log writes, fsync, term and vote. SCAN is a single
    thread for jobs that take seconds and for which nobody waits: audits of this node's own store. DISK is for
    everything else: preparing files, reads of data that is not in memory, derived files.
    """

    FLUSH = "flush"
    DISK = "disk"
    SCAN = "scan"


class Workers(Protocol):
    """Runs blocking jobs outside the event loop.

    A job has at most one durable action, such as an fsync. In the job only plain writes may follow it. So the
    simulator can crash between any two durable actions (decision 16).
    """

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Start a job. The returned future gets its result or its exception."""

    def start(
        self, lane: Lane, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Start a job. `done` is called on the loop with its result or its exception, one turn of the loop
        earlier than code that waits for a future would resume. It must not raise."""

    def close(self) -> None:
        """Wait for running jobs and end the threads."""


Done = Callable[[Any, BaseException | None], None]
Job = tuple[Callable[[], Any], Done, "asyncio.Future[Any] | None", asyncio.AbstractEventLoop]


class ThreadWorkers:
    """`Workers` with real threads: one for FLUSH, one for SCAN, `disk_threads` for DISK. They are daemons,
    because a job that hangs in the disk must not keep a process from ending.
    """

    def __init__(self, disk_threads: int = 2) -> None:
        self._lanes = {
            Lane.FLUSH: _LaneThreads("flush", 1),
            Lane.DISK: _LaneThreads("disk", disk_threads),
            Lane.SCAN: _LaneThreads("scan", 1),
        }

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        call = partial(job, *args, **kwargs) if args or kwargs else job
        self._lanes[lane].put((call, partial(_complete, future), future, loop))
        return future

    def start(
        self, lane: Lane, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self._lanes[lane].put((job, done, None, asyncio.get_running_loop()))

    def close(self) -> None:
        """Wait for queued jobs to end, up to CLOSE_LIMIT_S for each lane."""
        for lane in self._lanes.values():
            lane.close()


class _LaneThreads:
    def __init__(self, name: str, count: int) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []

    def put(self, job: Job) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._main, name=f"{self._name}-{number}", daemon=True)
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()
        self._jobs.put(job)

    def _main(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done, future, loop = item
            if future is not None and future.cancelled():
                continue
            try:
                result = job()
            except BaseException as error:
                _report(loop, done, None, error)
            else:
                _report(loop, done, result, None)
            del item, job, done, future, loop

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + CLOSE_LIMIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []


async def close_meanwhile(workers: Workers) -> None:
    """Close the workers without blocking: the running loop continues meanwhile."""
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()

    def close() -> None:
        workers.close()
        with suppress(RuntimeError):  # the loop is closed: nothing waits for it
            loop.call_soon_threadsafe(_complete, closed, None, None)

    try:
        threading.Thread(target=close, name="close", daemon=True).start()
    except RuntimeError:  # the interpreter is about to end: no further threads
        workers.close()
        return
    await closed


def _report(loop: asyncio.AbstractEventLoop, done: Done, result: Any, error: BaseException | None) -> None:
    try:
        loop.call_soon_threadsafe(done, result, error)
    except RuntimeError:
        return  # the loop is closed: nothing waits for it


def _complete(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        if error is not None:  # its waiter was cancelled: nothing else would report it
            context = {
                "message": "a job failed, and its result was no longer awaited",
                "exception": error,
                "future": future,
            }
            future.get_loop().call_exception_handler(context)
        return
    if isinstance(error, StopIteration):
        # A future cannot hold StopIteration; its waiter would wait for ever (see PEP 479 for generators).
        ended = RuntimeError("a job raised StopIteration")
        ended.__cause__ = error
        error = ended
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
