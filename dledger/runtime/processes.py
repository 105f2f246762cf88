"""Worker processes, for jobs each of which keeps a core busy. Arguments and results of a job are pickled.

The processes are started anew (not forked, because this process has threads) with the first job; each of them
first has to import its modules. An interrupt from the keyboard reaches only the parent. A worker ends when
its parent ends, however that happens.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_LIMIT_S = 5.0
"""Time, in seconds, that a close waits for processes that were asked to end."""


class ProcessWorkers:
    """A pool of `jobs` processes. The user must call `close` in the end."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent
        )
        self._children: list[multiprocessing.process.BaseProcess] = []
        self._abandoned = False

    async def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a module-level function in a process; return its result or raise its exception. Raises OSError
        if a worker died."""
        try:
            return await asyncio.wrap_future(self._submit(job, *args, **kwargs))
        except BrokenProcessPool as error:
            raise OSError("a worker process died, possibly because memory ran out") from error
        except asyncio.CancelledError:
            self._abandoned = True
            raise

    def _submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if len(self._children) >= self.jobs:
            return self._pool.submit(job, *args, **kwargs)
        # The pool starts one process at a time, as they are needed.
        others = multiprocessing.active_children()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # children inherit it
        try:
            future = self._pool.submit(job, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._children += [child for child in multiprocessing.active_children() if child not in others]
        return future

    def close(self) -> None:
        """End the processes, whatever they are doing. Blocks for a short time."""
        if not self._abandoned:
            self._pool.shutdown()
            return
        for child in self._children:
            child.terminate()
        # Wait in a thread, because it may never end. Without waiting it may find its pipes closed at exit.
        ending = threading.Thread(
            target=self._pool.shutdown, kwargs={"cancel_futures": True}, name="end of workers", daemon=True
        )
        ending.start()
        ending.join(CLOSE_LIMIT_S)
        for child in self._children:
            child.join(CLOSE_LIMIT_S)


def cores() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Initializer of a pool: makes this worker process end when its parent ends, however that happens."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent,), name="parent", daemon=True).start()


def _wait_for(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
