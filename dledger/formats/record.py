"""CommitLog message record (MessageDecoder, CommitLog.CheckMessage): the body of every entry.

In version 1 (magic 0xDAA320A7) the length of the topic has one byte, in version 2 (0xDAA320AB) two. Hosts are
IPv4 (8 bytes) unless sysFlag says otherwise; we always store IPv4, as old clients read nothing else.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from dledger.formats.checksum import crc32

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
BLANK_MAGIC = 0xCBD43194 - (1 << 32)

FIXED = struct.Struct(">iiIiiqqiq8sq8siqi")
"""Layout of fields 1-15 (up to the body length) with IPv4 hosts, 88 bytes."""
FIXED_SIZE = 88
MIN_SIZE = 91
"""Size, in bytes, of the smallest record: version 1 without body, topic and properties."""
PHYSICAL_OFFSET_AT = 28
QUEUE_OFFSET_AT = 20
STORE_TIMESTAMP_AT = 56

MAX_TOPIC_V1 = 127

# sysFlag (MessageSysFlag)
COMPRESSED = 0x1
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

SYSTEM_TOPIC = "rmq_sys_dledger"
"""Topic of entries that are not user messages. Apache's brokers never dispatch them, because their sysFlag is
0x4."""

CRC_MASK = 0x7FFFFFFF

_BORN_HOST_AT = 48
_BEFORE_BODY = struct.Struct(">iqi")
_SHORT = struct.Struct(">h")
_LONG = struct.Struct(">q")


class CorruptRecord(Exception):
    """Raised when the bytes are not a message record."""


class Record(NamedTuple):
    """A decoded record. `born_host` and `store_host` are a raw IP and a port of 4 bytes; times are in ms
    since the epoch."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: str


def record_size(body_size: int, topic_size: int, properties_size: int) -> int:
    """Size of a record in bytes. `topic_size` and `properties_size` are in bytes of UTF-8."""
    return MIN_SIZE + body_size + topic_size + properties_size + (1 if topic_size > MAX_TOPIC_V1 else 0)


def encode_record(
    *,
    topic: str,
    body: bytes,
    properties: str = "",
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(8),
    store_timestamp: int = 0,
    store_host: bytes = bytes(8),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode one record. The send path packs the same fields in place (dledger/broker/store)."""
    raw_topic = topic.encode()
    raw_properties = properties.encode()
    wide = len(raw_topic) > MAX_TOPIC_V1
    size = record_size(len(body), len(raw_topic), len(raw_properties))
    fixed = FIXED.pack(
        size,
        MAGIC_V2 if wide else MAGIC_V1,
        crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    topic_length = len(raw_topic).to_bytes(2 if wide else 1, "big")
    return b"".join((fixed, body, topic_length, raw_topic, _SHORT.pack(len(raw_properties)), raw_properties))


def decode_record(data: bytes | bytearray | memoryview, offset: int = 0, *, with_body: bool = True) -> Record:
    """Decode one record at `offset`, of either version and with either kind of hosts. Raises CorruptRecord if
    there is no record.

    The body CRC is not checked (`check_body_crc`). Without `with_body` the body in the result is empty.
    """
    view = data if type(data) is bytes else memoryview(data)
    try:
        (
            size,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared,
            body_size,
        ) = FIXED.unpack_from(view, offset)
        at = offset + FIXED_SIZE
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            raise CorruptRecord(f"magic {magic & 0xFFFFFFFF:#x} does not mark a message record")
        if size < MIN_SIZE or offset + size > len(view):
            raise CorruptRecord(f"record of {size} bytes does not fit into {len(view) - offset}")
        if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):  # the fields behind the first host are at other places
            at = offset + _BORN_HOST_AT
            host_size = 20 if sys_flag & BORN_HOST_V6 else 8
            born_host = bytes(view[at : at + host_size])
            at += host_size
            (store_timestamp,) = _LONG.unpack_from(view, at)
            at += 8
            host_size = 20 if sys_flag & STORE_HOST_V6 else 8
            store_host = bytes(view[at : at + host_size])
            at += host_size
            reconsume_times, prepared, body_size = _BEFORE_BODY.unpack_from(view, at)
            at += _BEFORE_BODY.size
        if body_size < 0:
            raise CorruptRecord(f"body of {body_size} bytes")
        body = bytes(view[at : at + body_size]) if with_body else b""
        at += body_size
        width = 1 if magic == MAGIC_V1 else 2
        topic_size = int.from_bytes(view[at : at + width], "big")
        at += width
        topic = str(view[at : at + topic_size], "utf-8")
        at += topic_size
        (properties_size,) = _SHORT.unpack_from(view, at)
        at += 2
        if properties_size < 0 or at + properties_size != offset + size:
            raise CorruptRecord("lengths of body, topic and properties do not add up to the record's size")
        properties = str(view[at : at + properties_size], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptRecord(f"record cut off or not UTF-8: {error}") from error
    return Record(
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared,
        body,
        topic,
        properties,
    )


def raw_properties(data: bytes | bytearray | memoryview) -> bytes:
    """Properties of one record, as they are stored. Raises CorruptRecord if there is no record."""
    return decode_record(data, with_body=False).properties.encode()


def decode_records(data: bytes | bytearray | memoryview) -> list[Record]:
    """Decode records that follow each other, as in the body of a pull response."""
    records = []
    offset = 0
    while offset < len(data):
        record = decode_record(data, offset)
        records.append(record)
        offset += record.size
    return records


def check_body_crc(record: Record) -> bool:
    """Whether the stored CRC matches the stored body (which may be compressed)."""
    return crc32(record.body) & CRC_MASK == record.body_crc


def system_record(
    body: bytes, physical_offset: int, store_timestamp: int, store_host: bytes = bytes(8)
) -> bytes:
    """Encode the record of an entry that is not a user message (safety.md S10)."""
    return encode_record(
        topic=SYSTEM_TOPIC,
        body=body,
        physical_offset=physical_offset,
        sys_flag=TRANSACTION_PREPARED,
        born_timestamp=store_timestamp,
        store_timestamp=store_timestamp,
        store_host=store_host,
    )


def system_record_size(body_size: int) -> int:
    """Size, in bytes, of a `system_record` with a body of this size."""
    return record_size(body_size, len(SYSTEM_TOPIC), 0)
