"""The lock of a log's files. Code that cannot wait may take it, too."""

from __future__ import annotations

import asyncio


class IoLock(asyncio.Lock):
    """A fair lock: waiters get it in the order in which they came."""

    def take(self) -> bool:
        """Take the lock without waiting. Returns False if it is held, or others wait for it."""
        if self.locked():
            return False
        attempt = self.acquire()
        try:
            attempt.send(None)  # this coroutine ends at its first step unless it has to wait
        except StopIteration:
            return True
        attempt.close()
        return False
