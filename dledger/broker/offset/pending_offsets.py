"""Consumer offsets on the leader (ConsumerOffsetManager, safety.md S28).

Reported offsets are collected here and go into the log as one entry per group, at most every 200 ms; for each
queue the highest offset counts. A read waits until the offsets reported before it are applied, so it returns
neither an uncommitted offset (S25) nor an older one than its client reported. Offsets never decrease, except
by a logged reset, and an offset beyond the committed end is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.services import LeaderService
from dledger.broker.store.message_store import MessageStore
from dledger.formats.state import POP_ORDERS, RESETS, OffsetReset, OrderKey, heard_op, offsets_op
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection

MAX_ROWS = 1000
"""Most queues in one entry; a group with more takes several entries."""
MAX_RESETS = 10_000
"""Pairs of group and topic with a reset that no consumer has heard of; one more is refused (2)."""
Answer = Callable[[], None]
Waiter = tuple[Connection, Request, Answer]


class PendingOffsets(LeaderService):
    """Reported offsets that are not in the log yet, during one leadership."""

    def __init__(
        self, store: MessageStore, committed: PendingResponses, gate: LeaderGate, interval_s: float
    ) -> None:
        self._store = store
        self._committed = committed
        self._gate = gate
        self._interval_s = interval_s
        self._writer: CommitLogWriter | None = None
        self._offsets: dict[str, dict[tuple[str, int], int]] = {}
        self._logged: deque[tuple[int, str, dict[tuple[str, int], int]]] = deque()
        """(index, group, offsets) of entries that are not applied yet."""
        self._latest: dict[tuple[str, str, int], tuple[int, int]] = {}
        """(group, topic, queue id) -> (index, offset) of the last entry in `_logged` that has this queue."""
        self._waiters: dict[str, list[Waiter]] = {}
        """Two-way reports by group, answered when their entry is committed."""
        self._readers: dict[str, list[Waiter]] = {}
        """Reads by group that wait for offsets that are not logged yet."""
        self._reading: list[tuple[int, Waiter]] = []
        """Reads with an index, answered when the entry of that index is applied."""
        self.on_order_reset: Callable[[OrderKey, int], None] = lambda key, time_ms: None
        """Called with a queue that is popped in order, and the time of its last pop, when a reset ends its
        wait for acknowledgements."""
        self.reset_listeners: list[Callable[[str, str, Mapping[int, int]], None]] = []
        """Called with group, topic and new offsets by queue id when a reset that is announced is applied."""
        self.notify_consumers: Callable[[str, str, Mapping[int, int]], None] = lambda group, topic, news: None
        """Called in the same way after all `reset_listeners`: so a waiting pull is answered before its
        consumer is notified (220)."""

    def current(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group's offset as last reported, committed or not; None if it never reported one."""
        reported = self._offsets.get(group, {}).get((topic, queue_id))
        if reported is not None:
            return reported
        index, offset = self._latest.get((group, topic, queue_id), (-1, -1))
        if index > self._store.applied_index:
            return offset
        if self._writer is not None and topic in self._writer.fresh:
            return None
        return self._store.state.consumer_offset(group, topic, queue_id)

    def applied(self, index: int) -> None:
        """Entries up to `index` are applied: the state now has their offsets."""
        while self._logged and self._logged[0][0] <= index:
            _, group, offsets = self._logged.popleft()
            for topic, queue_id in offsets:
                if self._latest.get((group, topic, queue_id), (index + 1, 0))[0] <= index:
                    del self._latest[group, topic, queue_id]
        if self._reading:
            reading, self._reading = self._reading, []
            for at, waiter in reading:
                if at <= index:
                    waiter[2]()
                else:
                    self._reading.append((at, waiter))

    def report(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Note a reported offset. Returns False if it is beyond the committed end. While the group has not
        heard of a reset of the queue, the report is ignored: its sender does not know of the reset."""
        if offset > self.end_of(topic, queue_id):
            return False
        if self.unheard(group, topic, queue_id) is not None:
            return True
        current = self.current(group, topic, queue_id)
        if offset >= 0 and (current is None or offset > current):
            self._offsets.setdefault(group, {})[topic, queue_id] = offset
        return True

    def end_of(self, topic: str, queue_id: int) -> int:
        """Offset behind the last applied message of a queue; 0 if its topic was deleted since."""
        if self._writer is not None:
            return self._writer.next_applied(topic, queue_id)
        return self._store.state.next_offset(topic, queue_id)

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """A topic or a group is about to be deleted: forget what was reported for it."""
        if kind == "group":
            self._offsets.get(name, {}).clear()
            gone = [key for key in self._latest if key[0] == name]
        else:
            for offsets in self._offsets.values():
                for queue in [queue for queue in offsets if queue[0] == name]:
                    del offsets[queue]
            gone = [key for key in self._latest if key[1] == name]
        for key in gone:
            del self._latest[key]

    def reset(
        self, group: str, topic: str, offsets: Mapping[int, int], waiter: Waiter, *, announce: bool = True
    ) -> None:
        """Log new offsets (queue id -> offset) of a group in a topic, lower or higher, all or none; answer
        when they are applied.

        Offsets reported before are forgotten. RemotingError 2 or 14: nothing was done. `announce`: the
        connected consumers have to move there and are notified; without it the requester already knows. If a
        queue was set to the same offset before and no consumer has heard of that yet, they are not notified
        again: a consumer in Java pauses for 10 s each time.
        """
        writer = self._writer
        assert writer is not None  # whoever has a writer of now asks
        if not writer.room:
            raise writer.refused
        pending = writer.pending[RESETS].rows
        row = pending.get((group, topic))
        if announce and row is None and len(pending) >= MAX_RESETS:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_RESETS} resets wait until a consumer is notified of them, and that is the "
                "limit: start consumers of the groups that were reset",
            )
        rows = {(topic, queue): at for queue, at in offsets.items()}
        ops = [offsets_op(group, [(*queue, at) for queue, at in rows.items()], reset=True)]
        left = {} if row is None else {queue: at for queue, at in row.queues if queue not in offsets}
        news = {queue: at for queue, at in offsets.items() if row is None or row.offset(queue) != at}
        if announce:
            left.update(offsets)
        if left:
            writer.note_version(OffsetReset.operation)
            ops.append(OffsetReset(group, topic, tuple(sorted(left.items()))).op())
        elif row is not None:
            ops.append(RESETS.removal((group, topic)))
        orders = writer.pending[POP_ORDERS].rows
        keys = [(group, topic, queue) for queue in offsets]
        waiting = {key: orders[key].time for key in keys if key in orders}
        ops += [POP_ORDERS.removal(key) for key in waiting]  # the queue waits for nobody's acknowledgement
        index = writer.add_together((), ops)
        self.logged(index, group, rows)
        for key, time_ms in waiting.items():
            self.on_order_reset(key, time_ms)

        def done() -> None:
            if announce and news:
                for tell in (*self.reset_listeners, self.notify_consumers):
                    tell(group, topic, news)
            waiter[2]()

        self._reading.append((index, (waiter[0], waiter[1], done)))

    def logged(self, index: int, group: str, offsets: dict[tuple[str, int], int]) -> None:
        """Entry `index`, which another part of the broker wrote, sets these offsets: (topic, queue id) ->
        offset."""
        reported = self._offsets.get(group)
        if reported:
            for queue, offset in offsets.items():
                if queue in reported:
                    reported[queue] = offset
        self._note(index, group, offsets)

    def _note(self, index: int, group: str, offsets: dict[tuple[str, int], int]) -> None:
        self._logged.append((index, group, offsets))
        for (topic, queue_id), offset in offsets.items():
            self._latest[group, topic, queue_id] = (index, offset)

    def unheard(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a logged reset, committed or not, that no consumer of the group has followed yet;
        None if there is no such reset."""
        writer = self._writer
        if writer is None:
            return None
        rows = writer.pending[RESETS].rows
        row = rows.get((group, topic)) if rows else None
        return None if row is None else row.offset(queue_id)

    def comes_from(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """A consumer reads a queue from this offset on. Returns the offset where it has to go instead, or
        None if the offset is right or the reset is not committed yet. RemotingError 2 if there is no room to
        note that it has heard of the reset."""
        wanted = self.unheard(group, topic, queue_id)
        if wanted is None:
            return None
        row = self._store.state[RESETS].rows.get((group, topic))
        if row is None or row.offset(queue_id) != wanted:
            return None
        if offset != wanted:
            return wanted
        self.follow(group, topic, queue_id)
        return None

    def follow(self, group: str, topic: str, queue_id: int) -> None:
        """Note that the reader of a queue has heard of its reset. RemotingError 2 if there is no room for
        that."""
        wanted, writer = self.unheard(group, topic, queue_id), self._writer
        if wanted is None or writer is None:
            return
        if not writer.room:
            raise writer.refused
        writer.append_op(heard_op(group, topic, queue_id, wanted))

    def wait(self, group: str, connection: Connection, request: Request, answer: Answer) -> None:
        """Call `answer` when all offsets that the group has reported so far are committed."""
        if group in self._offsets:
            self._waiters.setdefault(group, []).append((connection, request, answer))
        else:  # nothing new: it is in the applied state, or will be in a moment
            logged = [index for index, name, _ in self._logged if name == group]
            self._when_applied(logged, (connection, request, answer))

    def read(
        self, group: str, queue: tuple[str, int], connection: Connection, request: Request, answer: Answer
    ) -> None:
        """Call `answer` when the state has the offsets reported so far for a queue (topic, queue id)."""
        if queue in self._offsets.get(group, ()):
            self._readers.setdefault(group, []).append((connection, request, answer))
        else:
            logged = [index for index, name, rows in self._logged if name == group and queue in rows]
            self._when_applied(logged, (connection, request, answer))

    def read_group(self, group: str, connection: Connection, request: Request, answer: Answer) -> None:
        """Call `answer` when the state has all offsets that a group has reported so far."""
        if self._offsets.get(group):
            self._readers.setdefault(group, []).append((connection, request, answer))
        else:
            logged = [index for index, name, _ in self._logged if name == group]
            self._when_applied(logged, (connection, request, answer))

    def read_all(self, connection: Connection, request: Request, answer: Answer) -> None:
        """Call `answer` when the state has the offsets of all groups. They are written now, as far as the log
        has room."""
        self.flush()
        self._when_applied([index for index, _, _ in self._logged], (connection, request, answer))

    def _when_applied(self, logged: list[int], waiter: Waiter) -> None:
        if logged:
            self._reading.append((logged[-1], waiter))
        else:
            waiter[2]()

    # -- service --------------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """Offsets reported from now on go to this leadership."""
        self._writer = writer

    async def run(self) -> None:
        """Write reported offsets to the log at intervals."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._gate.writer is not None:
                self.flush()

    def hand_over(self) -> None:
        """Write all reported offsets, so that the next leader knows them."""
        self.flush()

    def end(self, reason: str) -> None:
        """Forget everything; requests that wait for a commit are refused with the new leader's address, or
        forwarded."""
        self._writer = None
        waiters = [
            waiter for table in (self._waiters, self._readers) for some in table.values() for waiter in some
        ]
        waiters += [waiter for _, waiter in self._reading]
        for table in (self._waiters, self._readers, self._reading, self._offsets, self._logged, self._latest):
            table.clear()
        for connection, request, _ in waiters:
            self._gate.wait_or_refuse(connection, request)

    def flush(self) -> None:
        """Append all reported offsets. If the log has no room, they wait for the next call."""
        writer = self._writer
        if writer is None:
            return
        for group in list(self._offsets):
            if not writer.room:
                return
            offsets = self._offsets.pop(group)
            rows = [(topic, queue, at) for (topic, queue), at in offsets.items()]
            if not rows and group not in self._waiters and group not in self._readers:
                continue  # of a topic that is deleted
            index = -1
            for start in range(0, max(len(rows), 1), MAX_ROWS):
                index = writer.append_op(offsets_op(group, rows[start : start + MAX_ROWS]))
            self._note(index, group, offsets)
            for connection, request, answer in self._waiters.pop(group, ()):
                self._committed.add(index, connection, request, answer)
            self._reading += [(index, waiter) for waiter in self._readers.pop(group, ())]
