"""Reading in spite of bad sectors, and the check of entries before they are used.

Bytes that cannot be read become zeros, which are never a valid entry.
"""

from __future__ import annotations

import struct

from dledger.errors import OUT_OF_MEANS
from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    CHAIN,
    COVERED,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    CorruptEntry,
    EntryHeader,
    unpack_header,
)
from dledger.formats.record import BORN_HOST_V6, MAGIC_V1, MAGIC_V2, STORE_TIMESTAMP_AT
from dledger.runtime import File

HEAD_BYTES = HEADER_SIZE + 88
"""Size, in bytes, of an entry's header and the fixed part of its record."""
_MAGIC_AND_FLAG = struct.Struct(">4xi28xi")
_LONG = struct.Struct(">q")
_V6_EXTRA = 12
_SECTORS = 4096
"""Number of bytes that count as lost together where the device reports an error."""


def read_around_errors(file: File, length: int, offset: int) -> bytes:
    """Return exactly `length` bytes. Bytes that cannot be read, or lie behind the end, are zeros.

    Raises OSError if the error says nothing about the bytes, for example when memory is short.
    """
    try:
        data = file.pread(length, offset)
    except OSError as error:
        if error.errno in OUT_OF_MEANS:
            raise
        parts = []
        at = offset
        while at < offset + length:
            size = min(_SECTORS - at % _SECTORS, offset + length - at)
            try:
                parts.append(file.pread(size, at).ljust(size, b"\0"))
            except OSError as error:
                if error.errno in OUT_OF_MEANS:
                    raise
                parts.append(bytes(size))
            at += size
        data = b"".join(parts)
    return data if len(data) == length else data.ljust(length, b"\0")


BATCH_BROKEN = "client batch does not continue"
"""Reason of a CorruptEntry: its `batch_remaining` is not one more than that of the next entry. An older
program wrote one of the two entries, so no CRC covers `batch_remaining` there, and either of them may be
corrupt."""


CHAIN_BROKEN = "chain CRC differs"
"""Reason of a CorruptEntry: its chain value does not continue that of the entry before. Either of the two may
be corrupt."""


class Rotten(Exception):
    """Raised when entries that were durable can no longer be trusted. They wait for repair."""

    def __init__(self, first: int, last: int, reason: str) -> None:
        super().__init__(f"entries {first}..{last} are corrupt: {reason}")
        self.first = first
        self.last = last


def check_stored(
    data: bytes | memoryview, first: int, last: int, pos: int, chain_before: int | None
) -> EntryHeader:
    """Check entries `first..last`, read from `pos` on. Return the header of the last one. Raises CorruptEntry
    if a check fails.

    The checks are body CRCs, that client batches count down, and the chain. `chain_before` is the chain value
    of entry `first - 1`, None if it is not available. (A store written by Apache has neither CRCs nor a
    chain, S1.)
    """
    view = memoryview(data)
    unpack, pack = HEADER.unpack_from, CHAIN.pack
    total, offset, index = len(view), 0, first
    fields: tuple[int, ...] = ()
    left = 0
    while offset < total:
        if total - offset < HEADER_SIZE:
            raise CorruptEntry("header cut off", index, pos + offset)
        fields = unpack(view, offset)
        magic, size, entry_index, term, entry_pos, channel, chain, body_crc, body_size = fields
        end = offset + size
        if (
            magic != MAGIC
            or entry_index != index
            or entry_pos != pos + offset
            or body_size < 0
            or size != body_size + HEADER_SIZE
            or end > total
        ):
            raise CorruptEntry("header does not continue", index, pos + offset)
        if body_crc or chain:
            if crc32(view[offset + HEADER_SIZE : end], channel if channel & COVERED else 0) != body_crc:
                raise CorruptEntry("body CRC differs", index, pos + offset)
            if chain_before is not None and crc32(pack(index, term, body_crc), chain_before) != chain:
                raise CorruptEntry(CHAIN_BROKEN, index, pos + offset)
        if left and channel & 0xFFFFFF != left - 1:
            raise CorruptEntry(BATCH_BROKEN, index - 1, pos + offset)
        left = channel & 0xFFFFFF
        chain_before = chain
        index += 1
        offset = end
    if index != last + 1:
        raise CorruptEntry(
            f"the bytes end with entry {index - 1}, not {last}", min(index, last), pos + offset
        )
    return EntryHeader._make(fields)


def size_of(data: bytes, count: int) -> int:
    """Size, in bytes, of the first `count` entries of `data`, which was checked already."""
    size = 0
    for _ in range(count):
        size += unpack_header(data, size).size
    return size


def store_time_of(data: bytes | memoryview, at: int = 0) -> int:
    """Store time in ms of the record in the entry at `at`; -1 if the entry holds no record. HEAD_BYTES of the
    entry are enough."""
    if len(data) - at < HEAD_BYTES:
        return -1
    magic, sys_flag = _MAGIC_AND_FLAG.unpack_from(data, at + HEADER_SIZE)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return -1
    behind = at + HEADER_SIZE + STORE_TIMESTAMP_AT + (_V6_EXTRA if sys_flag & BORN_HOST_V6 else 0)
    return int(_LONG.unpack_from(data, behind)[0])
