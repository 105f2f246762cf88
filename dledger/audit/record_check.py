"""Checks that the message records of a segment are well-formed and in their place, and computes the
ConsumeQueue unit that each should have.

Windows of plain records are checked in columns (`records`), other windows record by record.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dledger.audit.entries import BODY_DAMAGED, Array, Columns, Entry
from dledger.audit.queue_check import QueueCheck
from dledger.audit.records import (
    PropertyTexts,
    QueueNames,
    Records,
    has_record,
    property_texts,
    queue_units,
    read_records,
    tag_codes,
)
from dledger.audit.walk import Fault
from dledger.formats.checksum import crc32
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, Kind
from dledger.formats.message_ids import tags_code
from dledger.formats.properties import TAGS, find_property
from dledger.formats.record import (
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
from dledger.formats.state import TOPIC_DELETE, ReplicatedState
from dledger.formats.timers import TIMER_TOPIC, timer_code

DEEP_EVERY = 8
"""In one of this many windows, the CRC inside each record is checked even though that of its entry fits. A
disk cannot damage only one of the two CRCs. A faulty writer can, and does so more than once."""
_TAGS = TAGS.encode()
_TIMERS = TIMER_TOPIC.encode()
_DELETION = TOPIC_DELETE.encode()


class Sorted(NamedTuple):
    """Records of one window and their properties. `queued` are the committed records that have a place in a
    queue, and `which` has the number of the queue of each."""

    records: Records
    texts: PropertyTexts
    queued: Records
    which: Array


class RecordCheck:
    """Checks that records in entries are well-formed and in their place, and computes the ConsumeQueue unit
    of each dispatched message."""

    def __init__(self, committed: int, queues: QueueCheck, *, deep: bool) -> None:
        self._committed = committed
        self._queues = queues
        self._deep = deep
        self.names: QueueNames = QueueNames()
        self._windows = 0
        self.faults: list[Fault] = []

    def add(self, data: bytes, base: int, columns: Columns) -> Sorted | None:
        """Check one window; `base` is the log offset of `data[0]`. Return its records, or None if one of them
        is irregular."""
        deep = self._deep or self._windows % DEEP_EVERY == 0
        self._windows += 1
        records = read_records(data, base, columns, deep=deep)
        if records is None:
            self._add_singly(data, base, columns[has_record(columns)].entries())
            return None
        self._deletions(data, records)
        texts = property_texts(data, records)
        taken = records.dispatched & (records.index <= self._committed)
        chosen = records[taken]
        which = self.names.numbers(data, chosen)
        if len(chosen):
            codes = tag_codes(texts)[taken]
            self._times(data, chosen, which, codes)
            self._queues.expect_all(self.names.keys, which, chosen, queue_units(chosen, codes))
        return Sorted(records, texts, chosen, which)

    def _times(self, data: bytes, chosen: Records, which: Array, codes: Array) -> None:
        """Replace the codes of timer messages by their times."""
        timed = [number for number, key in enumerate(self.names.keys) if key[0] == _TIMERS]
        for number in np.flatnonzero(np.isin(which, timed)).tolist() if timed else ():
            at = int(chosen.properties_at[number])
            codes[number] = timer_code(data[at : at + int(chosen.properties_size[number])])

    def _deletions(self, data: bytes, records: Records) -> None:
        """Note the topics that are deleted in this window."""
        if _DELETION not in data:
            return
        asked = np.flatnonzero((records.kind == Kind.SYSTEM) & (records.index <= self._committed))
        for number in asked.tolist():
            at = int(records.body_at[number])
            body = data[at : at + int(records.body_size[number])]
            if _DELETION not in body:
                continue
            op = ReplicatedState.read(body)
            if op is not None and op["op"] == TOPIC_DELETE:
                self._queues.topic_deleted(op["name"], op["at"])

    def _add_singly(self, data: bytes, base: int, entries: list[Entry]) -> None:
        for entry in entries:
            kind = entry.channel >> 24 & KIND_MASK
            if entry.damage & BODY_DAMAGED or kind > Kind.RAW:  # rotten, or of a newer version
                self._queues.add_opaque(1)
                continue
            try:
                unit = _check_record(data, base, entry)
                if unit is not None and kind != Kind.MESSAGE:
                    raise CorruptRecord(f"a user message in an entry of kind {kind}")
            except CorruptRecord as error:
                self._queues.add_opaque(1)
                ours = entry.stored_crc or entry.chain
                code = "RECORD_CORRUPT" if ours else "BIT_ROT"  # in stores of Apache this is the only CRC
                if entry.index <= self._committed:
                    self.faults.append(Fault(code, entry.index, entry.index, f"record: {error}"))
                continue
            if unit is not None and entry.index <= self._committed:
                self._queues.expect(entry.index, unit)


def is_sound(data: bytes, base: int, entry: Entry) -> bool:
    """Whether an entry's body is a message record whose own CRC fits."""
    try:
        _check_record(data, base, entry)
    except CorruptRecord:
        return False
    return True


