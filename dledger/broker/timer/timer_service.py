"""Delivery of timer messages when they are due, by the leader (TimerMessageStore).

To deliver a message, the leader appends a new message for its real queue. The same batch holds the operation
that records how far timers have been delivered (`formats.state.timers`). So a change of leader loses no
message and delivers none twice. The steps are:

1. The wheel (`timer_wheel`) knows which messages are due next. When the first of them is due, the leader
   claims the present time (`timer_claims`). Messages that it appends after that are due later.
2. The service waits until all entries from before the claim are applied. Then the wheel knows all messages
   that are due by the claimed time, and all recalls of these messages.
3. The messages are delivered in batches, in the order of their due times. Each batch records how far the
   delivery has come in that order.

A message that waits longer than `timerRollWindowSlot` is stored in the log again, so that retention can
remove the older part. The first row of the table `timers` has the offset of the first message that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dledger._fast import FAST
from dledger.broker.commit_log import CommitLogWriter, Outgoing, TopicSlot
from dledger.broker.core import Core
from dledger.broker.schedule.delivery_pace import BATCH_BYTES, DeliveryPace
from dledger.broker.services import LeaderService
from dledger.broker.store.consume_queue import ConsumeQueue, queue_dir
from dledger.broker.timer.timer_claims import TimerClaims
from dledger.broker.timer.timer_wheel import (
    NEAR_UNITS,
    NO_UNITS,
    Columns,
    Place,
    Progress,
    QueueUnits,
    Timer,
    Wheel,
    first_waiting,
    look,
)
from dledger.broker.timer.waited import unpack_waited
from dledger.formats.consume_queue import UNIT_SIZE
from dledger.formats.properties import (
    MAX_PROPERTIES_SIZE,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_ROLL_TIMES,
    decode_properties,
    encode_properties,
    find_property,
)
from dledger.formats.record import Record, decode_record
from dledger.formats.state import DELETIONS, TIMER, TIMERS, Op, TimerProgress, was_deleted
from dledger.formats.state.timers import in_order
from dledger.formats.timers import TIMER_TOPIC
from dledger.log.reading import Rotten
from dledger.runtime.cooperative import PAUSE_S
from dledger.runtime.files import Buffer
from dledger.runtime.workers import Lane

if TYPE_CHECKING:
    from dledger._fast.compiled import Restored

BATCH_MESSAGES = 256
"""Largest number of messages in one batch if each is decoded in Python. This takes about 4 ms of the event
loop."""
FUSED_MESSAGES = 1024
"""Largest number of plain messages in one batch if the compiled twin converts them. This takes less than 1 ms
of the event loop."""
PROGRESS_BYTES = 4096
"""Bytes reserved in a batch for the entries that record the progress of timers. There is at most one such
entry for each row of the table."""
FOLLOWED_UNITS = 2048
"""Number of units of the ConsumeQueue that are examined in one turn of the loop."""
RETRY_S = 0.1
"""Seconds between two attempts while the log accepts nothing, or while a due message cannot be read."""
CLOCK_S = 1.0
"""Longest pause, in seconds, of the delivery, so that a jump of the clock is noticed in time."""
LOOK_AHEAD_MS = 10_000
"""Milliseconds before the last known message is due at which the service searches for the messages that
follow."""
KEEP_S = 10.0
"""Seconds between two checks of the oldest message that waits."""
ROLL_AHEAD_MS = 60_000
"""Messages that are due within this time, in ms, or within a quarter of `timerRollWindowSlot` if that is
less, are not stored in the log again."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A delivery in progress: all messages due up to `until`, a time in ms. Their queue offsets are below
    `end`."""

    until: int
    end: int


class TimerService(LeaderService):
    """Runs two tasks while this node leads. One delivers due messages. The other stores messages again if
    they wait for long."""

    def __init__(self, core: Core, timers: TimerClaims) -> None:
        self._env = core.env
        self._settings = core.settings
        self._store = core.store
        self._reader = core.reader
        self._claims = timers
        self._log = core.env.log.child("timer")
        self._wake = asyncio.Event()
        self._writer: CommitLogWriter | None = None
        self._wheel: Wheel | None = None
        self._looking: asyncio.Task[None] | None = None
        self._due: _Due | None = None
        self._ready: Columns = NO_UNITS
        """Units (of the ConsumeQueue) that were taken from the wheel. Their messages are delivered next."""
        self._recalled: dict[int, set[tuple[str, str]]] = {}
        """Recalls for the delivery in progress. Maps a due time to pairs of the real topic and the unique key
        of a recalled message."""
        self._most: int = FUSED_MESSAGES if FAST is not None else BATCH_MESSAGES
        """Number of messages to examine for the next batch."""
        self._pace = DeliveryPace(core.committed, lambda: self._store.applied_index)
        self.delivered: int = 0
        """Number of messages delivered since start."""
        self.recalled: int = 0
        """Number of messages that were not delivered because they were recalled."""
        self.rolled: int = 0
        """Number of messages and recalls that were stored in the log again."""
        self.dropped: int = 0
        """Number of messages that could not be delivered, because they or their topic no longer exist."""

    @property
    def waiting(self) -> int:
        """Approximate number of messages that wait, as far as the leader knows; 0 on other nodes."""
        return 0 if self._writer is None else self._claims.waiting

    # -- leadership -----------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._writer = writer
        self._forget()

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None
        self._forget()

    def _forget(self) -> None:
        self._wheel = None
        self._looking = None
        self._due = None
        self._ready = NO_UNITS
        self._recalled = {}
        self._pace.clear()

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the delivery if it waits for these messages, or for the messages of its own batches, to be
        applied."""
        if self._pace.waits or (
            self._writer is not None and any(queue.topic == TIMER_TOPIC for queue in queues)
        ):
            self._wake.set()

    async def run(self) -> None:
        """See `LeaderService`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(), name="timers-kept")
            while True:
                self._wake.clear()
                try:
                    pause_s = await self._turn(tasks)
                except (OSError, Rotten) as error:
                    self._log.warning("timer messages cannot be read now, trying again", error=error)
                    pause_s = RETRY_S
                if pause_s == 0:
                    await asyncio.sleep(pause_s)  # let other tasks run between two batches
                    continue
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass  # the pause is over, as usual

    # -- delivery -------------------------------------------------------------------------------------

    async def _turn(self, tasks: asyncio.TaskGroup) -> float | None:
        """Deliver due messages, at most one batch. Returns how long to wait, in seconds, or None to wait
        until a message arrives."""
        writer, queue = self._writer, self._store.queues.get(TIMER_TOPIC, 0)
        if writer is None or queue is None or not queue.bounds.next:
            return None
        if not writer.pending[TIMERS].rows:
            # There are messages but no row: a program that wrote no rows imported them. None was delivered.
            if not writer.room or not writer.may_write(TIMER):
                return RETRY_S
            writer.append_op(TimerProgress(0).op())
        if self._wheel is None:
            await self._look(writer, queue)
            return 0.0
        wheel = self._wheel
        await self._follow(wheel, queue, writer)
        if wheel is not self._wheel or (self._due is None and wheel.seen < queue.bounds.next):
            return 0.0
        first = int(self._ready.due[0]) if len(self._ready) else wheel.next_due()
        now_ms = writer.clock_ms()
        if self._due is None and (first is None or first > now_ms):
            return self._wait_s(wheel, first, now_ms, tasks, writer, queue)
        if self._due is None:
            self._claims.claim(now_ms)
            slot = writer.slot(TIMER_TOPIC)
            assert slot is not None  # every broker has it
            self._due = _Due(now_ms, slot.next[0])
        if queue.bounds.next < self._due.end or wheel.seen < self._due.end:
            return CLOCK_S if queue.bounds.next < self._due.end else 0.0
        self._look_ahead(wheel, now_ms, tasks, writer, queue)
        if self._pace.full:
            return CLOCK_S  # or until something is applied
        return await self._deliver(writer, wheel, self._due)

    def _wait_s(
        self,
        wheel: Wheel,
        first: int | None,
        now_ms: int,
        tasks: asyncio.TaskGroup,
        writer: CommitLogWriter,
        queue: ConsumeQueue,
    ) -> float | None:
        self._look_ahead(wheel, now_ms, tasks, writer, queue)
        if first is None:
            return None if wheel.complete else CLOCK_S
        return min((first - now_ms) / 1000, CLOCK_S)

    def _look_ahead(
        self,
        wheel: Wheel,
        now_ms: int,
        tasks: asyncio.TaskGroup,
        writer: CommitLogWriter,
        queue: ConsumeQueue,
    ) -> None:
        """Start a search for the messages that are due next, if few are left in memory or if the last of
        these is due soon."""
        if wheel.complete or self._looking is not None:
            return
        if wheel.count < NEAR_UNITS // 4 or wheel.horizon[0] - now_ms < LOOK_AHEAD_MS:
            self._looking = tasks.create_task(self._look_behind(writer, queue), name="timers-looked-for")

    async def _look_behind(self, writer: CommitLogWriter, queue: ConsumeQueue) -> None:
        try:
            await self._look(writer, queue)
        except OSError as error:
            self._log.warning("search for timer messages failed, trying again", error=error)
            await asyncio.sleep(RETRY_S)
        if self._writer is writer:
            self._looking = None
            self._wake.set()

    async def _look(self, writer: CommitLogWriter, queue: ConsumeQueue) -> None:
        progress = Progress(list(writer.pending[TIMERS].rows.values()))
        units = self._units(queue, progress.begin)
        run = self._env.workers.run
        found = await run(Lane.DISK, look, self._env.files, units, progress, NEAR_UNITS)
        if self._writer is not writer:
            return
        self._wheel = Wheel.of(found)
        self._claims.waiting = found.waiting
        self._ready = NO_UNITS  # the search has found them again

    def _units(self, queue: ConsumeQueue, first: int) -> QueueUnits:
        bounds, flushed = queue.bounds, queue.flushed
        tail = queue.read_hot(flushed, bounds.next - flushed)
        assert tail is not None  # units that are not in files are in memory
        directory = queue_dir(self._store.queue_root, queue.topic, queue.queue_id)
        return QueueUnits(directory, max(first, bounds.min), flushed, bounds.next, tail)

    async def _follow(self, wheel: Wheel, queue: ConsumeQueue, writer: CommitLogWriter) -> None:
        """Add to the wheel the units that were applied since the last call, at most `FOLLOWED_UNITS`."""
        if wheel.seen >= queue.bounds.next:
            return
        progress = Progress(list(writer.pending[TIMERS].rows.values()))
        units = await self._reader.units(
            queue, wheel.seen, min(queue.bounds.next - wheel.seen, FOLLOWED_UNITS)
        )
        if not units:
            raise OSError(f"{TIMER_TOPIC} has no unit {wheel.seen}")
        wheel.arrive(units, progress)
        self._claims.waiting += len(units) // UNIT_SIZE

    async def _deliver(self, writer: CommitLogWriter, wheel: Wheel, due: _Due) -> float:
        """Deliver one batch. Returns how long to wait, in seconds."""
        if not len(self._ready):
            self._ready = wheel.take(due.until, FUSED_MESSAGES if FAST is not None else BATCH_MESSAGES)
        ready = self._ready[: self._most]
        whose = self._ready
        if len(ready):
            for past in [time for time in self._recalled if time < ready.due[0]]:
                del self._recalled[past]
            await self._hear_recalls(wheel, int(ready.due[-1]))
        places = list(zip(ready.position.tolist(), ready.size.tolist(), strict=True))
        records: Sequence[Buffer | None] | None = self._reader.views(places)
        if records is None:
            records = await self._reader.records(places)
        if self._writer is not writer or self._ready is not whose:
            return 0.0
        if not writer.room or not writer.may_write(TIMER):
            return RETRY_S
        progress = Progress(list(writer.pending[TIMERS].rows.values()))
        restored = self._restored(writer, progress, ready, records)
        messages: list[Outgoing] = []
        if restored is None:
            messages, count = self._one_by_one(writer, progress, ready, records)
            came, size = len(messages), sum(message.size for message in messages)
        else:
            count, came, size = restored.taken, restored.messages, restored.size
            self.recalled += restored.recalled
        self._ready = whose[count:]
        following = int(self._ready.due[0]) if len(self._ready) else wheel.next_due()
        whole = (following is None or following > due.until) and wheel.horizon[0] > due.until
        if whole:
            place: Place = (due.until, due.end)
        elif count:
            place = (int(ready.due[count - 1]), int(ready.offset[count - 1]) + 1)
        else:
            return CLOCK_S  # until a search has found the remaining units
        ops = self._moved(progress.rows, place, due.end)
        if restored is None:
            self._append(writer, messages, ops)
        else:
            writer.add_restored(restored, ops)
        self._pace.added(writer.last_index, size)
        self.delivered += came
        self._claims.waiting = max(self._claims.waiting - count, 0)
        if whole:
            self._due = None
            self._claims.delivering = 0
            self._recalled = {}
        return 0.0

    def _restored(
        self,
        writer: CommitLogWriter,
        progress: Progress,
        ready: Columns,
        records: Sequence[Buffer | None],
    ) -> Restored | None:
        """Return the plain messages at the front of `ready`, converted by the compiled twin. Returns None if
        the twin cannot convert them; then `_one_by_one` does it."""
        if FAST is None or not len(ready) or not progress.all_wait(ready):
            return None
        recalled = list(map(self._recalled.get, ready.due.tolist())) if self._recalled else None
        room = self._pace.room(writer) - PROGRESS_BYTES
        deleted = writer.pending[DELETIONS].rows
        found: Restored = FAST.restore(records, writer.slots, deleted, recalled, False, room)
        if not found.taken:
            self._most = BATCH_MESSAGES
            return None
        # Examine as many as there is room for, and a few more, because examining a message costs time.
        whole = found.taken == len(ready)
        self._most = min(2 * self._most, FUSED_MESSAGES) if whole else found.taken + found.taken // 8 + 8
        return found

    def _one_by_one(
        self,
        writer: CommitLogWriter,
        progress: Progress,
        ready: Columns,
        records: Sequence[Buffer | None],
    ) -> tuple[list[Outgoing], int]:
        """Return the messages to deliver, and how many units of `ready` were processed for them."""
        messages: list[Outgoing] = []
        count, room = 0, self._pace.room(writer) - PROGRESS_BYTES
        for one, data in zip(ready.timers(0, BATCH_MESSAGES), records, strict=False):
            if progress.waits(one.due, one.offset):
                message = self._message(writer, one, data)
                if message is not None:
                    room -= message.size
                    if room < 0 and messages:
                        break  # the next batch has room for it
                    messages.append(message)
            count += 1
        return messages, count

    def _append(self, writer: CommitLogWriter, messages: list[Outgoing], ops: list[Op]) -> None:
        if messages and messages[0].size + PROGRESS_BYTES > writer.max_batch:
            writer.add_together(messages, [])  # never happens with the limits of a real broker
            messages = []
        if messages or ops:
            writer.add_together(messages, ops)

    def _moved(self, rows: list[TimerProgress], place: Place, end: int) -> list[Op]:
        """Return the operations that record which messages are delivered: those with a queue offset below
        `end` that come before `place` in the order of delivery. A later row of the table is never ahead of an
        earlier row. Rows that reach the same place are merged."""
        reached = [row for row in rows if row.begin < end and row.place <= place]
        if not reached:
            return []
        first = reached[0]
        ops: list[Op] = [TimerProgress(first.begin, *place).op()] if first.place != place else []
        return ops + [TIMERS.removal(row.begin) for row in reached[1:]]

    def _message(self, writer: CommitLogWriter, one: Timer, data: Buffer | None) -> Outgoing | None:
        """Return the message for its real queue, or None if it is not delivered."""
        if data is None:
            self.dropped += 1
            self._log.error(
                "timer message lost: it expired before it was due", offset=one.offset, due=one.due
            )
            return None
        waited = unpack_waited(bytes(data))
        recalled = self._recalled.get(one.due)
        if recalled and (waited.topic, waited.key) in recalled:
            self.recalled += 1
            return None
        slot = writer.slots.get(waited.topic) or writer.open_slot(waited.topic)
        if was_deleted(writer.pending[DELETIONS].rows, waited.topic, one.position):
            slot = None  # a topic of that name is not the one that it waited for
        if slot is None or not slot.queues or not waited.queue.isdecimal():
            self.dropped += 1
            self._log.error(
                "timer message dropped: its topic does not exist", topic=waited.topic, offset=one.offset
            )
            return None
        return waited.to(slot, int(waited.queue) % slot.queues)

    async def _hear_recalls(self, wheel: Wheel, until_ms: int) -> None:
        """Read the recalls of messages due up to `until_ms`. If they cannot be read now, a new search finds
        them again."""
        recalls = wheel.take_recalls(until_ms)
        for start in range(0, len(recalls), BATCH_MESSAGES):
            some = recalls[start : start + BATCH_MESSAGES]
            try:
                records = await self._reader.records([(one.position, one.size) for one in some])
            except (OSError, Rotten):
                if wheel is self._wheel:
                    self._wheel = None
                raise
            for one, data in zip(some, records, strict=True):
                if data is not None:
                    properties = decode_properties(decode_record(data).properties)
                    key = properties.get(REAL_TOPIC, ""), properties.get(TIMER_DEL_UNIQKEY, "")
                    self._recalled.setdefault(one.due, set()).add(key)
            if start:
                await asyncio.sleep(PAUSE_S)

    # -- what waits for long --------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            now = self._settings.now
            try:
                pause_s = await self._advance()
            except (OSError, Rotten) as error:
                self._log.warning(
                    "timer messages that are due later cannot be read now, trying again", error=error
                )
                pause_s = KEEP_S
            window_s = now.timer_roll_window_slots * now.timer_precision_ms / 1000
            await asyncio.sleep(min(pause_s, max(window_s / 4, RETRY_S)))

    async def _advance(self) -> float:
        """Record in the table which message is the first that waits. If this message is old, store it again
        first. Returns how long to wait, in seconds."""
        writer, wheel = self._writer, self._wheel
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if writer is None or queue is None or wheel is None or not writer.pending[TIMERS].rows:
            return KEEP_S
        progress = Progress(list(writer.pending[TIMERS].rows.values()))
        passed_ms = self._passed_ms(writer, wheel, queue)
        units = self._units(queue, progress.begin)
        run = self._env.workers.run
        first = await run(Lane.DISK, first_waiting, self._env.files, units, progress, passed_ms)
        if self._writer is not writer or not writer.room or not writer.may_write(TIMER):
            return KEEP_S
        rolled = await self._roll(writer, queue, first, units.end, passed_ms)
        if self._writer is not writer or not writer.room:
            return KEEP_S
        rows = in_order(writer.pending[TIMERS].rows.values())
        begin = first if rolled is None else rolled[1]
        ops = _begun(rows, begin)
        if rolled is not None:
            self._append(writer, rolled[0], ops)
            self.rolled += len(rolled[0])
            self._claims.waiting -= len(rolled[0])  # the copies are counted again when they arrive
            return 0.0
        if ops:
            writer.add_together([], ops)
        return KEEP_S

    def _passed_ms(self, writer: CommitLogWriter, wheel: Wheel, queue: ConsumeQueue) -> int:
        """Return a time in ms such that all messages of the queue due up to that time are delivered; 0 if no
        such time is known."""
        if self._due is not None or len(self._ready) or wheel.seen < queue.bounds.next:
            return 0
        known = wheel.next_due()
        latest = wheel.horizon[0] if known is None else known
        return min(writer.clock_ms(), latest - 1)

    async def _roll(
        self, writer: CommitLogWriter, queue: ConsumeQueue, first: int, end: int, passed_ms: int
    ) -> tuple[list[Outgoing], int] | None:
        """Return copies of old messages from offset `first` on, and the offset just after the last of these
        messages. The caller stores the copies in the log in the same turn of the loop. Returns None if there
        is nothing to do. A message for a deleted topic is not copied, so it is never delivered."""
        if first >= end:
            return None
        count = min(end - first, BATCH_MESSAGES)
        raw = await self._reader.units(queue, first, count)
        listed = Wheel.listed(raw, first)
        records = await self._reader.records([(one.position, one.size) for one, _ in listed])
        if self._writer is not writer:
            return None
        now = self._settings.now
        window_ms = now.timer_roll_window_slots * now.timer_precision_ms
        old_ms = writer.clock_ms() - window_ms
        soon_ms = max(writer.clock_ms(), self._claims.claimed, self._claims.delivering)
        soon_ms += min(ROLL_AHEAD_MS, window_ms // 4)
        progress = Progress(list(writer.pending[TIMERS].rows.values()))
        slot = writer.slot(TIMER_TOPIC)
        assert slot is not None  # every broker has it
        copies: list[Outgoing] = []
        gone = 0
        room, behind = min(writer.max_batch, BATCH_BYTES) - PROGRESS_BYTES, first
        for (one, recall), data in zip(listed, records, strict=True):
            waits = progress.waits(one.due, one.offset) and not (recall and one.due <= passed_ms)
            if waits and data is None:
                self.dropped += 1
                self._log.error(
                    "timer message lost: it expired before it was due", offset=one.offset, due=one.due
                )
            elif waits and data is not None:
                record = decode_record(data)
                if record.store_timestamp > old_ms or one.due <= soon_ms:
                    break
                real = find_property(record.properties.encode(), REAL_TOPIC.encode()) or b""
                if was_deleted(writer.pending[DELETIONS].rows, real.decode(), one.position):
                    gone += 1  # a copy would seem to be for a topic that was created later
                    behind = one.offset + 1
                    continue
                copy = _copy(record, slot)
                room -= copy.size
                if room < 0:
                    break
                copies.append(copy)
            behind = one.offset + 1
        self.dropped += gone
        return (copies, behind) if copies or gone else None


def _copy(record: Record, slot: TopicSlot) -> Outgoing:
    """Return a copy of a waiting message, due at the same time."""
    properties = decode_properties(record.properties)
    times = properties.get(TIMER_ROLL_TIMES, "0")
    properties[TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isdecimal() and len(times) < 9 else 1)
    text = encode_properties(properties).encode()
    if len(text) > MAX_PROPERTIES_SIZE:
        text = record.properties.encode()
    return Outgoing.again(record, slot, 0, text, record.reconsume_times)


def _begun(rows: list[TimerProgress], begin: int) -> list[Op]:
    """Return the operations that record that no message before offset `begin` waits."""
    before = [row for row in rows if row.begin <= begin]
    if not before or (before[-1].begin == begin and len(before) == 1):
        return []
    ops: list[Op] = [] if before[-1].begin == begin else [TimerProgress(begin, *before[-1].place).op()]
    return ops + [TIMERS.removal(row.begin) for row in before if row.begin != begin]
