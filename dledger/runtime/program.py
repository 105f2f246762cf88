"""Set-up of a process that all programs share: signals, event loop, interpreter, limits, garbage
collector."""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from dledger.runtime.gc_pauses import Pauses
from dledger.runtime.reloads import Reloads
from dledger.runtime.turns import turn_loop_factory

WANTED_FILES = 8192
"""Number of files that a program wants to be able to open: 4096 connections, and as many for queues, segments
and clients of NameServers."""
SWITCH_INTERVAL_S = 0.0005
"""Time, in seconds, for which the event loop may keep the interpreter from a waiting worker. A group write
needs the interpreter twice: to start, and when fdatasync returns. With Python's default of 5 ms, this alone
took 10 ms per flush under load."""
THREAD_STATISTICS = "/proc/thread-self/schedstat"
"""A file of Linux with three numbers: the nanoseconds that this thread ran, the nanoseconds that it was ready
but waited for a core, and how often it ran."""
GC_THRESHOLDS = (10_000, 20, 20)
"""Thresholds of the garbage collector's generations. A full collection of a broker's modules alone takes 20
to 90 ms, a good part of an election time-out. So objects that exist at the start are never examined again,
and other objects are examined less often."""


UNASKED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that come from operators and scripts but do not mean that the process shall end. The reason may be
that a terminal closes, or that a log file was moved away."""
ACCEPT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Temporary errors of accepting a connection. Asyncio tries again, up to a hundred times a second."""
ACCEPT_QUIET_S = 60.0
"""Time, in seconds, for which such errors are not logged again."""


def run_until_signal(
    start: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    pauses: Pauses,
    reloads: Reloads | None = None,
) -> None:
    """Run until the coroutine ends or a signal asks it to stop. If the coroutine raises an exception, it is
    raised here.

    The first SIGTERM or SIGINT sets the event (stop in good order). The second one cancels the coroutine, and
    CancelledError is raised. SIGHUP runs `reloads` and logs the result; SIGUSR1 and SIGUSR2 are logged and
    ignored. Pauses of the garbage collector, and waits for a core, are recorded in `pauses`.
    """

    async def guarded() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def asked_to_stop() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        def noted(number: signal.Signals) -> None:
            if number is signal.SIGHUP:
                done = "there is nothing to reload" if reloads is None else reloads.run()
                logging.getLogger().info("SIGHUP: %s", done)
            else:
                logging.getLogger().info("%s is ignored", number.name)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked_to_stop)
        for number in UNASKED:
            loop.add_signal_handler(number, noted, number)
        loop.set_exception_handler(LoopErrors())
        logging.getLogger().info("event loop of %s", type(loop).__module__.partition(".")[0])
        await start(stop)

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_file_limit()
    with (
        waits_for_cores(pauses),
        tuned_collector(pauses),
        unasked_ignored(),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(guarded())


@contextmanager
def unasked_ignored() -> Iterator[None]:
    """A context manager. Before the event loop has its handlers, and after it has ended, signals of `UNASKED`
    do not end the process. They get a handler that does nothing. If they were ignored instead, they would be
    ignored in child processes, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in UNASKED:
        signal.signal(number, _nothing)
    try:
        yield
    finally:
        for number in UNASKED:  # the loop has set the default again
            signal.signal(number, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing, as a signal handler."""


class LoopErrors:
    """The exception handler of the event loop. It is the default one, except for connections that cannot be
    accepted: a traceback for each attempt would fill a disk."""

    def __init__(self) -> None:
        self._untold = 0
        self._quiet_until = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that reaches no caller."""
        error = context.get("exception")
        passes = isinstance(error, OSError) and error.errno in ACCEPT_ERRORS
        if not passes or "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif (now := loop.time()) < self._quiet_until:
            self._untold += 1
        else:
            logging.getLogger().warning(
                "connections cannot be accepted and wait: %s (ulimit -n: %d); attempts since the "
                "last warning: %d",
                error,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                self._untold,
            )
            self._untold, self._quiet_until = 0, now + ACCEPT_QUIET_S


def settle() -> None:
    """Exclude the objects made so far from garbage collection. To be called when the program has started."""
    gc.freeze()


@contextmanager
def waits_for_cores(pauses: Pauses) -> Iterator[None]:
    """A context manager that lets `pauses` report how long this thread, which runs the event loop, waited for
    a core. It does nothing on systems other than Linux, which do not measure it."""
    try:
        statistics = open(THREAD_STATISTICS, "rb", buffering=0)  # noqa: SIM115  # one descriptor, read often
    except OSError:
        yield
        return

    def waited_s() -> float:
        statistics.seek(0)
        return int(statistics.read(100).split()[1]) / 1e9

    with statistics:
        pauses.waited_s = waited_s
        try:
            yield
        finally:
            pauses.waited_s = lambda: 0.0


@contextmanager
def tuned_collector(pauses: Pauses) -> Iterator[None]:
    """A context manager. The garbage collector does not examine what is loaded already, and `pauses` records
    how long it keeps the interpreter."""
    began = 0.0
    thresholds = gc.get_threshold()

    def told(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            pauses.note(info["generation"], time.perf_counter() - began)

    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.callbacks.append(told)
    try:
        yield
    finally:
        gc.callbacks.remove(told)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed. Each connection needs a file, as segments and queues
    do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif hard == resource.RLIM_INFINITY and soft < WANTED_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED_FILES, hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < WANTED_FILES:
        logging.getLogger().warning(
            "the limit of open files is %d (ulimit -n), and the program wants %d", hard, WANTED_FILES
        )


def open_files() -> tuple[int, int] | None:
    """Return how many files and connections this process has open, and how many it may have; None if the
    system does not report it."""
    try:
        # Linux 6.2 and newer tell the number as the size of the directory. To list ten thousand takes 9 ms.
        count = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
        return count, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except OSError:
        return None


class ProcessFigures(NamedTuple):
    """What a process has used, as the system reports it. Times are in seconds, sizes in bytes."""

    cpu_s: float
    resident: int
    virtual: int
    started_s: float
    """When it began, in seconds since the epoch."""


def process_figures() -> ProcessFigures | None:
    """Return what this process has used; None if the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        with open("/proc/stat", encoding="ascii") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    except (OSError, StopIteration):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    return ProcessFigures(
        (int(words[11]) + int(words[12])) / tick,
        int(words[21]) * os.sysconf("SC_PAGE_SIZE"),
        int(words[20]),
        booted + int(words[19]) / tick,
    )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if uvloop is installed, otherwise one for asyncio's loop with short turns."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return turn_loop_factory()
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
