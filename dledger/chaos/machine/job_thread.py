"""A job that runs on a thread of its own, but never at the same time as other code.

Most jobs run in one piece: no other code sees the disk between two of their effects. A *spread* job is paused
at some of its effects. Virtual time passes, other code runs, and then the job resumes. The job's thread and
the simulator take turns, so that everything happens in the order that the seed decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class JobThread:
    """Runs one function on a thread, in parts. The simulator calls `go` to let it run; the function calls
    `park` to pause."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.done: bool = False
        self._function = function
        self._slice = threading.Semaphore(0)
        self._rest = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="spread job", daemon=True)
        self._thread.start()

    @property
    def identity(self) -> int | None:
        """The identifier of the thread."""
        return self._thread.ident

    def go(self) -> None:
        """Let the function run until it parks or ends."""
        self._slice.release()
        self._rest.acquire()
        if self.done:
            self._thread.join()

    def park(self) -> None:
        """Pause the function until the next `go`."""
        self._rest.release()
        self._slice.acquire()

    def _run(self) -> None:
        self._slice.acquire()
        try:
            self._function()
        finally:
            self.done = True
            self._rest.release()
