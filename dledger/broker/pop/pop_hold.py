"""Pops that wait for messages (PopLongPollingService).

Pops of the same topic, group, queue and filter wait in one line, in the order in which they came. When
messages arrive, the pops of each line that wants them are tried again one after the other, until one finds
nothing. In one turn of the event loop only a limited number of pops is tried.
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
"""Largest number of waiting pops that are tried again in one turn of the event loop."""

LOOKS = 1024
"""Largest number of queues that pops examine in one turn of the event loop (about 3 ms). Beyond it, the next
pop is tried in the next turn."""
SWEPT = 256
"""Largest number of pops whose time is up that are answered in one turn of the event loop."""

Line = tuple[str, str, int, str]
"""Topic, group, queue id and filter, which identify a line of waiting pops. All pops in a line want the same
messages."""


@dataclass(slots=True)
class Pop:
    """One pop that has passed the checks. `queue_id` is -1 if it pops from all queues. `looks` says that it
    only asks whether there are messages."""

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
        """The line in which this pop waits."""
        kind = f"{'look ' if self.looks else ''}{'order ' if self.in_order else ''}"
        return (self.topic, self.group, self.queue_id, kind + self.wanted_text)


class HeldPops:
    """The pops that wait. `serve` tries a pop again and returns whether the pop was answered. `expired` is
    called for a pop when its time is up."""

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
        """Maps a topic to the lines of pops that want its messages: those for the topic itself, and those for
        which the topic is a retry topic."""
        self._of_group: dict[tuple[str, str], int] = {}
        self.count: int = 0
        self.looks: int = 0
        """Number of queues that were examined in this turn of the event loop. `serve` increases it."""
        self.for_room: Connection | None = None
        """The last connection with a pop that waits because too many answers are unsent, on all connections
        of the port together. When fewer answers are unsent, all waiting pops are tried again. None if no pop
        waits for this reason."""
        self._timer: asyncio.TimerHandle | None = None
        self._woken: dict[Line, None] = {}
        self._waking: asyncio.Handle | None = None

    def __iter__(self) -> Iterator[Pop]:
        """Return all waiting pops."""
        return chain.from_iterable(self._lines.values())

    def hold(self, pop: Pop) -> bool | None:
        """Let a pop wait. Returns True if it waits, None if its time is up or its connection is closed, False
        if too many pops wait."""
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
        """Return how many pops of a group wait for messages of a topic."""
        return self._of_group.get((topic, group), 0)

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Try the pops again that wait for messages of these queues, because the queues have received
        messages."""
        if not self.count:
            return
        for queue in queues:
            for line in self._by_topic.get(queue.topic, ()):
                if line[2] in (-1, queue.queue_id) or line[0] != queue.topic:
                    self._woken[line] = None
        self._wake()

    def wake(self, group: str, topic: str) -> None:
        """Try the pops of a group for a topic again, because something other than new messages has
        changed."""
        for line in self._by_topic.get(topic, ()):
            if line[1] == group:
                self._woken[line] = None
        self._wake()

    def wake_all(self) -> None:
        """Try all waiting pops again."""
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
        """Remove and return all waiting pops."""
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
                self._woken[line] = None  # there may be messages for the next pop
        self._wake()

    def again(self, pop: Pop) -> None:
        """Put a pop back as the first of its line, because it was tried again and found nothing."""
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
