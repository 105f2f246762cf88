"""Worker threads: where everything that waits for the device runs (safety.md S8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane(Enum):
    """Jobs of one lane never wait for those of the other.

    FLUSH is a single thread, in order: log writes, fsync, term and vote. DISK is for everything else:
    preparing files, cold reads, derived files, scans.
    """

    FLUSH = "flush"
    DISK = "disk"


class Workers(Protocol):
    """Runs blocking jobs away from the event loop.

    A job holds at most one durable action, with its fsync last, so that the simulator can crash between
    any two of them (simulation.md, rule 4).
    """

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Start a job; the future carries its result or its exception."""

    def close(self) -> None:
        """Wait for running jobs and end the threads."""


class ThreadWorkers:
    """`Workers` over real threads: one for FLUSH, `disk_threads` for DISK."""

    def __init__(self, disk_threads: int = 2) -> None:
        self._pools = {
            Lane.FLUSH: ThreadPoolExecutor(1, thread_name_prefix="flush"),
            Lane.DISK: ThreadPoolExecutor(disk_threads, thread_name_prefix="disk"),
        }

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if kwargs:
            return loop.run_in_executor(self._pools[lane], lambda: job(*args, **kwargs))
        return loop.run_in_executor(self._pools[lane], job, *args)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True)