def _check_record(data: bytes, base: int, entry: Entry) -> _Unit | None:
    """Return the ConsumeQueue unit of an entry's record; None if it is not dispatched. Raises
    CorruptRecord."""
    at, size = entry.pos - base + HEADER_SIZE, entry.size - HEADER_SIZE
    if size < MIN_SIZE:
        raise CorruptRecord(f"{size} bytes: too few for a record")
    fields = FIXED.unpack_from(data, at)
    view = memoryview(data)
    if fields[7] & (BORN_HOST_V6 | STORE_HOST_V6):
        return _wide_record(view[at : at + size], entry.pos)
    return _record(data, view, at, size, entry.pos, fields)


_Unit = tuple[bytes, int, int, bytes]
"""Topic, queue id, queue offset, packed ConsumeQueue unit."""


def _record(
    data: bytes, view: memoryview, at: int, size: int, pos: int, fields: tuple[int, ...]
) -> _Unit | None:
    """Check a record with IPv4 hosts at `at`. Return its ConsumeQueue unit, None if it is not dispatched."""
    said_size, magic, body_crc, queue_id, _, queue_offset, physical, sys_flag = fields[:8]
    body_size = fields[14]
    if magic == MAGIC_V1:
        width = 1
    elif magic == MAGIC_V2:
        width = 2
    else:
        raise CorruptRecord(f"magic {magic & 0xFFFFFFFF:#x} does not mark a message record")
    if said_size != size:
        raise CorruptRecord(f"it says {said_size} bytes in an entry with {size}")
    if physical != pos + HEADER_SIZE:
        raise CorruptRecord(f"physical offset {physical} instead of {pos + HEADER_SIZE}")
    body_end = at + FIXED_SIZE + body_size
    end = at + size
    if body_size < 0 or body_end + width + 2 > end:
        raise CorruptRecord(f"a body of {body_size} bytes does not fit into the record")
    topic_at = body_end + width
    topic_end = topic_at + int.from_bytes(data[body_end:topic_at], "big")
    properties_at = topic_end + 2
    if properties_at > end or int.from_bytes(data[topic_end:properties_at], "big") != end - properties_at:
        raise CorruptRecord("lengths of body, topic and properties do not add up to the record's size")
    if crc32(view[at + FIXED_SIZE : body_end]) & CRC_MASK != body_crc:
        raise CorruptRecord("the message body does not match the CRC of the record")
    if sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return None
    topic = data[topic_at:topic_end]
    return topic, queue_id, queue_offset, _pack_unit(physical, size, topic, data[properties_at:end])


def _wide_record(data: memoryview, pos: int) -> _Unit | None:
    """Check a record with an IPv6 host. Return its ConsumeQueue unit, None if it is not dispatched."""
    record = decode_record(data)
    if record.size != len(data) or record.physical_offset != pos + HEADER_SIZE or not check_body_crc(record):
        raise CorruptRecord("size, physical offset or CRC of the body is wrong")
    if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return None
    topic = record.topic.encode()
    unit = _pack_unit(record.physical_offset, record.size, topic, record.properties.encode())
    return topic, record.queue_id, record.queue_offset, unit


def _pack_unit(physical: int, size: int, topic: bytes, properties: bytes) -> bytes:
    if topic == _TIMERS:
        return UNIT.pack(physical, size, timer_code(properties))
    tags = find_property(properties, _TAGS)
    return UNIT.pack(physical, size, tags_code(tags.decode("utf-8", "replace")) if tags else 0)
