"""Which popped messages are invisible, and until when: the leader's index of the tables in the log.

The tables (`formats.state.pop`) record which messages were given to which group. The index has what a leader
must find quickly: what is due next, and how much a queue of a group has in flight. It is rebuilt for each
leadership, a slice at a time. Until it is complete, no pop is served and nothing is revived.

Invisible time is measured by the loop's clock. Only for messages that an earlier leader gave out the due time
comes from the wall clock, and it is never later than the full invisible time from now. So a clock that was
ahead delays a message by that much at most.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.services import LeaderService
from dledger.broker.store.message_store import MessageStore
from dledger.formats.state import POP_ORDERS, POPS, CheckpointKey, OrderKey, PopCheckpoint, PopOrder
from dledger.runtime.cooperative import PAUSE_S
from dledger.runtime.live_settings import LiveSettings

MAX_FREED = 1000
"""Resets of queues popped in order whose times are remembered; beyond this the oldest is forgotten."""
SLICE = 1000
"""Rows that are loaded in one turn of the loop at the beginning of a leadership, about 2 ms."""
ROUNDING_S = 0.001
"""Seconds added to due times: times in the log are whole milliseconds, rounded down."""
SPARE = 4096
"""Outdated entries that the heap may have before it is rebuilt."""

MAX_POP_ORDERS = 20_000
"""Queues of groups that are popped in order; pops of one more find nothing. From half of this on, rows whose
wait is over are removed, and with them how often their messages were given out."""

Key = CheckpointKey | OrderKey


class PopLedger(LeaderService):
    """The index of one leadership at a time."""

    def __init__(self, store: MessageStore, settings: LiveSettings[BrokerConfig]) -> None:
        self._store = store
        self._settings = settings
        self.writer: CommitLogWriter | None = None
        self.ready: bool = False
        """Whether all rows of earlier leaders are loaded."""
        self.on_room: Callable[[str, str], None] = lambda group, topic: None
        """Called with a group and a topic when one of its queues, which had too many messages in flight, has
        room again."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when something is due earlier than everything known before."""
        self._heap: list[tuple[float, int, Key]] = []
        self._due_s: dict[Key, float] = {}
        self._serial = 0
        self._in_flight: Counter[OrderKey] = Counter()
        self._of_group: Counter[str] = Counter()
        self.messages: int = 0
        """Messages that are invisible."""
        self._orders: dict[OrderKey, int] = {}
        """Queues whose messages one consumer has in order -> number of these messages."""
        self.freed: dict[OrderKey, int] = {}
        """Queues that a reset freed -> time of the last pop before it, in ms; the last MAX_FREED."""
        self._full: set[OrderKey] = set()
        self._last_index = -1

    # -- service --------------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._forget()
        self.writer = writer

    async def run(self) -> None:
        """See `LeaderService`: load the rows of earlier leaders."""
        writer = self.writer
        if writer is None:
            return
        loop = asyncio.get_running_loop()
        # Changes that are appended from here on are reported to the ledger when they are made.
        checkpoints = list(self._store.state[POPS].rows)
        orders = list(self._store.state[POP_ORDERS].rows)
        for at in range(0, len(checkpoints), SLICE):
            for key in checkpoints[at : at + SLICE]:
                row = writer.pending[POPS].rows.get(key)
                if row is not None and key not in self._due_s:
                    self.gave(row, self._left_s(writer, row.time, row.invisible) + loop.time())
            await asyncio.sleep(PAUSE_S)
        for at in range(0, len(orders), SLICE):
            for order in orders[at : at + SLICE]:
                kept = writer.pending[POP_ORDERS].rows.get(order)
                if kept is not None and order not in self._orders:
                    self.ordered(kept, order_wait_s(kept, writer.clock_ms()) + loop.time())
            await asyncio.sleep(PAUSE_S)
        self.ready = True
        self.on_ready()

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._forget()

    def _forget(self) -> None:
        self.writer = None
        self.ready = False
        self._heap, self._due_s, self._full = [], {}, set()
        self._in_flight.clear()
        self._of_group.clear()
        self._orders.clear()
        self.freed.clear()
        self.messages = 0
        self._last_index = -1

    def _left_s(self, writer: CommitLogWriter, time_ms: int, invisible_ms: int) -> float:
        return min(max(time_ms + invisible_ms - writer.clock_ms(), 0), invisible_ms) / 1000

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """A topic or a group is about to be deleted: forget its messages in flight."""
        rows, due = writer.pending[POPS].rows, self._due_s
        gone: Counter[OrderKey] = Counter()
        for key in writer.pending.keys_of(POPS, kind, name):  # there may be 50,000
            if due.pop(key, None) is not None:  # else it is not taken in yet, and will not be
                gone[key[:3]] += len(rows[key].offsets)
        for (group, topic, queue), count in gone.items():
            self._count((group, topic, queue, 0, 0), -count)
        for order in writer.pending.keys_of(POP_ORDERS, kind, name):
            self.order_ended(order)

    # -- what is appended -------------------------------------------------------------------------------

    def gave(self, row: PopCheckpoint, due_s: float) -> None:
        """A checkpoint was appended; its remaining messages are due at loop time `due_s`."""
        self._count(row.key, len(row.offsets))
        self._set_due(row.key, due_s)

    def done(self, key: CheckpointKey, count: int, *, gone: bool) -> None:
        """This many messages of a checkpoint were acknowledged or revived. `gone`: they were the last."""
        if key not in self._due_s:
            return  # not taken in yet: it will be, as it is then
        self._count(key, -count)
        if gone:
            del self._due_s[key]

    def ordered(self, row: PopOrder, due_s: float) -> None:
        """A queue waits for the consumer that has its messages, until loop time `due_s`."""
        self.messages += len(row.offsets) - self._orders.get(row.key, 0)
        self._orders[row.key] = len(row.offsets)
        self._set_due(row.key, due_s)

    def order_ended(self, key: OrderKey) -> None:
        """No message of this queue is in flight any longer."""
        self._due_s.pop(key, None)
        self.messages -= self._orders.pop(key, 0)

    def order_reset(self, key: OrderKey, time_ms: int) -> None:
        """A group's offset in this queue was set: the next pop begins there. `time_ms`: time of the last
        pop."""
        self.order_ended(key)
        self.freed.pop(key, None)
        self.freed[key] = time_ms
        if len(self.freed) > MAX_FREED:
            del self.freed[next(iter(self.freed))]
        self.on_room(key[0], key[1])

    def order_due(self, key: OrderKey) -> None:
        """A queue waits no longer: the next pop gets the remaining messages again. Its row stays, because it
        counts how often each message was given out, but none of them is in flight."""
        self.order_ended(key)

    def logged(self, index: int) -> None:
        """Note the entry of the newest operation on the tables."""
        self._last_index = index

    @property
    def unapplied(self) -> int | None:
        """Index of the newest operation on the tables if it is not applied yet; else None."""
        return self._last_index if self._last_index > self._store.applied_index else None

    # -- questions --------------------------------------------------------------------------------------

    def room(self, group: str, topic: str, queue: int) -> int:
        """How many more messages of a queue this group may have in flight; 0 while the ledger is incomplete.
        One group gets at most half of the total, so that a group whose consumers acknowledge nothing does not
        stop the others."""
        if not self.ready:
            return 0
        config = self._settings.now
        total = config.max_pop_in_flight
        key = (group, topic, queue)
        of_queue = config.pop_in_flight_threshold - self._in_flight[key]
        if of_queue <= 0:
            self._full.add(key)
        return max(min(of_queue, total // 2 - self._of_group[group], total - self.messages), 0)

    def due_s(self, key: Key) -> float | None:
        """Loop time at which a checkpoint is due, or the wait of a queue ends; None if it is unknown."""
        return self._due_s.get(key)

    def next_due(self) -> tuple[float, Key] | None:
        """The loop time and key of what is due first; None if nothing is."""
        heap = self._heap
        while heap:
            due_s, _, key = heap[0]
            if self._due_s.get(key) == due_s:
                return due_s, key
            heapq.heappop(heap)
        return None

    def postpone(self, key: Key, due_s: float) -> None:
        """Try again at a later time what could not be done now."""
        if key in self._due_s:
            self._set_due(key, due_s)

    def _count(self, key: CheckpointKey, count: int) -> None:
        group, topic, queue = key[:3]
        place = (group, topic, queue)
        self.messages += count
        self._in_flight[place] += count
        self._of_group[group] += count
        if not self._in_flight[place]:
            del self._in_flight[place]
        if not self._of_group[group]:
            del self._of_group[group]
        if count < 0 and place in self._full and self.room(group, topic, queue):
            self._full.discard(place)
            self.on_room(group, topic)

    def _set_due(self, key: Key, due_s: float) -> None:
        first = self.next_due()
        due_s += ROUNDING_S
        self._serial += 1
        self._due_s[key] = due_s
        heapq.heappush(self._heap, (due_s, self._serial, key))
        if len(self._heap) > 2 * len(self._due_s) + SPARE:
            self._heap = [(at, number, one) for number, (one, at) in enumerate(self._due_s.items())]
            self._serial = len(self._heap)
            heapq.heapify(self._heap)
        if first is None or due_s < first[0]:
            self.on_earlier()


def order_wait_s(row: PopOrder, clock_ms: int) -> float:
    """How long a queue still waits for its consumer, by the wall clock, in seconds: until all of its messages
    that are not acknowledged may be given out again."""
    changed = dict(row.visible)
    times = [
        changed.get(offset, row.time + row.invisible) - clock_ms
        for offset in row.offsets
        if offset not in row.acked
    ]
    longest = max((at - row.time for at in changed.values()), default=0)
    return min(max(times, default=0), max(row.invisible, longest)) / 1000 if times and max(times) > 0 else 0.0
