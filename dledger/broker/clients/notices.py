"""40 NOTIFY_CONSUMER_IDS_CHANGED: the members of a changed group are notified, at a limited rate.

Each change of a group of m members causes m requests. If all members come at once, as after a start or a
change of leader, there are m such changes. So a group is notified at once, and further changes within `GAP_S`
lead to one more notice at the end of that time: each notified client asks for all members anyway. For groups
with very many members, one slice is notified in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

GAP_S = 0.2
"""Seconds between two notices to the same group."""
SLICE = 50
"""Requests sent in one turn of the loop, below a millisecond."""


class Notices:
    """Limits the rate of notices. `send` returns the requests to the members of a name as calls."""

    def __init__(self, send: Callable[[str], Iterable[Callable[[], None]]]) -> None:
        self._send = send
        self._told: dict[str, None] = {}
        """Names whose members were notified within `GAP_S`."""
        self._again: dict[str, None] = {}
        """Names in `_told` that changed since."""
        self._due: deque[str] = deque()
        self._rest: deque[Callable[[], None]] = deque()
        self._running = False

    def changed(self, name: str) -> None:
        """Notify the members of this name, now or at the end of `GAP_S`."""
        if name in self._told:
            self._again[name] = None
            return
        loop = asyncio.get_running_loop()
        self._told[name] = None
        loop.call_later(GAP_S, self._gap_over, name)
        self._due.append(name)
        if not self._running:  # not here: many may change in this turn
            self._running = True
            loop.call_soon(self._turn)

    def _gap_over(self, name: str) -> None:
        del self._told[name]
        if self._again.pop(name, self) is None:
            self.changed(name)

    def _turn(self) -> None:
        room = SLICE
        while room and (self._rest or self._due):
            if not self._rest:
                self._rest.extend(self._send(self._due.popleft()))
            while room and self._rest:
                self._rest.popleft()()
                room -= 1
        self._running = bool(self._rest or self._due)
        if self._running:
            asyncio.get_running_loop().call_soon(self._turn)
