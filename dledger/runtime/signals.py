"""SIGTERM and Ctrl-C for programs that wait in a library of ours, and have no handler of their own."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""Exit code, as of a process that the signal ended."""
INTERRUPTED = 128 + signal.SIGINT
"""The same of Ctrl-C."""


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C, after which everything was ended in order. `except KeyboardInterrupt` catches it; a program
    that does not catch it ends with exit code 130 and without a traceback."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


@contextmanager
def terminated_by_exception() -> Iterator[None]:
    """Within, SIGTERM raises SystemExit(143) on the main thread, so that open blocks are left in good order.

    A handler of the program's own stays, and other threads change nothing.
    """
    if not _free():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def on_termination(callback: Callable[[], object]) -> Iterator[None]:
    """Within, SIGTERM calls a function on the running loop, under the same conditions."""
    if not _free():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, callback)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def on_interruption(callback: Callable[[], object]) -> Iterator[None]:
    """The same for Ctrl-C, which is ours where Python's handler, or that of `asyncio.run`, has it."""
    before = signal.getsignal(signal.SIGINT)
    of_a_runner = isinstance(getattr(getattr(before, "func", None), "__self__", None), asyncio.Runner)
    main = threading.current_thread() is threading.main_thread()
    if not main or not (of_a_runner or before is signal.default_int_handler):
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, callback)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def _free() -> bool:
    """Whether SIGTERM is ours to handle: nobody else does, and this thread may."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
