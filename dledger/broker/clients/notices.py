"""Notification of the members of a changed consumer group by request 40 NOTIFY_CONSUMER_IDS_CHANGED, at a
limited rate.

Each change of a group of m members causes m requests. If all members connect at about the same time, for
example after a start or a change of leader, there are m such changes. Therefore a group is notified at once
of its first change, and of all further changes within `GAP_S` by one notice at the end of this time. That is
enough, because a notified client asks for the list of all members anyway. At most `SLICE` requests are sent
in one turn of the event loop, even if a group has more members.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

GAP_S = 0.2
"""Smallest number of seconds between two notices to the same group."""
SLICE = 50
"""Largest number of requests sent in one turn of the event loop; they take less than a millisecond."""


class Notices:
    """Limits the rate of notices. `send` takes the name of a group and returns one function for each member.
    Calling it sends the request to that member."""

    def __init__(self, send: Callable[[str], Iterable[Callable[[], None]]]) -> None:
        self._send = send
        self._told: dict[str, None] = {}
        """Names of groups whose members were notified within the last `GAP_S` seconds."""
        self._again: dict[str, None] = {}
        """Names in `_told` of groups that have changed since they were notified."""
        self._due: deque[str] = deque()
        self._rest: deque[Callable[[], None]] = deque()
        self._running = False

    def changed(self, name: str) -> None:
        """Notify the members of this group, now or at the end of `GAP_S`."""
        if name in self._told:
            self._again[name] = None
            return
        loop = asyncio.get_running_loop()
        self._told[name] = None
        loop.call_later(GAP_S, self._gap_over, name)
        self._due.append(name)
        if not self._running:  # later, because many groups may change in this turn
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
