"""Handles SIGTERM and Ctrl-C for programs that wait in this library and have no handler of their own."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM ended."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a process that Ctrl-C ended."""


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C, raised after everything was ended in good order. `except KeyboardInterrupt` catches it, too. A
    program that does not catch it ends with exit code 130 and without a traceback."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


@contextmanager
def terminated_by_exception() -> Iterator[None]:
    """A context manager. In its block SIGTERM raises SystemExit(143) on the main thread, so that open blocks
    are left in good order. Nothing changes if the program has its own handler, or on another thread.
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
    """A context manager. In its block SIGTERM calls a function on the running loop, under the same conditions
    as in `terminated_by_exception`."""
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
    """A context manager. In its block Ctrl-C calls a function on the running loop, if the present handler is
    Python's or that of `asyncio.run`."""
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
    """Whether SIGTERM may be handled: this is the main thread, and the program has no handler of its own."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
