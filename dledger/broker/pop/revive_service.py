"""New delivery of popped messages that were not acknowledged (PopReviveService).

When the invisible time of a message is over, the message is copied to the retry topic of its group and topic.
The copy is in the same batch as the operation that removes the message from its checkpoint. So a change of
leader loses no message and copies none twice.
"""

from __future__ import annotations

import asyncio

from dledger.broker.commit_log import CommitLogWriter, Outgoing
from dledger.broker.core import Core
from dledger.broker.filter.message_filter import ALL
from dledger.broker.pop.pop_ledger import MAX_POP_ORDERS, PopLedger
from dledger.broker.services import LeaderService
from dledger.broker.store.reader import GetStatus
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import READ_WRITE
from dledger.formats.pop_handles import RETRY_PREFIX, retry_topic_v1, retry_topic_v2
from dledger.formats.properties import (
    FIRST_POP_TIME,
    MAX_PROPERTIES_SIZE,
    PROPERTY_SEPARATOR,
    encode_properties,
    find_property,
)
from dledger.formats.record import Record, decode_record
from dledger.formats.state import (
    POP_ORDERS,
    POPS,
    CheckpointKey,
    OrderKey,
    PopCheckpoint,
    TopicConfig,
    done_op,
)
from dledger.log.reading import Rotten
from dledger.remoting.errors import RemotingError
from dledger.runtime.cooperative import PAUSE_S

BATCH_BYTES = 256 * 1024
"""Limit, in bytes, of the messages that are copied in one batch. A larger message is copied alone."""
OPERATION_BYTES = 4096
"""Number of bytes that are reserved for the entry that removes messages from a checkpoint. The entry is
always smaller."""
WORK = 32
"""Number of messages and checkpoints that are processed in one turn of the event loop."""
RETRY_S = 0.1
"""Seconds until the next try if the log accepts nothing or a message cannot be read."""


class PopReviveService(LeaderService):
    """Delivers popped messages again when their invisible time is over. It is one task, which runs while this
    node leads."""

    def __init__(self, core: Core, creation: TopicCreation, pops: PopLedger) -> None:
        self._settings = core.settings
        self._creation = creation
        self._reader = core.reader
        self._store = core.store
        self._ledger = pops
        self._log = core.env.log.child("pop")
        self._earlier = asyncio.Event()
        self._ledger.on_earlier = self._earlier.set
        self._writer: CommitLogWriter | None = None
        self.revived: int = 0
        """Number of messages delivered again since the start."""
        self.dropped: int = 0
        """Number of messages that retention deleted before they could be delivered again."""

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._writer = writer

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None

    async def run(self) -> None:
        """See `LeaderService`."""
        loop = asyncio.get_running_loop()
        work = 0
        while True:
            self._earlier.clear()
            first = self._ledger.next_due()
            wait_s = None if first is None else first[0] - loop.time()
            if first is None or (wait_s is not None and wait_s > 0):
                try:
                    async with asyncio.timeout(wait_s):
                        await self._earlier.wait()
                except TimeoutError:
                    pass
                continue
            key, before = first[1], self.revived + self.dropped
            if len(key) == 3:
                self._free(key)
            else:
                await self._revive(key)
            work += 1 + self.revived + self.dropped - before
            if work >= WORK:
                work = 0
                await asyncio.sleep(PAUSE_S)

    def _free(self, key: OrderKey) -> None:
        """End the wait of a queue for its consumer."""
        writer = self._writer
        self._ledger.order_due(key)
        if writer is not None:
            rows = writer.pending[POP_ORDERS].rows
            if len(rows) > MAX_POP_ORDERS // 2 and key in rows and writer.room:
                self._ledger.logged(writer.append_op(POP_ORDERS.removal(key)))
        self._ledger.on_room(key[0], key[1])

    async def _revive(self, key: CheckpointKey) -> None:
        writer, loop = self._writer, asyncio.get_running_loop()
        row = None if writer is None else writer.pending[POPS].rows.get(key)
        if writer is None or row is None:
            self._ledger.done(key, 0, gone=True)
            return
        try:
            records = await self._records(row)
            row = writer.pending[POPS].rows.get(key)
            if writer is not self._writer or row is None:
                return
            if not writer.room:
                self._ledger.postpone(key, loop.time() + RETRY_S)
                return
            self._append(writer, row, records)
        except (OSError, Rotten, RemotingError) as error:
            self._log.warning(
                "popped message not made available again now, trying again",
                topic=key[1],
                offset=key[3],
                error=error,
            )
            self._ledger.postpone(key, loop.time() + RETRY_S)

    async def _records(self, row: PopCheckpoint) -> dict[int, Record | None]:
        """Return the messages of a checkpoint by offset, as many as fit into one batch. The value is None for
        a message that no longer exists."""
        records: dict[int, Record | None] = {}
        size = 0
        for offset in row.offsets:
            where = (row.topic, row.queue, offset, 1, 1, ALL)
            result = self._reader.get(*where) or await self._reader.get_cold(*where)
            record = decode_record(bytes(result.parts[0])) if result.parts else None
            if record is not None and record.queue_offset != offset:
                record = None
            if record is None and result.status is GetStatus.OFFSET_FOUND_NULL:
                raise OSError(f"offset {offset} of {row.topic}@{row.queue} has no unit in its ConsumeQueue")
            records[offset] = record
            size += 0 if record is None else record.size
            if size >= BATCH_BYTES:
                break
        return records

    def _append(self, writer: CommitLogWriter, row: PopCheckpoint, records: dict[int, Record | None]) -> None:
        copies: list[Outgoing] = []
        taken: list[int] = []
        room = writer.max_batch - OPERATION_BYTES
        for offset, record in records.items():
            if offset not in row.offsets:
                continue  # it was acknowledged meanwhile
            if record is None:
                self.dropped += 1
                self._log.error(
                    "popped message lost: it expired before it was available again",
                    topic=row.topic,
                    offset=offset,
                )
            else:
                copy = self._copy(writer, row, record)
                room -= copy.size
                if room < 0 and copies:
                    break
                copies.append(copy)
            taken.append(offset)
        if not taken:
            return
        index = writer.add_together(copies, [done_op(row.key, tuple(taken))])
        self._ledger.logged(index)
        self._ledger.done(row.key, len(taken), gone=len(taken) == len(row.offsets))
        self.revived += len(copies)

    def _copy(self, writer: CommitLogWriter, row: PopCheckpoint, record: Record) -> Outgoing:
        topic = row.topic
        if not topic.startswith(RETRY_PREFIX):
            name = retry_topic_v2 if self._settings.now.retry_topic_v2 else retry_topic_v1
            topic = name(row.topic, row.group)
        slot = writer.slot(topic)
        if slot is None:  # retry_topic_v2 changed since the pop
            self._creation.put_topic(writer, TopicConfig(topic, 1, 1, READ_WRITE), internal=True)
            slot = writer.slot(topic)
            assert slot is not None
        text = record.properties.encode()
        if find_property(text, FIRST_POP_TIME.encode()) is None:
            separator = "" if not text or text.endswith(b"\x02") else PROPERTY_SEPARATOR
            told = (separator + encode_properties({FIRST_POP_TIME: str(row.time)})).encode()
            if len(text) + len(told) <= MAX_PROPERTIES_SIZE:
                text += told
        return Outgoing.again(record, slot, 0, text, record.reconsume_times + 1)
