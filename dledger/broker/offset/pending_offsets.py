"""Consumer offsets on the leader that are not in the log yet (ConsumerOffsetManager, safety.md S28).

Offsets that consumers report are collected in this module. They are written to the log at most every 200 ms,
as one entry for each group. For each queue the highest offset counts. A read waits until the offsets reported
before it are applied. So it returns neither an uncommitted offset (S25) nor one that is older than the
client's own report. Offsets never decrease, except by a reset in the log. An offset beyond the committed end
of a queue is refused.
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
"""Largest number of queues in one entry; a group with more needs several entries."""
MAX_RESETS = 10_000
"""Largest number of pairs of group and topic with a reset of which no consumer has been informed yet. One
more reset is refused with code 2 SYSTEM_BUSY."""
Answer = Callable[[], None]
Waiter = tuple[Connection, Request, Answer]


class PendingOffsets(LeaderService):
    """Offsets that were reported to this leader and are not applied yet. The object is emptied when the
    leadership ends."""

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
        """Entries with offsets that are not applied yet, as (index, group, offsets)."""
        self._latest: dict[tuple[str, str, int], tuple[int, int]] = {}
        """Maps (group, topic, queue id) to (index, offset) of the last entry in `_logged` that contains this
        queue."""
        self._waiters: dict[str, list[Waiter]] = {}
        """Maps a group to two-way reports whose offsets are not in the log yet. They are answered when their
        entry is committed."""
        self._readers: dict[str, list[Waiter]] = {}
        """Maps a group to reads that wait for offsets which are not in the log yet."""
        self._reading: list[tuple[int, Waiter]] = []
        """Reads that wait for an entry, each with the index of the entry. They are answered when it is
        applied."""
        self.on_order_reset: Callable[[OrderKey, int], None] = lambda key, time_ms: None
        """Called if a reset ends the wait of a queue for acknowledgements of messages that were popped in
        order. The arguments are the queue and the time of its last pop."""
        self.reset_listeners: list[Callable[[str, str, Mapping[int, int]], None]] = []
        """Functions that are called when a reset with `announce` is applied. The arguments are group, topic,
        and a map from queue id to the new offset."""
        self.notify_consumers: Callable[[str, str, Mapping[int, int]], None] = lambda group, topic, news: None
        """Called after all `reset_listeners`, with the same arguments. So a waiting pull is answered before
        its consumer is notified (request 220 RESET_CONSUMER_CLIENT_OFFSET)."""

    def current(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that the group reported last, committed or not; None if it never reported one."""
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
        """Note that the entries up to `index` are applied, so that the state contains their offsets."""
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
        """Note an offset that a consumer reports. Returns False if it is beyond the committed end of the
        queue. After a reset of the queue, reports are ignored until a consumer has been informed of the
        reset, because their senders do not know of it."""
        if offset > self.end_of(topic, queue_id):
            return False
        if self.unheard(group, topic, queue_id) is not None:
            return True
        current = self.current(group, topic, queue_id)
        if offset >= 0 and (current is None or offset > current):
            self._offsets.setdefault(group, {})[topic, queue_id] = offset
        return True

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the offset behind the last applied message of a queue; 0 if its topic has been deleted
        since."""
        if self._writer is not None:
            return self._writer.next_applied(topic, queue_id)
        return self._store.state.next_offset(topic, queue_id)

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """Forget what was reported for a topic or a group that is about to be deleted."""
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
        """Append new offsets of a group in a topic to the log, all of them or none, and answer when they are
        applied. `offsets` maps queue ids to offsets, which may be lower or higher than before.

        Offsets that were reported before are forgotten. Raises RemotingError 2 or 14 if nothing was done.
        With `announce`, the connected consumers must move to the new offsets and are notified. Without it,
        only the client that sent the request needs to know. If a queue was set to the same offset before, and
        no consumer has been informed of that yet, the consumers are not notified of this queue again. A
        consumer in Java pauses for 10 s at each notice.
        """
        writer = self._writer
        assert writer is not None  # callers have the current writer
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
        ops += [POP_ORDERS.removal(key) for key in waiting]  # ends the queue's wait
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
        """Note that entry `index`, which another part of the broker wrote, sets offsets of a group. `offsets`
        maps (topic, queue id) to the offset."""
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
        """Return the offset of a reset in the log, committed or not, that no consumer of the group has
        followed yet (none has read from this offset). None if there is no such reset."""
        writer = self._writer
        if writer is None:
            return None
        rows = writer.pending[RESETS].rows
        row = rows.get((group, topic)) if rows else None
        return None if row is None else row.offset(queue_id)

    def comes_from(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Note that a consumer reads a queue from `offset` on. Returns the offset at which it must continue
        instead, or None if it may continue at `offset`. While a reset is not applied yet, the result is None.
        Raises RemotingError 2 SYSTEM_BUSY if the log has no room to note that the consumer has followed a
        reset."""
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
        """Note that the reader of a queue has followed its reset. Raises RemotingError 2 SYSTEM_BUSY if the
        log has no room for that."""
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
        else:  # all offsets are in the log already
            logged = [index for index, name, _ in self._logged if name == group]
            self._when_applied(logged, (connection, request, answer))

    def read(
        self, group: str, queue: tuple[str, int], connection: Connection, request: Request, answer: Answer
    ) -> None:
        """Call `answer` when the state contains the offsets of a queue (topic, queue id) that the group has
        reported so far."""
        if queue in self._offsets.get(group, ()):
            self._readers.setdefault(group, []).append((connection, request, answer))
        else:
            logged = [index for index, name, rows in self._logged if name == group and queue in rows]
            self._when_applied(logged, (connection, request, answer))

    def read_group(self, group: str, connection: Connection, request: Request, answer: Answer) -> None:
        """Call `answer` when the state contains all offsets that a group has reported so far."""
        if self._offsets.get(group):
            self._readers.setdefault(group, []).append((connection, request, answer))
        else:
            logged = [index for index, name, _ in self._logged if name == group]
            self._when_applied(logged, (connection, request, answer))

    def read_all(self, connection: Connection, request: Request, answer: Answer) -> None:
        """Call `answer` when the state contains the offsets of all groups. The reported offsets are appended
        to the log now, as far as it has room."""
        self.flush()
        self._when_applied([index for index, _, _ in self._logged], (connection, request, answer))

    def _when_applied(self, logged: list[int], waiter: Waiter) -> None:
        if logged:
            self._reading.append((logged[-1], waiter))
        else:
            waiter[2]()

    # -- service --------------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """Start as leader. From now on, reported offsets are accepted."""
        self._writer = writer

    async def run(self) -> None:
        """Write reported offsets to the log at intervals."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._gate.writer is not None:
                self.flush()

    def hand_over(self) -> None:
        """Write all reported offsets to the log, so that the next leader knows them."""
        self.flush()

    def end(self, reason: str) -> None:
        """Forget all reported offsets. The requests that wait are refused with the new leader's address, or
        forwarded to it."""
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
        """Append all reported offsets to the log. If the log has no room, they stay for the next call."""
        writer = self._writer
        if writer is None:
            return
        for group in list(self._offsets):
            if not writer.room:
                return
            offsets = self._offsets.pop(group)
            rows = [(topic, queue, at) for (topic, queue), at in offsets.items()]
            if not rows and group not in self._waiters and group not in self._readers:
                continue  # all were of a deleted topic
            index = -1
            for start in range(0, max(len(rows), 1), MAX_ROWS):
                index = writer.append_op(offsets_op(group, rows[start : start + MAX_ROWS]))
            self._note(index, group, offsets)
            for connection, request, answer in self._waiters.pop(group, ()):
                self._committed.add(index, connection, request, answer)
            self._reading += [(index, waiter) for waiter in self._readers.pop(group, ())]
