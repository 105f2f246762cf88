"""SIGTERM for programs that wait in a library of ours, and have no handler of their own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""Exit code, as of a process that the signal ended."""


@contextmanager
def terminated_by_exception() -> Iterator[None]:
    """Within, SIGTERM raises SystemExit(143) on the main thread, so that open blocks are left in good order.

    A handler of the program's own stays, and other threads change nothing.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
