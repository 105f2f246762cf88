"""The lock of a log's files, which somebody who cannot wait may take as well."""

from __future__ import annotations

import asyncio


class IoLock(asyncio.Lock):
    """Fair: who waits comes first."""

    def take(self) -> bool:
        """Take it now; False when it is held, or somebody waits for it."""
        if self.locked():
            return False
        attempt = self.acquire()
        try:
            attempt.send(None)  # runs to its end unless it has to wait
        except StopIteration:
            return True
        attempt.close()
        return False
