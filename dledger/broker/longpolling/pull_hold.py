"""Pulls that wait for messages (PullRequestHoldService). This is long polling without a thread or timer for
each pull.

The waiting pulls are kept by queue. Entries are applied in chunks. When a chunk brings messages to a queue,
each pull of the queue is tried again once. A single timer, which runs while any pull waits, ends the pulls
whose time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dledger.broker.filter.message_filter import MessageFilter
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.formats.state import MAX_QUEUES
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection

SWEEP_INTERVAL_S = 0.1
"""Seconds between two searches for pulls whose time is up. So a time-out is noticed late by at most this
time."""
ROOM_WAIT_S = 1.0
"""Smallest number of seconds that a pull waits while too many answers are unsent, even if it asked not to
wait. Without this wait its client would ask again at once."""
MAX_SUSPEND_S = 60.0
"""Largest number of seconds that a request may wait, even if it asks for more. Clients cancel a pull after 30
s."""


@dataclass(slots=True)
class Pull:
    """One pull that has passed the checks. If messages do not match its filter, `offset` is moved behind
    them."""

    connection: Connection
    request: Request
    group: str
    topic: str
    queue_id: int
    offset: int
    count: int
    size: int
    wanted: MessageFilter
    suspend_s: float
    deadline: float = 0.0
    took_s: float = 0.0
    """Seconds that were spent on reading from the disk."""
    for_room: bool = False
    """Whether the pull waits until fewer answers are unsent (`ServerLimits.max_unsent`). Messages that come
    to its queue do not end this wait."""


class HeldPulls:
    """The pulls that wait, by queue. `retry` is called for a pull if its queue has received messages,
    `expired` if its time is up."""

    def __init__(
        self, limit: Callable[[], int], retry: Callable[[Pull], None], expired: Callable[[Pull], None]
    ) -> None:
        self._limit = limit
        self._retry = retry
        self._expired = expired
        self._by_queue: dict[tuple[str, int], list[Pull]] = {}
        self.count: int = 0
        self.on_hold: Callable[[Pull], None] = lambda pull: None
        """Called with a pull when it begins to wait."""
        self._timer: asyncio.TimerHandle | None = None

    def hold_for_room(self, pull: Pull) -> bool:
        """Let a pull wait until there is room for its answer. Returns False if the pull does not wait,
        because too many pulls wait already, its time is up or its connection is closed."""
        pull.for_room = True
        pull.suspend_s = max(pull.suspend_s, ROOM_WAIT_S)
        return self.hold(pull)

    def hold(self, pull: Pull) -> bool:
        """Let a pull wait. The first call for a pull sets its deadline. Returns False if the pull does not
        wait, because too many pulls wait already, its time is up or its connection is closed."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        first = pull.deadline == 0.0
        if first:
            pull.deadline = now + min(pull.suspend_s, MAX_SUSPEND_S)
        if self.count >= self._limit() or pull.deadline <= now or pull.connection.closed:
            return False
        self._by_queue.setdefault((pull.topic, pull.queue_id), []).append(pull)
        self.count += 1
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        if first:
            self.on_hold(pull)
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Try the pulls of these queues again, because the queues have received messages."""
        if not self.count:
            return
        for queue in queues:
            pulls = self._by_queue.pop((queue.topic, queue.queue_id), None)
            if pulls is not None:
                self.count -= len(pulls)
                for pull in pulls:
                    self._retry(pull)

    def take_of(self, group: str, topic: str, queues: Iterable[int]) -> list[Pull]:
        """Remove and return the pulls of a group from these queues of a topic."""
        taken: list[Pull] = []
        for queue_id in queues:
            pulls = self._by_queue.get((topic, queue_id), [])
            mine = [pull for pull in pulls if pull.group == group]
            if mine:
                taken += mine
                self.count -= len(mine)
                self._by_queue[topic, queue_id] = [pull for pull in pulls if pull.group != group]
                if not self._by_queue[topic, queue_id]:
                    del self._by_queue[topic, queue_id]
        return taken

    def take_topic(self, topic: str) -> list[Pull]:
        """Remove and return the pulls for a topic."""
        taken: list[Pull] = []
        for queue_id in range(MAX_QUEUES + 1):
            taken += self._by_queue.pop((topic, queue_id), ())
        self.count -= len(taken)
        return taken

    def __iter__(self) -> Iterator[Pull]:
        for pulls in self._by_queue.values():
            yield from pulls

    def take_all(self) -> list[Pull]:
        """Remove and return all pulls."""
        pulls = list(self)
        self._by_queue.clear()
        self.count = 0
        return pulls

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        for key in list(self._by_queue):
            pulls = self._by_queue[key]
            due = [pull for pull in pulls if _is_due(pull, now)]
            if not due:
                continue
            self.count -= len(due)
            if len(due) == len(pulls):
                del self._by_queue[key]
            else:
                self._by_queue[key] = [pull for pull in pulls if not _is_due(pull, now)]
            for pull in due:
                if pull.deadline > now and not pull.connection.closed:
                    self._retry(pull)
                else:
                    self._expired(pull)
        if self._by_queue and self._timer is None:
            self._timer = loop.call_later(SWEEP_INTERVAL_S, self._sweep)


def _is_due(pull: Pull, now: float) -> bool:
    connection = pull.connection
    return pull.deadline <= now or connection.closed or (pull.for_room and not connection.crowded)
