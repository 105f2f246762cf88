"""Consumer offsets on the leader (ConsumerOffsetManager, safety.md S28).

What consumers report gathers here and goes into the log as one entry per group at most every 200 ms, the
highest offset of a queue winning. Reads see applied and pending. Offsets do not go back, except by a
logged reset, and an offset beyond the committed end is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.completions import Completions
from broker.sealing import Sealer
from broker.store.message_store import MessageStore
from formats.state import offsets_op
from remoting.commands import Request
from remoting.server import Connection

MAX_ROWS = 1000
"""Queues in one entry; a group with more takes several."""
Waiter = tuple[Connection, Request, Callable[[], None]]


class PendingOffsets:
    """Reported offsets that are not in the log yet. Belongs to one leadership; `clear` ends it."""

    def __init__(self, store: MessageStore, completions: Completions) -> None:
        self._store = store
        self._completions = completions
        self._offsets: dict[str, dict[tuple[str, int], int]] = {}
        self._logged: deque[tuple[int, str, dict[tuple[str, int], int]]] = deque()
        """(index, group, offsets) of entries that are not applied yet."""
        self._waiters: dict[str, list[Waiter]] = {}

    def current(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group's offset as last reported, None when it never said."""
        key = (topic, queue_id)
        known = [
            self._offsets.get(group, {}).get(key),
            self._store.state.consumer_offset(group, topic, queue_id),
            *(offsets.get(key) for _, logged, offsets in self._logged if logged == group),
        ]
        return max((offset for offset in known if offset is not None), default=None)

    def applied(self, index: int) -> None:
        """Entries up to `index` are applied: the state has their offsets."""
        while self._logged and self._logged[0][0] <= index:
            self._logged.popleft()

    def report(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Take note of an offset. False when it lies beyond the committed end."""
        if offset > self._store.state.next_offset(topic, queue_id):
            return False
        current = self.current(group, topic, queue_id)
        if offset >= 0 and (current is None or offset > current):
            self._offsets.setdefault(group, {})[topic, queue_id] = offset
        return True

    def wait(self, group: str, connection: Connection, request: Request, answer: Callable[[], None]) -> None:
        """Call `answer` when what the group reported so far is committed."""
        if group in self._offsets:
            self._waiters.setdefault(group, []).append((connection, request, answer))
        else:
            answer()  # nothing new: it is in the applied state

    def flush(self, sealer: Sealer) -> None:
        """Append what is pending. Without room in the log it waits for the next call."""
        for group in list(self._offsets):
            if not sealer.room:
                return
            offsets = self._offsets.pop(group)
            rows = [(topic, queue, at) for (topic, queue), at in offsets.items()]
            index = -1
            for start in range(0, len(rows), MAX_ROWS):
                index = sealer.append_op(offsets_op(group, rows[start : start + MAX_ROWS]))
            self._logged.append((index, group, offsets))
            for connection, request, answer in self._waiters.pop(group, ()):
                self._completions.add(index, connection, request, answer)

    def take_waiters(self) -> list[Waiter]:
        """Leadership ended: forget everything; those whose offsets were never logged are returned."""
        waiters = [waiter for group in self._waiters.values() for waiter in group]
        self._waiters.clear()
        self._offsets.clear()
        self._logged.clear()
        return waiters
