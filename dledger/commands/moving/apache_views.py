"""Builds the ConsumeQueues and IndexFiles of an export as Apache's brokers build them from their log.
Blocking.

Apache's brokers would build them by themselves in the end. But a broker that starts without them

- sets the progress of its delay levels back to the end of queues that it takes for empty,
- dispatches from the log only when the next entry is committed (5.4), and
- never indexes messages before the end of its ConsumeQueues.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dledger.broker.schedule.delay_levels import DEFAULT_LEVELS, parse_levels
from dledger.broker.topic.topic_names import SCHEDULE_TOPIC
from dledger.commands.moving.staging import MovingFailed
from dledger.formats.consume_queue import FILE_SIZE, UNIT, UNIT_SIZE
from dledger.formats.index_file import (
    SLOTS,
    UNITS,
    IndexFileWriter,
    file_size,
    key_hash,
    message_keys,
)
from dledger.formats.message_ids import java_hash
from dledger.formats.properties import TAGS, find_property
from dledger.formats.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Record
from dledger.formats.store_files import segment_name
from dledger.runtime.files import OsFiles
from dledger.runtime.properties_file import read_properties
from dledger.runtime.settings import ConfigError

QUEUES_DIR, KEYS_DIR = "consumequeue", "index"
PRE_BLANK = UNIT.pack(0, 0x7FFFFFFF, 0)
"""Entry of a ConsumeQueue that Apache's brokers write before the first message of a queue that does not
begin at offset 0 (fillPreBlank)."""
SEGMENT_SIZE = 1 << 30
"""Default of Apache's setting mappedFileSizeCommitLog, in bytes."""
BUFFERED_UNITS = 200_000
_TAGS = TAGS.encode()


@dataclass(frozen=True)
class ApacheSizes:
    """File sizes from the configuration of an Apache broker. The broker's files must have these sizes."""

    queue_file: int = FILE_SIZE
    slots: int = SLOTS
    units: int = UNITS
    segment: int | None = None
    levels_ms: tuple[int, ...] = parse_levels(DEFAULT_LEVELS)


