"""Pops that wait for messages (PopLongPollingService).

They wait in lines by topic, group, queue and filter, first come first served. Messages that arrive wake the
pops of each line one after the other, until one finds nothing. The number of pops woken in one turn of the
loop is limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from dledger.broker.filter.message_filter import MessageFilter
from dledger.broker.longpolling.pull_hold import MAX_SUSPEND_S, SWEEP_INTERVAL_S
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.formats.pop_handles import retry_topic_v1, retry_topic_v2
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection

WAKES = 64
"""Pops that are tried again in one turn of the loop."""

LOOKS = 1024
"""Queues that pops examine in one turn of the loop (about 3 ms); beyond this the next pop waits for the next
turn."""
SWEPT = 256
"""Pops whose time is up that are answered in one turn of the loop."""

Line = tuple[str, str, int, str]
"""Topic, group, queue id, filter: all pops in a line want the same messages."""


@dataclass(slots=True)
class Pop:
    """One pop that passed the checks. `queue_id` -1: all queues. `looks`: it only asks whether there are
    messages."""

    connection: Connection
    request: Request
    group: str
    topic: str
    queue_id: int
    count: int
    invisible_ms: int
    wanted: MessageFilter
    wanted_text: str
    in_order: bool
    attempt: str
    from_last: bool
    poll_s: float
    looks: bool = False
    deadline: float = 0.0

    @property
    def line(self) -> Line:
        """The line in which it waits."""
        kind = f"{'look ' if self.looks else ''}{'order ' if self.in_order else ''}"
        return (self.topic, self.group, self.queue_id, kind + self.wanted_text)


class HeldPops:
    """Held pops. `serve` tries one again and returns whether it is answered; `expired` is called when its
    time is up."""

    def __init__(
        self,
        limit: Callable[[], int],
        limit_of_line: Callable[[], int],
        serve: Callable[[Pop], bool],
        expired: Callable[[Pop], None],
    ) -> None:
        self._limit = limit
        self._limit_of_line = limit_of_line
        self._serve = serve
        self._expired = expired
        self._lines: dict[Line, deque[Pop]] = {}
        self._by_topic: dict[str, dict[Line, None]] = {}
        """Lines that messages of a topic wake: those for the topic itself, and those for which it is a retry
        topic."""
        self._of_group: dict[tuple[str, str], int] = {}
        self.count: int = 0
        self.looks: int = 0
        """Queues that `serve` examined in this turn of the loop; `serve` counts them here."""
        self.for_room: Connection | None = None
        """The last connection over which a pop came while too many answers were unsent, over all connections
        of its port. Such pops wait until fewer answers are unsent."""
        self._timer: asyncio.TimerHandle | None = None
        self._woken: dict[Line, None] = {}
        self._waking: asyncio.Handle | None = None

    def __iter__(self) -> Iterator[Pop]:
        """All held pops."""
        return chain.from_iterable(self._lines.values())

    def hold(self, pop: Pop) -> bool | None:
        """Hold a pop. Returns True if it is held, None if its time is up, False if too many wait."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if pop.deadline == 0.0:
            pop.deadline = now + min(pop.poll_s, MAX_SUSPEND_S)
        if pop.deadline <= now or pop.connection.closed:
            return None
        place = (pop.topic, pop.group)
        if self.count >= self._limit() or self._of_group.get(place, 0) >= self._limit_of_line():
            return False
        self._add(pop, first=False)
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        return True

    def waiting(self, topic: str, group: str) -> int:
        """How many pops of a group wait for messages of a topic."""
        return self._of_group.get((topic, group), 0)

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """These queues got messages: wake the lines that wait for them."""
        if not self.count:
            return
        for queue in queues:
            for line in self._by_topic.get(queue.topic, ()):
                if line[2] in (-1, queue.queue_id) or line[0] != queue.topic:
                    self._woken[line] = None
        self._wake()

    def wake(self, group: str, topic: str) -> None:
        """Something other than new messages changed: wake the group's pops for this topic."""
        for line in self._by_topic.get(topic, ()):
            if line[1] == group:
                self._woken[line] = None
        self._wake()

    def wake_all(self) -> None:
        """Wake all lines."""
        self._woken.update(dict.fromkeys(self._lines))
        self._wake()

    def take_topic(self, topic: str) -> list[Pop]:
        """Remove and return the pops for a topic."""
        taken: list[Pop] = []
        for line in [line for line in self._by_topic.get(topic, ()) if line[0] == topic]:
            for pop in list(self._lines[line]):
                self._removed(pop, self._lines[line].popleft)
                taken.append(pop)
        return taken

    def take_all(self) -> list[Pop]:
        """Remove and return all held pops."""
        pops = list(self)
        for table in (self._lines, self._by_topic, self._of_group, self._woken):
            table.clear()
        self.count = 0
        return pops

    def _wake(self) -> None:
        if self._woken and self._waking is None:
            self._waking = asyncio.get_running_loop().call_soon(self._serve_woken)

    def _serve_woken(self) -> None:
        self._waking = None
        self.looks = 0
        for _ in range(WAKES):
            if not self._woken:
                return
            if self.looks >= LOOKS:
                break
            line = next(iter(self._woken))
            del self._woken[line]
            waiting = self._lines.get(line)
            if not waiting:
                continue
            pop = waiting[0]
            self._removed(pop, waiting.popleft)
            if self._serve(pop) and line in self._lines:
                self._woken[line] = None  # there may be more for the next of them
        self._wake()

    def again(self, pop: Pop) -> None:
        """Put back a pop that was woken and found nothing, as the first of its line."""
        self._add(pop, first=True)

    def _add(self, pop: Pop, *, first: bool) -> None:
        line, place = pop.line, (pop.topic, pop.group)
        waiting = self._lines.get(line)
        if waiting is None:
            waiting = self._lines[line] = deque()
            for topic in _topics(line):
                self._by_topic.setdefault(topic, {})[line] = None
        (waiting.appendleft if first else waiting.append)(pop)
        self.count += 1
        self._of_group[place] = self._of_group.get(place, 0) + 1

    def _removed(self, pop: Pop, take: Callable[[], object]) -> None:
        take()
        line, place = pop.line, (pop.topic, pop.group)
        self.count -= 1
        self._of_group[place] -= 1
        if not self._of_group[place]:
            del self._of_group[place]
        if not self._lines[line]:
            self._drop(line)

    def _drop(self, line: Line) -> None:
        del self._lines[line]
        for topic in _topics(line):
            lines = self._by_topic[topic]
            del lines[line]
            if not lines:
                del self._by_topic[topic]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        if self.for_room is not None and not self.for_room.crowded:
            self.for_room = None
            self.wake_all()
        waiting = (pop for line in self._lines.values() for pop in line)
        ended = (pop for pop in waiting if pop.deadline <= now or pop.connection.closed)
        due = list(islice(ended, SWEPT))
        for pop in due:
            self._removed(pop, partial(self._lines[pop.line].remove, pop))
            self._expired(pop)
        if self.count and self._timer is None:
            self._timer = loop.call_later(0 if len(due) == SWEPT else SWEEP_INTERVAL_S, self._sweep)


def _topics(line: Line) -> tuple[str, ...]:
    topic, group = line[:2]
    return (topic, retry_topic_v1(topic, group), retry_topic_v2(topic, group))
