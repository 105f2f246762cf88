"""Notices that the event loop stood still: the process was stopped, or its machine suspended or starved.

Data that is unread after a pause may be as old as the pause. The sender of a request has perhaps stopped
waiting and asked another server. Then executing the request now may undo what was done since. A timer alone
would notice a pause too late, because a turn of the loop may handle data before timers. So code must call
`check` before it acts on data that it has read, or on requests that have waited.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

BEAT_S = 0.25
"""Interval, in seconds, at which the loop gives a sign of life. A pause may seem longer than it was by this
much."""
SETTLE_S = 0.5
"""Time, in seconds, after a standstill in which a new connection may be one that waited to be accepted during
it."""


class Standstill:
    """Counts the pauses of the loop that were longer than a limit, and calls its listeners after each such
    pause."""

    def __init__(self, limit_s: Callable[[], float], uptime_s: Callable[[], float] | None = None) -> None:
        """`limit_s` returns the limit in seconds; it is called with each sign of life. `uptime_s` returns the
        seconds since some moment, including suspended time. If it is None, the clock of the loop is used,
        which may leave suspended time out."""
        self._limit_s = limit_s
        self._now: Callable[[], float] = _loop_time if uptime_s is None else uptime_s
        self._last = math.inf
        self._deadline = math.inf
        """Time after which the loop counts as having stood still, unless there is another sign of life
        before."""
        self._ended = -math.inf
        self.listeners: list[Callable[[float], None]] = []
        """Functions that are called with the length of the pause in seconds, before anything is done that
        waited during the pause."""
        self.count = 0
        """How often the loop stood still since the start."""

    @property
    def settling(self) -> bool:
        """Whether a standstill ended a moment ago, so that new connections may have waited during it."""
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
        """Note a sign of life."""
        self._last = now
        self._deadline = now + self._limit_s()

    async def run(self) -> None:
        """Give signs of life, until cancelled. Without this no standstill is noticed."""
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
