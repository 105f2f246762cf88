"""Converts the record of a timer message that has waited into the message that is delivered. The conversion
is fast, because 100,000 messages may be due in one second."""

from __future__ import annotations

from typing import NamedTuple

from dledger.broker.commit_log import Outgoing, TopicSlot
from dledger.formats.properties import REAL_QID, REAL_TOPIC, UNIQ_KEY, find_property
from dledger.formats.record import (
    BORN_HOST_V6,
    FIXED,
    FIXED_SIZE,
    MAGIC_V1,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    decode_record,
)

_WIDE = BORN_HOST_V6 | STORE_HOST_V6
_TOPIC, _QUEUE, _KEY = REAL_TOPIC.encode(), REAL_QID.encode(), UNIQ_KEY.encode()


class Waited(NamedTuple):
    """The parts of a waiting message that are delivered. `topic`, `queue`: the destination; `key`: the unique
    key of the message."""

    topic: str
    queue: str
    key: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    body: bytes
    properties: bytes

    def to(self, slot: TopicSlot, queue_id: int) -> Outgoing:
        """Return the message for this queue."""
        return Outgoing(slot, queue_id, *self[3:])


def unpack_waited(data: bytes) -> Waited:
    """Return the parts of a record of the timer topic. Raises CorruptRecord if the record is invalid."""
    fields = FIXED.unpack_from(data)
    if fields[1] != MAGIC_V1 or fields[7] & _WIDE:
        record = decode_record(data)  # written by another program: an IPv6 host becomes zeros
        host = bytes(8) if record.sys_flag & BORN_HOST_V6 else record.born_host
        rest, body = record.properties.encode(), record.body
        times, sys_flag = record.reconsume_times, record.sys_flag & ~(TRANSACTION_MASK | _WIDE)
        flag, born = record.flag, record.born_timestamp
    else:
        flag, sys_flag, born, host, times = fields[4], fields[7], fields[8], fields[9], fields[12]
        sys_flag &= ~TRANSACTION_MASK
        body_end = FIXED_SIZE + fields[14]
        body = data[FIXED_SIZE:body_end]
        rest = data[body_end + 1 + data[body_end] + 2 :]
    topic, rest = _taken(rest, _TOPIC)
    queue, rest = _taken(rest, _QUEUE)
    key = find_property(rest, _KEY) or b""
    return Waited(topic.decode(), queue.decode(), key.decode(), flag, sys_flag, born, host, times, body, rest)


def _taken(properties: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Return the value of a property, and the properties without this property."""
    needle = name + b"\x01"
    at = properties.find(needle)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(needle, at + 1)
    if at < 0:
        return b"", properties
    end = properties.find(b"\x02", at)
    if end < 0:
        return properties[at + len(needle) :], properties[:at]
    return properties[at + len(needle) : end], properties[:at] + properties[end + 1 :]
