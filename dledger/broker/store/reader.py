"""Reading messages: by queue offset, by time, by position (DefaultMessageStore.getMessage and others).

The hot path (`get`) runs on the event loop, over memory and mapped segments. It returns None if data must be
read from the device; the asynchronous `get_cold` then reads with the help of workers. Only applied entries
are visible (architecture rule 5).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dledger.broker.filter.message_filter import ALL, LOOK, NO, YES, MessageFilter
from dledger.broker.store.consume_queue import ConsumeQueue, queue_dir, read_units
from dledger.broker.store.message_store import MessageStore
from dledger.formats.consume_queue import UNIT, UNIT_SIZE
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.record import (
    MIN_SIZE,
    STORE_TIMESTAMP_AT,
    SYSTEM_TOPIC,
    CorruptRecord,
    Record,
    decode_record,
    raw_properties,
)
from dledger.formats.state import DELETIONS, was_deleted
from dledger.host import LogReader
from dledger.runtime.env import Env
from dledger.runtime.files import Buffer
from dledger.runtime.workers import Lane

MAX_SCAN_UNITS = 800
"""Largest number of units that one filtered read examines: 16,000 bytes of the ConsumeQueue, as in RocketMQ.
A read of more messages than this examines one unit for each message."""
MAX_LOOK_COST = 100_000
"""Limit of the cost of a filtered read, as `MessageFilter.cost` counts it in bytes of properties. This takes
about 5 ms of the event loop. A read at this limit returns the messages that it has found."""
MAX_GAP = 64 * 1024
"""Largest distance, in bytes, between two messages that are read from the device together, with the messages
of other queues between them."""
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")


class GetStatus(Enum):
    """Result of a read (GetMessageStatus). The name of the status becomes the remark of the answer."""

    FOUND = 1
    NO_MATCHED_MESSAGE = 2
    MESSAGE_WAS_REMOVING = 3
    OFFSET_FOUND_NULL = 4
    OFFSET_OVERFLOW_BADLY = 5
    OFFSET_OVERFLOW_ONE = 6
    OFFSET_TOO_SMALL = 7
    NO_MATCHED_LOGIC_QUEUE = 8
    NO_MESSAGE_IN_QUEUE = 9


@dataclass(slots=True)
class GetResult:
    """Result of a read. `parts` are whole records, as views or bytes; the next read continues at
    `next_offset`."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    parts: list[Buffer] = field(default_factory=list)
    size: int = 0


