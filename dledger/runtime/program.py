"""What every program of ours does with its process: signals, event loop, interpreter, limits, collector."""

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
from typing import Any

from dledger.runtime.gc_pauses import Pauses
from dledger.runtime.reloads import Reloads
from dledger.runtime.turns import turn_loop_factory

WANTED_FILES = 8192
"""Open files: 4096 connections, and as many for queues, segments and clients of NameServers."""
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may keep the interpreter from a waiting worker. A group write needs it twice (to
start, and when fdatasync returns); with Python's default of 5 ms that alone was 10 ms a flush under load."""
THREAD_STATISTICS = "/proc/thread-self/schedstat"
"""Linux: nanoseconds that this thread ran, and that it was ready and waited for a core; times it ran."""
GC_THRESHOLDS = (10_000, 20, 20)
"""Generations of the garbage collector. A full collection of a broker's modules alone takes 20 to 90 ms, a
good part of an election time-out: what is there at the start is frozen, the rest is looked at less often."""


UNASKED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals of operators and scripts that ask for no end: a terminal that closes, a log that was moved away."""
ACCEPT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accepting a connection that pass: asyncio tries again, up to a hundred times a second."""
ACCEPT_QUIET_S = 60.0
"""How long nothing more is said of them."""


def run_until_signal(
    start: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    pauses: Pauses,
    reloads: Reloads | None = None,
) -> None:
    """Run until it ends or a signal asks it to stop; whatever it raises comes out of here.

    The first SIGTERM or SIGINT sets the event (stop in good order), the second cancels: CancelledError.
    SIGHUP runs `reloads`, and says so in the log; SIGUSR1 and SIGUSR2 are noted there, and ignored.
    Meanwhile the pauses of the garbage collector, and waits for a core, are recorded in `pauses`.
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
                done = "there is nothing to read again" if reloads is None else reloads.run()
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
    """Keep signals that operators send, and that would end a process, from ending it before the loop has its
    handlers, and after that. Handlers, as what is ignored would be so in child processes as well."""
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
    """A handler."""


class LoopErrors:
    """The loop's exception handler: its own, but for connections that cannot be accepted. Each try would be
    a traceback, and so many of them fill a disk."""

    def __init__(self) -> None:
        self._untold = 0
        self._quiet_until = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something failed that has no caller."""
        error = context.get("exception")
        passes = isinstance(error, OSError) and error.errno in ACCEPT_ERRORS
        if not passes or "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif (now := loop.time()) < self._quiet_until:
            self._untold += 1
        else:
            logging.getLogger().warning(
                "connections wait to be accepted: %s (ulimit -n: %d); tries since this was said: %d",
                error,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                self._untold,
            )
            self._untold, self._quiet_until = 0, now + ACCEPT_QUIET_S


def settle() -> None:
    """The program is up: what it made so far stays, so the collector need not look at it again."""
    gc.freeze()


@contextmanager
def waits_for_cores(pauses: Pauses) -> Iterator[None]:
    """Let `pauses` tell how long this thread, the event loop's, waited for a core; where Linux says so."""
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
    """Keep the collector off what is loaded already, and record how long it keeps the interpreter."""
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
    """As many open files as this process may have: a connection each, beside segments and queues."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif hard == resource.RLIM_INFINITY and soft < WANTED_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED_FILES, hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < WANTED_FILES:
        logging.getLogger().warning(
            "only %d open files allowed (ulimit -n): %d are wanted", hard, WANTED_FILES
        )


def open_files() -> tuple[int, int] | None:
    """How many files and connections this process has open, and how many it may have; None where the system
    does not tell."""
    try:
        return len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except OSError:
        return None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, else asyncio's with short turns."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return turn_loop_factory()
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
