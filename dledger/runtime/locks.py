"""A lock for data that jobs of several worker threads share."""

from __future__ import annotations

import threading
from types import TracebackType


class JobLock:
    """A context manager. Jobs that hold the lock exclude each other; the same thread may take it again. It is
    for jobs of workers only, because the event loop must not wait for a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