class Reader:
    """Reads messages from a `MessageStore` and its log."""

    def __init__(self, env: Env, store: MessageStore, log: LogReader) -> None:
        self._env = env
        self._store = store
        self._log = log

    def get(
        self, topic: str, queue_id: int, offset: int, count: int, size: int, wanted: MessageFilter
    ) -> GetResult | None:
        """Return messages from `offset` on that match the filter: up to `count` messages or `size` bytes, but
        at least one message. Returns None if data must be read from the device; the caller then uses
        `get_cold`."""
        queue = self._store.queues.get(topic, queue_id)
        outside = _outside(queue, offset)
        if outside is not None:
            return outside
        assert queue is not None
        units = queue.read_hot(offset, _scanned(count, wanted))
        if units is None:
            return None
        view = self._log.view
        looks = _select(units, offset, count, size, wanted)
        try:
            place = next(looks)
            while True:
                record = view(place[1], place[2])
                if record is None:
                    return None
                place = looks.send(record)
        except StopIteration as end:
            selected: _Selected = end.value
        parts: list[Buffer] = []
        following = selected.following
        total = selected.size
        for at, position, length in selected.chosen:
            part = view(position, length)
            if part is None:
                if not parts:
                    return None
                following, total = at, sum(map(len, parts))
                break
            parts.append(part)
        return _found(queue, following, parts, total)

    async def get_cold(
        self, topic: str, queue_id: int, offset: int, count: int, size: int, wanted: MessageFilter
    ) -> GetResult:
        """Return messages as `get` does, and read them from the device if necessary, with the help of
        workers."""
        queue = self._store.queues.get(topic, queue_id)
        outside = _outside(queue, offset)
        if outside is not None:
            return outside
        assert queue is not None
        units = await self.units(queue, offset, _scanned(count, wanted))
        if not units:
            bounds = queue.bounds
            return GetResult(GetStatus.OFFSET_FOUND_NULL, offset, bounds.min, bounds.next)
        looks = _select(units, offset, count, size, wanted)
        looked_at = (offset, -1)
        try:
            try:
                place = next(looks)
                while True:
                    looked_at = place[0], place[1]
                    place = looks.send(await self._read(place[1], place[2]))
            except StopIteration as end:
                selected: _Selected = end.value
            if selected.chosen:
                looked_at = selected.chosen[0][0], selected.chosen[0][1]
            parts = await self._records([(position, length) for _, position, length in selected.chosen])
        except ValueError:
            first, position = looked_at
            if position >= self._log.begin_pos:
                raise
            # Retention has removed the first message; those after it may still exist.
            bounds = queue.bounds
            following = max(first + 1, bounds.min)
            return GetResult(GetStatus.MESSAGE_WAS_REMOVING, following, bounds.min, bounds.next)
        return _found(queue, selected.following, parts, selected.size)

    def first_is_hot(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is empty, or still begins at offset 0 with its first message in memory. The
        answer to 14 QUERY_CONSUMER_OFFSET depends on this."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or queue.bounds.next == 0:
            return True
        bounds = queue.bounds
        return bounds.min == 0 and self._log.is_hot(bounds.first_position)

    async def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool) -> int:
        """Find an offset by a store time, `timestamp` (ms). With `upper` False: the offset of the first
        message stored at that time or later, or the end of the queue. With `upper` True: the offset of the
        last message stored at that time or earlier, or the beginning of the queue."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.bounds.min, queue.bounds.next
        while low < high:
            middle = (low + high) // 2
            stored = await self._store_time(queue, middle)
            if stored is None:
                low = middle + 1  # retention removed it since: it is older than all messages that are left
            elif stored < timestamp or (upper and stored == timestamp):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.bounds.min) if upper else low

    async def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the queue's first message in ms, or -1 if the queue has no message."""
        queue = self._store.queues.get(topic, queue_id)
        return -1 if queue is None else await self.store_time(topic, queue_id, queue.bounds.min)

    async def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of one message in ms, or -1 if it does not exist."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or not queue.bounds.min <= offset < queue.bounds.next:
            return -1
        stored = await self._store_time(queue, offset)
        return -1 if stored is None else stored

    async def oldest_time(self) -> int:
        """Return the store time of the oldest record of the log in ms, or -1 if there is none."""
        try:
            begin = self._log.begin_pos
            stored = await self._read(begin + HEADER_SIZE + STORE_TIMESTAMP_AT, _LONG.size)
            return int(_LONG.unpack(bytes(stored))[0])
        except (ValueError, struct.error):
            return -1

    async def message_at(self, position: int) -> tuple[bytes, Record] | None:
        """Return the record at a physical offset, as bytes and decoded. Returns None if no applied message of
        a user begins there, or if its topic was deleted."""
        end = self._store.dispatcher.applied_end
        if not 0 <= position <= end - MIN_SIZE:
            return None
        try:
            (size,) = _INT.unpack(bytes(await self._read(position, 4)))
            if not MIN_SIZE <= size <= end - position:
                return None
            data = bytes(await self._read(position, size))
            record = decode_record(data)
        except (ValueError, CorruptRecord):
            return None
        if record.physical_offset != position or record.topic == SYSTEM_TOPIC:
            return None
        if was_deleted(self._store.state[DELETIONS].rows, record.topic, position):
            return None
        return data, record

    async def _store_time(self, queue: ConsumeQueue, offset: int) -> int | None:
        units = await self.units(queue, offset, 1)
        if not units:
            return None
        position = UNIT.unpack_from(units)[0]
        try:
            (stored,) = _LONG.unpack(bytes(await self._read(position + STORE_TIMESTAMP_AT, _LONG.size)))
        except ValueError:
            return None
        return int(stored)

    async def units(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """Return up to `count` units of a ConsumeQueue from `offset` on. There may be fewer at the end of a
        file."""
        hot = queue.read_hot(offset, count)
        if hot is not None:
            return hot
        directory = queue_dir(self._store.queue_root, queue.topic, queue.queue_id)
        wanted = min(count, queue.flushed - offset)
        units = await self._env.workers.run(Lane.DISK, read_units, self._env.files, directory, offset, wanted)
        if self._store.queues.get(queue.topic, queue.queue_id) is not queue:
            return b""  # deleted since: the units may belong to a new topic of that name
        got = len(units) // UNIT_SIZE
        if 0 < got < count:  # the rest may be in memory
            units += queue.read_hot(offset + got, count - got) or b""
        return units

    async def records(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the records at these places (position, size), which may be in any order. A record that the
        log no longer holds is None."""
        view = self._log.view
        found: list[bytes | None] = []
        cold: list[tuple[int, int, int]] = []
        for number, (position, size) in enumerate(places):
            part = view(position, size)
            found.append(None if part is None else bytes(part))
            if part is None:
                cold.append((position, size, number))
        cold = sorted(one for one in cold if one[0] >= self._log.begin_pos)
        if cold:
            try:
                parts = await self._records([(position, size) for position, size, _ in cold])
            except ValueError:
                if cold[0][0] >= self._log.begin_pos:
                    raise OSError(f"the log does not hold the bytes at {cold[0][0]}") from None
                return await self.records(places)  # retention was faster
            for (_, _, number), data in zip(cold, parts, strict=True):
                found[number] = bytes(data)
        return found

    def views(self, places: Sequence[tuple[int, int]]) -> list[memoryview] | None:
        """Return views of records if all of them are in memory; otherwise return None, and the caller uses
        `records`. The views are valid until the next turn of the event loop. Records close to each other, as
        most are, are looked up together."""
        found: list[memoryview] = []
        size_of_segment = self._log.segment_size
        while len(found) < len(places):
            start, size = places[len(found)]
            segment_end = start - start % size_of_segment + size_of_segment
            end, behind = start + size, len(found) + 1
            while behind < len(places):
                position, size = places[behind]
                if not 0 <= position - end <= MAX_GAP or position >= segment_end:
                    break
                end, behind = position + size, behind + 1
            data = self._log.view(start, end - start)
            if data is None:  # not all of it can be viewed at once
                data, behind = self._log.view(*places[len(found)]), len(found) + 1
                if data is None:
                    return None
            found += [data[at - start : at - start + size] for at, size in places[len(found) : behind]]
        return found

    async def _records(self, chosen: list[tuple[int, int]]) -> list[Buffer]:
        parts: list[Buffer] = []
        at = 0
        while at < len(chosen):
            start = chosen[at][0]
            end = start
            run = at
            segment_end = start - start % self._log.segment_size + self._log.segment_size
            while run < len(chosen) and chosen[run][0] - end <= MAX_GAP and chosen[run][0] < segment_end:
                end = chosen[run][0] + chosen[run][1]
                run += 1
            data = memoryview(await self._read(start, end - start))
            parts += [data[position - start : position - start + size] for position, size in chosen[at:run]]
            at = run
        return parts

    async def _read(self, position: int, size: int) -> Buffer:
        hot = self._log.view(position, size)
        return hot if hot is not None else await self._log.read(position, size)


class _Selected(NamedTuple):
    """The messages that a read takes. `chosen`: queue offset, position and size of each; `following`: the
    offset at which the next read continues; `size`: the bytes of all these messages."""

    chosen: list[tuple[int, int, int]]
    following: int
    size: int


def _select(
    units: bytes, offset: int, count: int, size: int, wanted: MessageFilter
) -> Generator[tuple[int, int, int], Buffer, _Selected]:
    """Choose the messages that a read takes. This is the only loop over units, for hot and cold reads. If the
    filter must see the properties of a message, the generator yields its queue offset, position and size, and
    the caller sends the record."""
    chosen: list[tuple[int, int, int]] = []
    total = spent = 0
    by_code = None if wanted is ALL else wanted.by_code
    for position, length, code in UNIT.iter_unpack(units):
        verdict = YES if by_code is None else by_code(code)
        if verdict == LOOK:
            if spent >= MAX_LOOK_COST:
                break
            record = yield offset, position, length
            properties = raw_properties(record)
            spent += wanted.cost(properties)
            verdict = YES if wanted.by_properties(properties) else NO
        if verdict:
            if chosen and (total + length > size or len(chosen) == count):
                break
            chosen.append((offset, position, length))
            total += length
        offset += 1
    return _Selected(chosen, offset, total)


def _scanned(count: int, wanted: MessageFilter) -> int:
    """Return the largest number of units of a ConsumeQueue that one read examines."""
    return count if wanted is ALL else max(count, MAX_SCAN_UNITS)


def _outside(queue: ConsumeQueue | None, offset: int) -> GetResult | None:
    """Return the result for an offset outside the queue, with the status that RocketMQ gives. Returns None if
    the offset is inside."""
    if queue is None or queue.bounds.next == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    low, high = queue.bounds.min, queue.bounds.next
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, low if low == 0 else high, low, high)
    return None


def _found(queue: ConsumeQueue, offset: int, parts: list[Buffer], size: int) -> GetResult:
    status = GetStatus.FOUND if parts else GetStatus.NO_MATCHED_MESSAGE
    return GetResult(status, offset, queue.bounds.min, queue.bounds.next, parts, size)