def read_sizes(path: str) -> ApacheSizes:
    """Read file sizes from the broker.conf of an Apache broker. Raises MovingFailed if the file, or a
    number in it, cannot be read.

    Since RocketMQ 4.5 Apache's broker reads only the names that are spelt with two p (`mapped...`), and so
    does this function. If the file says `maped...`, the default sizes are used.
    """
    try:
        # The last of two lines counts, as in java.util.Properties.
        values = {item.key: item.value for item in read_properties(OsFiles(), path, [])}
    except ConfigError as error:
        raise MovingFailed(str(error)) from error
    segment = values.get("mappedFileSizeCommitLog", SEGMENT_SIZE)
    queue_file = values.get("mappedFileSizeConsumeQueue", FILE_SIZE)
    try:
        return ApacheSizes(
            # MessageStoreConfig.getMappedFileSizeConsumeQueue rounds up to whole units.
            -(-int(queue_file) // UNIT_SIZE) * UNIT_SIZE,
            int(values.get("maxHashSlotNum", SLOTS)),
            int(values.get("maxIndexNum", UNITS)),
            int(segment),
            parse_levels(values.get("messageDelayLevel", DEFAULT_LEVELS)),
        )
    except ValueError as error:
        raise MovingFailed(f"{path}: {error}") from error


class ApacheViews:
    """Builds ConsumeQueues and IndexFiles, with the same content in several store directories."""

    def __init__(self, roots: Sequence[str], sizes: ApacheSizes) -> None:
        self._roots = list(roots)
        self._sizes = sizes
        self._queues: dict[tuple[str, int], tuple[int, bytearray]] = {}
        """Maps a queue to the offset of its first ConsumeQueue entry that is not written yet, and to the
        bytes of the entries from there on."""
        self._begun: set[tuple[str, int]] = set()
        self._waiting = 0
        self._written: dict[str, None] = {}
        """Paths of the ConsumeQueue files, in the order of their first write. They are fsynced at the end."""
        self._writer: IndexFileWriter | None = None
        self._maps: list[mmap.mmap] = []
        self._last_name = ""

    def add(self, record: Record) -> None:
        """Add the entries for the next message of the log to its ConsumeQueue and the IndexFile."""
        kind = record.sys_flag & TRANSACTION_MASK
        properties = record.properties.encode()
        if kind in (0, TRANSACTION_COMMIT):
            self._queue(record, properties)
            for key in message_keys(properties):
                self._index(key_hash(record.topic, key), record.physical_offset, record.store_timestamp)

    def _queue(self, record: Record, properties: bytes) -> None:
        if record.topic == SCHEDULE_TOPIC:
            levels = self._sizes.levels_ms
            code = record.store_timestamp + levels[min(max(record.queue_id, 0), len(levels) - 1)]
        else:
            tags = find_property(properties, _TAGS)
            code = java_hash(tags.decode(errors="replace")) if tags else 0
        queue = (record.topic, record.queue_id)
        known = self._queues.get(queue)
        if known is None:
            known = self._queues[queue] = (record.queue_offset, bytearray())
        known[1].extend(UNIT.pack(record.physical_offset, record.size, code))
        self._waiting += 1
        if self._waiting >= BUFFERED_UNITS:
            self._flush_queues()

    def _flush_queues(self) -> None:
        size = self._sizes.queue_file
        for (topic, queue_id), (first, data) in self._queues.items():
            at, view = first * UNIT_SIZE, memoryview(data)
            if (topic, queue_id) not in self._begun:
                self._begun.add((topic, queue_id))
                filler = PRE_BLANK * (at % size // UNIT_SIZE)
                if filler:
                    self._write_queue(topic, queue_id, at - at % size, filler)
            while view:
                room = size - at % size
                self._write_queue(topic, queue_id, at, view[:room])
                at += len(view[:room])
                view = view[room:]
        self._queues, self._waiting = {}, 0

    def _write_queue(self, topic: str, queue_id: int, at: int, data: bytes | memoryview) -> None:
        size = self._sizes.queue_file
        for root in self._roots:
            rest, place = memoryview(data), at % size
            directory = f"{root}/{QUEUES_DIR}/{topic}/{queue_id}"
            os.makedirs(directory, exist_ok=True)
            path = f"{directory}/{segment_name(at - at % size)}"
            self._written[path] = None
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.ftruncate(fd, size)
                while rest:
                    written = os.pwrite(fd, rest, place)
                    rest, place = rest[written:], place + written
            finally:
                os.close(fd)

    def _index(self, hashed: int, position: int, store_ms: int) -> None:
        writer = self._writer
        if writer is None or writer.full:
            writer = self._writer = self._next_file(store_ms, writer)
        writer.put(hashed, position, store_ms)

    def _next_file(self, store_ms: int, before: IndexFileWriter | None) -> IndexFileWriter:
        self._close_maps()
        name = (
            datetime.fromtimestamp(store_ms / 1000, UTC).strftime("%Y%m%d%H%M%S") + f"{store_ms % 1000:03d}"
        )
        if name <= self._last_name:
            name = str(int(self._last_name) + 1)
        self._last_name = name
        size = file_size(self._sizes.slots, self._sizes.units)
        for root in self._roots:
            os.makedirs(f"{root}/{KEYS_DIR}", exist_ok=True)
            fd = os.open(f"{root}/{KEYS_DIR}/{name}", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.ftruncate(fd, size)
                self._maps.append(mmap.mmap(fd, size))
            finally:
                os.close(fd)
        maps = self._maps[:]

        def write(at: int, data: bytes) -> None:
            for one in maps:
                one[at : at + len(data)] = data

        return IndexFileWriter(
            write, self._sizes.slots, self._sizes.units, None if before is None else before.header
        )

    def _close_maps(self) -> None:
        for one in self._maps:
            one.flush()
            one.close()
        self._maps = []

    def close(self) -> None:
        """Write everything that is still in memory, and make all files durable."""
        self._flush_queues()
        for path in self._written:
            fd = os.open(path, os.O_RDWR)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
        self._close_maps()
