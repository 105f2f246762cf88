"""Derived files against the log: index units and ConsumeQueue units of the entries that a scan meets.

Both follow the log and may lag behind it: a unit above the last one written is no fault (the side scan says
how far they are). Below it, every unit must say what the log says. Only committed entries are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from zlib import crc32

from audit.findings import QueueRow
from audit.unit_files import UnitFiles
from audit.walk import BODY_DAMAGED, CHAIN_BROKEN, Entry, Fault
from formats.consume_queue import UNIT, UNIT_SIZE, unpack_unit
from formats.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC, Kind
from formats.message_ids import tags_code
from formats.properties import TAGS, find_property
from formats.record import (
    BORN_HOST_V6,
    CRC_MASK,
    FIXED,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    CorruptRecord,
    check_body_crc,
    decode_record,
)
from formats.store_files import INDEX_DIR
from runtime import Files

_TAGS = TAGS.encode()
_NO_RECORD = (Kind.RAW,)
"""Kinds whose body belongs to the user, who need not know message records."""
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
"""Its tag codes are delivery times, which the log does not say."""
_QUEUE_FLUSH_UNITS = 8192
_MAX_QUEUE_HANDLES = 128


class IndexCheck:
    """Index units of committed entries. `end`: first index without a unit, as it was before the scan."""

    def __init__(self, files: Files, directory: str, committed: int, end: int) -> None:
        self._files = files
        self._directory = f"{directory}/{INDEX_DIR}"
        self._index: UnitFiles | None = None
        self._last = min(committed, end - 1)
        self.faults: list[Fault] = []

    def close(self) -> None:
        """Close the files."""
        if self._index is not None:
            self._index.close()

    def add(self, entries: list[Entry]) -> None:
        """Compare one window of entries (ascending, mostly contiguous)."""
        pack = INDEX_UNIT.pack
        run: list[bytes] = []
        first = -1
        for index, term, pos, size, _, _, _, _, damage in entries:
            if index > self._last:
                break
            if run and index != first + len(run):
                self._compare(first, run)
                run = []
            if damage & CHAIN_BROKEN:  # its term is not to be believed
                self._compare(first, run)
                run = []
                continue
            if not run:
                first = index
            run.append(pack(MAGIC, pos, size, index, term))
        self._compare(first, run)

    def _compare(self, first: int, run: list[bytes]) -> None:
        if not run:
            return
        if self._index is None:
            self._index = UnitFiles(self._files, self._directory, INDEX_UNIT_SIZE)
        stored = self._index.read(first, len(run))
        if stored == b"".join(run):
            return
        for number, expected in enumerate(run):
            unit = stored[number * INDEX_UNIT_SIZE : (number + 1) * INDEX_UNIT_SIZE]
            if unit != expected:
                self.faults.append(Fault("INDEX_FILE", first + number, first + number, _says_index(unit)))


def _says_index(unit: bytes) -> str:
    if not any(unit):
        return "the index unit is missing"
    _, pos, size, index, term = INDEX_UNIT.unpack(unit)
    return f"the index unit says index {index}, term {term}, pos {pos}, size {size}"


class RecordCheck:
    """Records in entries: well-formed and in their place; and the queue unit of each dispatched message."""

    def __init__(self, committed: int, queues: QueueCheck) -> None:
        self._committed = committed
        self._queues = queues
        self.faults: list[Fault] = []

    def add(self, data: bytes, base: int, entries: list[Entry]) -> None:
        """`base`: log offset of `data[0]`."""
        view = memoryview(data)
        unpack = FIXED.unpack_from
        for index, _, pos, size, channel, _, stored, chain, damage in entries:
            kind = channel >> 24
            if kind in _NO_RECORD:
                continue
            if damage & BODY_DAMAGED or kind > Kind.RAW:  # rotten, or of a newer version
                self._queues.opaque += 1
                continue
            at = pos - base + HEADER_SIZE
            size -= HEADER_SIZE
            try:
                if size < MIN_SIZE:
                    raise CorruptRecord(f"{size} bytes: too few for a record")
                fields = unpack(data, at)
                if fields[7] & (BORN_HOST_V6 | STORE_HOST_V6):
                    unit = _wide_record(view[at : at + size], pos)
                else:
                    unit = _record(data, view, at, size, pos, fields)
                if unit is not None and kind != Kind.MESSAGE:
                    raise CorruptRecord(f"a user message in an entry of kind {kind}")
            except CorruptRecord as error:
                self._queues.opaque += 1
                code = "RECORD_CORRUPT" if stored or chain else "BIT_ROT"  # Apache: the only CRC there is
                if index <= self._committed:
                    self.faults.append(Fault(code, index, index, f"record: {error}"))
                continue
            if unit is not None and index <= self._committed:
                self._queues.expect(index, unit)


_Unit = tuple[bytes, int, int, bytes]
"""Topic, queue id, queue offset, packed ConsumeQueue unit."""


def _record(
    data: bytes, view: memoryview, at: int, size: int, pos: int, fields: tuple[int, ...]
) -> _Unit | None:
    """Check a record with IPv4 hosts at `at`; its queue unit, None when it is not dispatched."""
    said_size, magic, body_crc, queue_id, _, queue_offset, physical, sys_flag = fields[:8]
    body_size = fields[14]
    if magic == MAGIC_V1:
        width = 1
    elif magic == MAGIC_V2:
        width = 2
    else:
        raise CorruptRecord(f"magic {magic & 0xFFFFFFFF:#x} is not a message record's")
    if said_size != size:
        raise CorruptRecord(f"it says {said_size} bytes in an entry with {size}")
    if physical != pos + HEADER_SIZE:
        raise CorruptRecord(f"physical offset {physical} instead of {pos + HEADER_SIZE}")
    body_end = at + FIXED_SIZE + body_size
    end = at + size
    if body_size < 0 or body_end + width + 2 > end:
        raise CorruptRecord(f"a body of {body_size} bytes does not fit")
    topic_at = body_end + width
    topic_end = topic_at + int.from_bytes(data[body_end:topic_at], "big")
    properties_at = topic_end + 2
    if properties_at > end or int.from_bytes(data[topic_end:properties_at], "big") != end - properties_at:
        raise CorruptRecord("lengths of body, topic and properties do not add up to the record's size")
    if crc32(view[at + FIXED_SIZE : body_end]) & CRC_MASK != body_crc:
        raise CorruptRecord("the message body does not fit the record's CRC")
    if sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return None
    topic = data[topic_at:topic_end]
    return topic, queue_id, queue_offset, _pack_unit(physical, size, topic, data[properties_at:end])


def _wide_record(data: memoryview, pos: int) -> _Unit | None:
    """The same for a record with an IPv6 host."""
    record = decode_record(data)
    if record.size != len(data) or record.physical_offset != pos + HEADER_SIZE or not check_body_crc(record):
        raise CorruptRecord("size, physical offset or CRC of the body is wrong")
    if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return None
    topic = record.topic.encode()
    unit = _pack_unit(record.physical_offset, record.size, topic, record.properties.encode())
    return topic, record.queue_id, record.queue_offset, unit


def _pack_unit(physical: int, size: int, topic: bytes, properties: bytes) -> bytes:
    tags = find_property(properties, _TAGS)
    code = tags_code(tags.decode("utf-8", "surrogateescape")) if tags else 0
    return UNIT.pack(physical, size, 0 if topic == SCHEDULE_TOPIC else code)


class QueueCheck:
    """ConsumeQueue units of one segment's messages.

    Forward: the unit at a message's queue offset points at it. Reverse: the units beside the range that this
    segment's messages cover must not point into the segment. `root` empty: only offsets are checked.
    """

    def __init__(self, files: Files, root: str, replica: str, segment: int) -> None:
        self._files = files
        self._root = root
        self._replica = replica
        self._segment = segment
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._handles: dict[tuple[bytes, int], UnitFiles] = {}
        self._pending = 0
        self.opaque = 0
        """Entries that may have been messages of any queue: as many offsets may be left out."""
        self.faults: list[Fault] = []

    def expect(self, index: int, unit: _Unit) -> None:
        """A message that is dispatched to a queue, in order of the log."""
        topic, queue_id, offset, packed = unit
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(offset)
        elif offset != queue.next:
            if not 0 < offset - queue.next <= self.opaque:
                text = f"{_name(key)}: queue offset {offset} after {queue.next - 1}"
                self.faults.append(Fault("QUEUE_OFFSET", index, index, text))
            self._compare(key, queue)
            queue.pending_first = offset
            queue.dense = False
        queue.next = offset + 1
        queue.pending.append(packed)
        queue.indexes.append(index)
        self._pending += 1
        if self._pending >= _QUEUE_FLUSH_UNITS:
            self.flush()

    def flush(self) -> None:
        """Compare what was gathered with the files. OSError when they cannot be read."""
        for key, queue in self._queues.items():
            if queue.pending:
                self._compare(key, queue)
        self._pending = 0

    def finish(self, from_pos: int, end_pos: int) -> Iterator[QueueRow]:
        """The reverse check over log range [from_pos, end_pos), and one row per queue."""
        self.flush()
        for key in sorted(self._queues):
            queue = self._queues[key]
            if queue.dense and not self.opaque:
                self._check_beside(key, queue.first - 1, queue.indexes_first, from_pos, end_pos)
                self._check_beside(key, queue.next, queue.index_last, from_pos, end_pos)
            topic = key[0].decode("utf-8", "replace")
            yield QueueRow(self._replica, self._segment, topic, key[1], queue.first, queue.next - 1)

    def close(self) -> None:
        """Close the files."""
        for files in self._handles.values():
            files.close()
        self._handles.clear()

    def _unit_files(self, key: tuple[bytes, int]) -> UnitFiles | None:
        if not self._root:
            return None
        handle = self._handles.get(key)
        if handle is None:
            if len(self._handles) >= _MAX_QUEUE_HANDLES:
                self.close()
            topic = key[0].decode("utf-8", "replace")
            handle = self._handles[key] = UnitFiles(self._files, f"{self._root}/{topic}/{key[1]}", UNIT_SIZE)
        return handle

    def _compare(self, key: tuple[bytes, int], queue: _Queue) -> None:
        units, indexes, first = queue.pending, queue.indexes, queue.pending_first
        queue.pending, queue.indexes, queue.pending_first = [], [], first + len(units)
        if queue.indexes_first < 0:
            queue.indexes_first = indexes[0]
        queue.index_last = indexes[-1]
        files = self._unit_files(key)
        if files is None:
            return
        count = min(len(units), files.end() - first)  # what lies above is lag
        if count <= 0:
            return
        stored = files.read(first, count)
        if stored == b"".join(units[:count]):
            return
        for number in range(count):
            unit = stored[number * UNIT_SIZE : (number + 1) * UNIT_SIZE]
            if unit == units[number] or (key[0] == SCHEDULE_TOPIC and unit[:12] == units[number][:12]):
                continue
            where = f"{_name(key)} offset {first + number}"
            if any(unit):
                text = f"{where}: {_says_queue(unit)} instead of {_says_queue(units[number])}"
                self.faults.append(Fault("QUEUE_MISMATCH", indexes[number], indexes[number], text))
            else:
                text = f"{where}: the unit is missing"
                self.faults.append(Fault("QUEUE_MISSING", indexes[number], indexes[number], text))

    def _check_beside(
        self, key: tuple[bytes, int], offset: int, index: int, from_pos: int, end_pos: int
    ) -> None:
        files = self._unit_files(key)
        if files is None or not files.first <= offset < files.end():
            return
        unit = unpack_unit(files.read(offset, 1))
        if unit.size > 0 and from_pos <= unit.physical_offset < end_pos:
            where = f"{_name(key)} offset {offset}"
            text = f"{where}: it points at {unit.physical_offset}, where no message of it is"
            self.faults.append(Fault("QUEUE_DANGLING", index, index, text))


class _Queue:
    """Messages of one queue seen so far; `pending` units are not yet compared."""

    __slots__ = (
        "dense",
        "first",
        "index_last",
        "indexes",
        "indexes_first",
        "next",
        "pending",
        "pending_first",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.next = first
        self.pending: list[bytes] = []
        self.indexes: list[int] = []
        self.pending_first = first
        self.indexes_first = -1
        self.index_last = -1
        self.dense = True


def _name(key: tuple[bytes, int]) -> str:
    return f"{key[0].decode('utf-8', 'replace')}/{key[1]}"


def _says_queue(unit: bytes) -> str:
    try:
        position, size, code = unpack_unit(unit)
    except struct.error:
        return "nothing"
    return f"pos {position} size {size} tags {code}"
