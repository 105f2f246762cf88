"""Delivery of messages with a delay level when they are due, by the leader (ScheduleMessageService).

A delayed message is stored in a queue of SCHEDULE_TOPIC_XXXX. There is one queue for each level, so the first
message of a queue is the first to be due. To deliver it, the leader appends a new message for its real queue.
The same batch holds the operation that records how far the level has been delivered (`formats.state.delays`).
So a change of leader loses no message and delivers none twice. Only the heads of the queues are in memory.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from dledger._fast import FAST
from dledger.broker.commit_log import CommitLogWriter, Outgoing
from dledger.broker.core import Core, Members
from dledger.broker.filter.message_filter import ALL
from dledger.broker.schedule.delivery_pace import BATCH_BYTES, DeliveryPace
from dledger.broker.services import LeaderService
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.store.reader import GetResult, GetStatus
from dledger.broker.topic.deleted_messages import hosts_of, is_gone
from dledger.broker.topic.topic_names import SCHEDULE_TOPIC
from dledger.formats.properties import DELAY, REAL_QID, REAL_TOPIC, decode_properties, encode_properties
from dledger.formats.record import STORE_TIMESTAMP_AT, Record, decode_record
from dledger.formats.state import DELAYS, DELETIONS, MAX_LEVELS, DelayProgress
from dledger.log.reading import Rotten
from dledger.runtime.files import Buffer

if TYPE_CHECKING:
    from dledger._fast.compiled import Restored

_LONG = struct.Struct(">q")
BATCH_MESSAGES = 256
"""Largest number of messages that are read for one batch."""
SINGLE_MESSAGES = 32
"""Largest number of messages in one batch if each is decoded in Python. This takes about 1 ms of the event
loop."""
PROGRESS_BYTES = 512
"""Bytes reserved in a batch for the entry that records the progress of a level; that entry is always
smaller."""
RETRY_S = 0.1
"""Seconds between two attempts while the log accepts nothing, or while a due message cannot be read."""


class DelayService(LeaderService):
    """Runs one task for each level while this node leads."""

    def __init__(self, core: Core, members: Members) -> None:
        self._settings = core.settings
        self._reader = core.reader
        self._members = members
        self._log = core.env.log.child("delay")
        self._writer: CommitLogWriter | None = None
        self._arrived = [asyncio.Event() for _ in range(MAX_LEVELS)]
        self._pace = DeliveryPace(core.committed, lambda: core.store.applied_index)
        self._held: set[int] = set()
        """Levels that wait until messages are applied, because the limit of messages in flight is reached."""
        self._last = 0
        """The level that delivered last."""
        self._seen: dict[int, tuple[int, float]] = {}
        """Used for a level if the message at the head of its queue was stamped by a clock that is ahead of
        this leader's clock. Maps the level to an offset, and to the loop time since which this leader knows
        all messages below that offset."""
        self.delivered: int = 0
        """Number of messages delivered since start."""
        self.dropped: int = 0
        """Number of messages that could not be delivered, because they or their topic no longer exist."""

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._writer = writer
        self._seen.clear()
        self._pace.clear()
        self._held.clear()

    async def run(self) -> None:
        """See `LeaderService`."""
        async with asyncio.TaskGroup() as tasks:
            for level in range(1, MAX_LEVELS + 1):
                tasks.create_task(self._run_level(level), name=f"delay-level-{level}")

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the levels that wait, because messages were applied to these queues."""
        for queue in queues:
            if queue.topic == SCHEDULE_TOPIC and queue.queue_id < MAX_LEVELS:
                self._arrived[queue.queue_id].set()
        # In turns, because one level with much to deliver would otherwise keep all other levels waiting.
        for level in sorted(self._held, key=lambda level: (level <= self._last, level)):
            self._arrived[level - 1].set()
        self._held.clear()

    async def _run_level(self, level: int) -> None:
        arrived = self._arrived[level - 1]
        while True:
            arrived.clear()
            pause_s = await self._deliver(level)
            if pause_s is None:
                await arrived.wait()
            else:
                await asyncio.sleep(pause_s)

    async def _deliver(self, level: int) -> float | None:
        """Deliver due messages, at most one batch. Returns how long to wait, in seconds, or None to wait
        until the event of the level in `_arrived` is set."""
        writer = self._writer
        if writer is None:
            return None
        known = writer.pending[DELAYS].rows.get(level)
        offset = 0 if known is None else known.next
        if self._pace.full:
            self._held.add(level)
            return None
        try:
            result = await self._read(level, offset)
        except (OSError, Rotten) as error:
            self._log.warning(
                "delayed message cannot be read now, trying again", level=level, offset=offset, error=error
            )
            return RETRY_S
        if result.status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.OFFSET_OVERFLOW_ONE):
            return None
        if not writer.room or not writer.may_write(DelayProgress.operation):
            return RETRY_S
        if result.status is GetStatus.FOUND and self._pace.full:
            self._held.add(level)
            return None
        if result.status is not GetStatus.FOUND:
            # Retention removed messages before they were due. (No offset beyond the end was ever recorded.)
            lost = max(result.next_offset, result.min_offset) - offset
            self.dropped += max(lost, 0)
            self._log.error(
                "delayed messages lost: they expired before they were due", level=level, messages=lost
            )
            writer.append_op(DelayProgress(level, max(result.next_offset, offset + 1)).op())
            return 0.0
        clock_ms, loop_s = writer.clock_ms(), asyncio.get_running_loop().time()
        delays = self._settings.now.delay_levels
        delay_ms = delays[min(level, len(delays)) - 1]
        hosts = hosts_of(self._members)
        wait_s, plain = self._due(result, clock_ms, delay_ms)
        restored = self._plain(writer, plain)
        if restored is not None:
            self.delivered += restored.messages
            writer.add_restored(restored, [DelayProgress(level, offset + restored.taken).op()])
            self._last = level
            self._pace.added(writer.last_index, restored.size)
            return self._pace.between_s if restored.taken < len(plain) else wait_s
        due: list[Outgoing] = []
        count, wait_s, room = 0, 0.0, self._pace.room(writer) - PROGRESS_BYTES
        for part in result.parts[:SINGLE_MESSAGES]:
            record = decode_record(bytes(part))
            wait_s = (record.store_timestamp + delay_ms - clock_ms) / 1000
            if wait_s > delay_ms / 1000:
                wait_s = self._ahead_s(level, record.queue_offset, result.max_offset, delay_ms / 1000, loop_s)
            if wait_s > 0:
                break
            message = self._restored(writer, record, hosts)
            if message is not None:
                room -= message.size
                if room < 0 and due:
                    break  # the next batch has room for it
                due.append(message)
            count += 1
        if count:
            self._last = level
            self.delivered += len(due)
            ops = [DelayProgress(level, offset + count).op()]
            if due and due[0].size + PROGRESS_BYTES > writer.max_batch:
                writer.add_together(due, [])  # never happens with the limits of a real broker
                due = []
            writer.add_together(due, ops)
            self._pace.added(writer.last_index, sum(message.size for message in due))
        return max(wait_s, self._pace.between_s)

    def _due(self, result: GetResult, clock_ms: int, delay_ms: int) -> tuple[float, list[Buffer]]:
        """Return the seconds until the first message of `result` that is not due (0 if all are due), and the
        due messages before it. If the clock that stamped one of these messages was ahead of this leader's
        clock, return 0 and no messages."""
        due: list[Buffer] = []
        for part in result.parts:
            (stored,) = _LONG.unpack_from(part, STORE_TIMESTAMP_AT)
            wait_ms = stored + delay_ms - clock_ms
            if wait_ms > delay_ms:
                return 0.0, []
            if wait_ms > 0:
                return wait_ms / 1000, due
            due.append(part)
        return 0.0, due

    def _plain(self, writer: CommitLogWriter, due: list[Buffer]) -> Restored | None:
        """Return the plain messages at the front of `due`, converted by the compiled twin (`dledger._fast`).
        Returns None if the twin is not available or cannot convert the first message."""
        if FAST is None or not due or len(writer.pending[DELETIONS].rows):
            return None
        room = self._pace.room(writer) - PROGRESS_BYTES
        found = FAST.restore(due, writer.slots, (), None, True, room)
        return found if found.taken else None

    def _ahead_s(self, level: int, offset: int, end: int, delay_s: float, loop_s: float) -> float:
        """Return how many seconds a message still waits if the clock that stamped it is ahead of this
        leader's clock. Its delay then counts from the time at which this leader first saw the message.

        That time counts for all messages that were in the queue then, below `end`. For a message that was
        stored later, a new time is noted when the delivery reaches it. So no message is delivered early, and
        none waits longer than twice its delay.
        """
        seen_below, since_s = self._seen.get(level, (0, 0.0))
        if offset >= seen_below:
            seen_below, since_s = self._seen[level] = end, loop_s
        return since_s + delay_s - loop_s

    async def _read(self, level: int, offset: int) -> GetResult:
        most = SINGLE_MESSAGES if FAST is None else BATCH_MESSAGES
        where = SCHEDULE_TOPIC, level - 1, offset, most, BATCH_BYTES, ALL
        found = self._reader.get(*where)
        return await self._reader.get_cold(*where) if found is None else found

    def _restored(self, writer: CommitLogWriter, record: Record, hosts: Collection[bytes]) -> Outgoing | None:
        """Return the message for its real queue, or None if its topic no longer exists or was replaced by
        another topic of the same name. Returns None also for a topic that only the broker itself writes to,
        such as SCHEDULE_TOPIC_XXXX, because the message would wait there again, for ever."""
        properties = decode_properties(record.properties)
        properties.pop(DELAY, None)
        topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QID, "")
        slot = writer.open_slot(topic)
        if is_gone(writer.pending[DELETIONS].rows, properties, record.physical_offset, hosts):
            slot = None
        if slot is None or not slot.queues or not queue.isdecimal():
            self.dropped += 1
            self._log.error(
                "delayed message dropped: its topic does not exist", topic=topic, offset=record.queue_offset
            )
            return None
        text = encode_properties(properties).encode()
        return Outgoing.again(record, slot, int(queue) % slot.queues, text, record.reconsume_times)
