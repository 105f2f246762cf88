"""Notices that the event loop stood still: the process was stopped, its machine suspended or starved.

What such a process finds unread afterwards may be as old as the pause. Its sender has stopped waiting, and
has perhaps asked another server; to execute it now may undo what was done since. A turn of the loop does not
begin with a timer, so a timer alone notices too late: whoever is about to act on what it read or held calls
`check` first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

BEAT_S = 0.25
"""Time between two signs of life of the loop. A pause may be taken for so much longer than it was."""
SETTLE_S = 0.5
"""How long after a standstill a new connection may be one that waited to be accepted meanwhile."""


class Standstill:
    """Counts pauses of the loop that were longer than a limit, and calls its listeners after each."""

    def __init__(self, limit_s: Callable[[], float], uptime_s: Callable[[], float] | None = None) -> None:
        """`limit_s`: seconds, asked anew with each sign of life. `uptime_s`: seconds since some moment, also
        those in which the machine was suspended; None for the clock of the loop, which may leave them out."""
        self._limit_s = limit_s
        self._now: Callable[[], float] = _loop_time if uptime_s is None else uptime_s
        self._last = math.inf
        self._deadline = math.inf
        """When the loop has stood still for too long, without another sign of life."""
        self._ended = -math.inf
        self.listeners: list[Callable[[float], None]] = []
        """Called with the length in seconds, before anything is done that waited meanwhile."""
        self.count = 0
        """Standstills since the start."""

    @property
    def settling(self) -> bool:
        """Whether one ended a moment ago, so that new connections may have waited since before."""
        return self._now() - self._ended < SETTLE_S

    def check(self) -> None:
        """Call the listeners if the loop stood still since its last sign of life."""
        if self._now() > self._deadline:
            self._stood_still()

    def _stood_still(self) -> None:
        now = self._now()
        paused_s = now - self._last
        self._ended = now
        self._sign(now)
        self.count += 1
        for listener in self.listeners:
            listener(paused_s)

    def _sign(self, now: float) -> None:
        """A sign of life."""
        self._last = now
        self._deadline = now + self._limit_s()

    async def run(self) -> None:
        """Give signs of life, until cancelled. Nothing is noticed while this does not run."""
        self._sign(self._now())
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                self.check()
                self._sign(self._now())
        finally:
            self._deadline = math.inf


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
