"""The leader's index of popped messages: which messages are invisible, and until when.

The tables in the replicated state (`formats.state.pop`) record which messages were given to which group. The
index contains what a leader must find quickly: what is due next, and how many messages of a queue a group has
in flight. It is rebuilt when a leadership begins, a limited number of rows at a time. Until it is complete,
no pop gets messages, and no message is delivered again.

Invisible time is measured by the event loop's clock. For messages that an earlier leader gave out, the due
time is computed from the wall clock, but it is never later than the full invisible time from now. So if a
wall clock was ahead, a message is delayed by at most its invisible time.
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
"""Largest number of queues in `freed`; beyond it the oldest is forgotten."""
SLICE = 1000
"""Number of rows that are loaded in one turn of the event loop at the beginning of a leadership, about 2
ms."""
ROUNDING_S = 0.001
"""Seconds that are added to each due time, because times in the log are rounded down to whole
milliseconds."""
SPARE = 4096
"""The heap is rebuilt if its outdated entries are more than the current entries plus this number."""

MAX_POP_ORDERS = 20_000
"""Largest number of pairs of a group and a queue that are popped in order. Pops of one more pair find
nothing. While there are more than half of this number, the row of a pair is removed when the queue's wait for
its consumer is over. The row counts how often each message was given out, so these counts are lost."""

Key = CheckpointKey | OrderKey


class PopLedger(LeaderService):
    """The index of popped messages. It contains the data of one leadership and is emptied between two
    leaderships."""

    def __init__(self, store: MessageStore, settings: LiveSettings[BrokerConfig]) -> None:
        self._store = store
        self._settings = settings
        self.writer: CommitLogWriter | None = None
        self.ready: bool = False
        """Whether all rows that earlier leaders wrote are loaded."""
        self.on_room: Callable[[str, str], None] = lambda group, topic: None
        """Called with a group and a topic if the group had too many messages of one of the topic's queues in
        flight, and now has room for more of them."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_earlier: Callable[[], None] = lambda: None
        """Called if a checkpoint or a queue is due earlier than all others that are known."""
        self._heap: list[tuple[float, int, Key]] = []
        self._due_s: dict[Key, float] = {}
        self._serial = 0
        self._in_flight: Counter[OrderKey] = Counter()
        self._of_group: Counter[str] = Counter()
        self.messages: int = 0
        """Number of messages that are invisible."""
        self._orders: dict[OrderKey, int] = {}
        """Maps each queue that is popped in order to the number of its messages that a consumer has in
        flight."""
        self.freed: dict[OrderKey, int] = {}
        """Maps queues that are popped in order to the time, in ms, of the last pop before a reset ended their
        wait. It keeps the last MAX_FREED of them."""
        self._full: set[OrderKey] = set()
        self._last_index = -1

    # -- service --------------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._forget()
        self.writer = writer

    async def run(self) -> None:
        """See `LeaderService`. Loads the rows that earlier leaders wrote."""
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
        """Forget the messages in flight of a topic or a group that is about to be deleted."""
        rows, due = writer.pending[POPS].rows, self._due_s
        gone: Counter[OrderKey] = Counter()
        for key in writer.pending.keys_of(POPS, kind, name):  # there may be 50,000 keys
            if due.pop(key, None) is not None:  # otherwise it is not loaded yet, and will not be
                gone[key[:3]] += len(rows[key].offsets)
        for (group, topic, queue), count in gone.items():
            self._count((group, topic, queue, 0, 0), -count)
        for order in writer.pending.keys_of(POP_ORDERS, kind, name):
            self.order_ended(order)

    # -- what is appended -------------------------------------------------------------------------------

    def gave(self, row: PopCheckpoint, due_s: float) -> None:
        """Note that a checkpoint was appended. Its messages are due at loop time `due_s`."""
        self._count(row.key, len(row.offsets))
        self._set_due(row.key, due_s)

    def done(self, key: CheckpointKey, count: int, *, gone: bool) -> None:
        """Note that `count` messages of a checkpoint were acknowledged or delivered again. `gone` says that
        they were the last ones."""
        if key not in self._due_s:
            return  # not loaded yet; it will be loaded without these
        self._count(key, -count)
        if gone:
            del self._due_s[key]

    def ordered(self, row: PopOrder, due_s: float) -> None:
        """Note that a queue waits for the consumer that has its messages, until loop time `due_s`."""
        self.messages += len(row.offsets) - self._orders.get(row.key, 0)
        self._orders[row.key] = len(row.offsets)
        self._set_due(row.key, due_s)

    def order_ended(self, key: OrderKey) -> None:
        """Note that no message of this queue is in flight any longer."""
        self._due_s.pop(key, None)
        self.messages -= self._orders.pop(key, 0)

    def order_reset(self, key: OrderKey, time_ms: int) -> None:
        """Note that a group's offset in this queue was reset, so that the next pop begins at the new offset.
        `time_ms` is the time of the last pop."""
        self.order_ended(key)
        self.freed.pop(key, None)
        self.freed[key] = time_ms
        if len(self.freed) > MAX_FREED:
            del self.freed[next(iter(self.freed))]
        self.on_room(key[0], key[1])

    def order_due(self, key: OrderKey) -> None:
        """Note that a queue no longer waits for its consumer. The next pop gets the messages again that are
        not acknowledged. The row of the queue stays, because it counts how often each message was given out,
        but no message of the queue is in flight."""
        self.order_ended(key)

    def logged(self, index: int) -> None:
        """Note the index of the newest operation on the tables."""
        self._last_index = index

    @property
    def unapplied(self) -> int | None:
        """Index of the newest operation on the tables if it is not applied yet, otherwise None."""
        return self._last_index if self._last_index > self._store.applied_index else None

    # -- questions --------------------------------------------------------------------------------------

    def room(self, group: str, topic: str, queue: int) -> int:
        """Return how many more messages of a queue this group may have in flight; 0 while the ledger is
        incomplete. All queues of a group together get at most half of the number that the broker allows for
        all groups. So a group whose consumers acknowledge nothing does not stop the other groups."""
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
        """Return the loop time at which a checkpoint is due, or at which the wait of a queue ends. None if
        the key is unknown."""
        return self._due_s.get(key)

    def next_due(self) -> tuple[float, Key] | None:
        """Return the loop time and the key of the checkpoint or queue that is due first; None if there is
        none."""
        heap = self._heap
        while heap:
            due_s, _, key = heap[0]
            if self._due_s.get(key) == due_s:
                return due_s, key
            heapq.heappop(heap)
        return None

    def postpone(self, key: Key, due_s: float) -> None:
        """Set a later due time for a checkpoint or queue that could not be handled now."""
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
    """Return how long a queue still waits for its consumer, in seconds by the wall clock. The wait ends when
    all of its messages that are not acknowledged may be given out again."""
    changed = dict(row.visible)
    times = [
        changed.get(offset, row.time + row.invisible) - clock_ms
        for offset in row.offsets
        if offset not in row.acked
    ]
    longest = max((at - row.time for at in changed.values()), default=0)
    return min(max(times, default=0), max(row.invisible, longest)) / 1000 if times and max(times) > 0 else 0.0
