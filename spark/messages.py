"""Entries to messages: what the view `messages` reads from a window of the log."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

import lz4.frame

from audit.scan import Window
from audit.walk import BODY_DAMAGED
from formats.entry import HEADER_SIZE, Kind
from formats.properties import KEYS, TAGS, decode_properties
from formats.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZSTD,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    CorruptRecord,
    Record,
    check_body_crc,
    decode_record,
)


class Message(NamedTuple):
    """One row, fields as the columns of `columns.MESSAGES`; times in microseconds since the epoch."""

    key: str | None
    value: bytes
    topic: str
    partition: int
    offset: int
    timestamp: int
    store_timestamp: int
    tags: str | None
    flag: int
    headers: dict[str, str]
    log_index: int
    log_term: int


class CorruptMessage(Exception):
    """An entry that should hold a message and cannot be believed."""


def read_messages(
    window: Window, committed: int, topics: frozenset[str], *, skip_corrupt: bool
) -> Iterator[Message]:
    """Dispatched messages of the window up to index `committed`; of these topics, or of all when empty.

    CorruptMessage at damage, unless it is to be skipped.
    """
    for entry in window.entries:
        if entry.index > committed or entry.channel >> 24 != Kind.MESSAGE:
            continue
        try:
            if entry.damage & BODY_DAMAGED:
                raise CorruptRecord("the body does not fit its CRC")
            at = entry.pos - window.base
            record = decode_record(memoryview(window.data)[at + HEADER_SIZE : at + entry.size])
            if not check_body_crc(record):
                raise CorruptRecord("the message body does not fit the record's CRC")
            if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
                continue
            if topics and record.topic not in topics:
                continue
            value = decompress(record)
        except CorruptRecord as error:
            if skip_corrupt:
                continue
            raise CorruptMessage(f"index {entry.index}, pos {entry.pos}: {error}") from error
        headers = decode_properties(record.properties)
        yield Message(
            key=headers.get(KEYS),
            value=value,
            topic=record.topic,
            partition=record.queue_id,
            offset=record.queue_offset,
            timestamp=record.born_timestamp * 1000,
            store_timestamp=record.store_timestamp * 1000,
            tags=headers.get(TAGS),
            flag=record.flag,
            headers=headers,
            log_index=entry.index,
            log_term=entry.term,
        )


def decompress(record: Record) -> bytes:
    """The body as the producer gave it (MessageSysFlag: zlib unless it says otherwise); CorruptRecord."""
    if not record.sys_flag & COMPRESSED:
        return record.body
    kind = record.sys_flag & COMPRESSION_TYPE_MASK
    try:
        if kind == COMPRESSION_LZ4:
            plain: bytes = lz4.frame.decompress(record.body)
            return plain
        if kind == COMPRESSION_ZSTD:
            return _unzstd(record.body)
        return zlib.decompress(record.body)
    except (zlib.error, RuntimeError, ValueError) as error:
        raise CorruptRecord(f"compressed body: {error}") from error


def _unzstd(body: bytes) -> bytes:
    try:
        zstandard = import_module("zstandard")
    except ImportError as error:
        raise CorruptRecord("compressed with zstd: pip install zstandard") from error
    plain: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return plain
