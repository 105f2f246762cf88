"""DLedger log entry and index unit (DLedgerEntryCoder, DLedgerMmapFileStore; docs/reference/formats.md).

An entry is a 48-byte header and a body. Entries are stored back to back in segment files of one fixed size; a
segment ends with a blank tail (magic -1, then the length of the tail). The index files have a unit of 32
bytes for each entry, at `index * 32`.

Three fields are 0 in Apache's files, and are used here:

* `channel`: the kind of entry in the high byte, and in the low 24 bits the number of entries of the same
  client batch that follow.
* `body_crc`: CRC-32 of the body. If the highest bit of `channel` (COVERED) is set, the computation starts
  from the value of `channel`, otherwise from 0.
* `chain_crc`: CRC-32 over (index, term, body_crc). Its computation starts from the `chain_crc` of the entry
  before (safety.md S1, S10, S11; decision 0014).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from dledger.formats.checksum import crc32

HEADER = struct.Struct(">iiqqqIIIi")
HEADER_SIZE = 48
_POS = struct.Struct(">q")
MAGIC = 1
APACHE_MAGICS = (1, 2, 3)
"""Values of `magic` in stores of newer Apache versions. These stores may also have NOOP entries (empty; one
opens a term) and CONFIG_CHANGE entries."""
BLANK_MAGIC = -1
BLANK = struct.Struct(">ii")
MIN_BLANK_SIZE = BLANK.size
"""Every segment keeps at least this many bytes for its blank tail (MIN_BLANK_LEN)."""

INDEX_UNIT = struct.Struct(">iqiqq")
INDEX_UNIT_SIZE = 32
CHAIN = struct.Struct(">qqI")
"""Layout of the fields that `chain_crc` covers. Loops over many entries pack them without calling
`chain_crc`."""

MAX_ENTRY_SIZE = 4 * 1024 * 1024 + 64 * 1024
"""Largest size of an entry with its header, in bytes. It is RocketMQ's limit of 4 MiB for a body, and room
for the rest of the record."""

MAX_BATCH_REMAINING = 0xFFFFFF
COVERED = 1 << 31
"""Bit of `channel`. If it is set, the computation of the body's CRC starts from `channel`, so that a changed
bit of `channel` is detected. Programs before peer protocol 3 did not set it."""
CHANNEL_OFFSET = 32
"""Offset of `channel` in the header. COVERED is the highest bit of the byte at this offset."""
KIND_MASK = 0x7F
"""Mask that takes the kind from the high byte of `channel`; it leaves out COVERED."""


class Kind(IntEnum):
    """Purpose of an entry. It is in the high byte of `channel`, so that bodies need not be parsed for it."""

    MESSAGE = 0
    """A user message. It is dispatched to its ConsumeQueue."""
    TERM_OPENING = 1
    """The first entry of a leadership (Raft dissertation 6.4). It has no other content."""
    CONFIG = 2
    """A configuration: the members of the group."""
    SYSTEM = 3
    """An operation that changes the replicated state of the host: topics, groups, offsets."""
    RAW = 4
    """Entry that was appended through the DLedger client protocol (`dledger append`)."""


class EntryHeader(NamedTuple):
    """Header of an entry: the fields of its 48 bytes, in order. `size` counts header and body; `pos` is the
    offset in the whole log."""

    magic: int
    size: int
    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int

    @property
    def kind(self) -> int:
        """High byte of `channel` without COVERED. It is a `Kind`, or a number that only newer versions
        know."""
        return self.channel >> 24 & KIND_MASK

    @property
    def batch_remaining(self) -> int:
        """How many entries of the same client batch follow this one."""
        return self.channel & 0xFFFFFF


class IndexUnit(NamedTuple):
    """One unit of an index file: the position of entry `index`."""

    magic: int
    pos: int
    size: int
    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    term: int


class CorruptEntry(Exception):
    """Raised when the bytes are not the entry that was expected. `reason` names the first check that
    failed."""

    def __init__(self, reason: str, index: int, pos: int) -> None:
        super().__init__(f"{reason} at index {index}, pos {pos}")
        self.reason = reason
        self.index = index
        self.pos = pos


def pack_channel(kind: int, batch_remaining: int = 0, *, covered: bool = False) -> int:
    """Make the `channel` field. Raises ValueError if the batch is too large."""
    if not 0 <= batch_remaining <= MAX_BATCH_REMAINING:
        raise ValueError(
            f"the batch has {batch_remaining + 1} entries; the limit is {MAX_BATCH_REMAINING + 1}"
        )
    return (COVERED if covered else 0) | kind << 24 | batch_remaining


def crc_begin(channel: int) -> int:
    """Return the value from which the computation of the body's CRC starts. Loops over many entries repeat
    this code."""
    return channel if channel & COVERED else 0


def chain_crc(previous: int, index: int, term: int, body_crc: int) -> int:
    """Return the chain value of an entry. `previous` is that of the entry before it, or 0 for the first
    entry."""
    return crc32(CHAIN.pack(index, term, body_crc), previous)


def unpack_header(data: bytes | bytearray | memoryview, offset: int = 0) -> EntryHeader:
    """Read a header of 48 bytes. Raises struct.error if there are fewer. Nothing else is checked."""
    return EntryHeader._make(HEADER.unpack_from(data, offset))


def entry_pos(data: bytes | bytearray | memoryview) -> int:
    """Return `pos` from the header at the start of `data`. Raises struct.error if the header is cut off."""
    pos: int = _POS.unpack_from(data, 24)[0]
    return pos


def encode_entry(
    index: int,
    term: int,
    pos: int,
    body: bytes,
    previous_chain: int,
    kind: int,
    batch_remaining: int = 0,
    *,
    covered: bool = False,
) -> bytes:
    """Encode one whole entry. Without `covered` it has the form of older programs, in which no CRC covers
    `channel`.

    The leader's hot path packs the same fields in place (dledger/log/appender.py).
    """
    channel = pack_channel(kind, batch_remaining, covered=covered)
    body_crc = crc32(body, crc_begin(channel))
    header = HEADER.pack(
        MAGIC,
        HEADER_SIZE + len(body),
        index,
        term,
        pos,
        channel,
        chain_crc(previous_chain, index, term, body_crc),
        body_crc,
        len(body),
    )
    return header + body


def check_entry(
    data: bytes | bytearray | memoryview,
    offset: int,
    index: int,
    pos: int,
    min_term: int,
    previous_chain: int | None,
) -> EntryHeader:
    """Check the entry at `offset` of `data`, and return its header or raise CorruptEntry (safety.md S1).

    `index` and `pos` are the expected values. `min_term` is the term of the entry before. `previous_chain` is
    the chain value of the entry before; it is None if that is unknown, as at the start of a log whose
    beginning was removed. In a store written by Apache both CRC fields are 0; then only the structure is
    checked.
    """
    if len(data) - offset < HEADER_SIZE:
        raise CorruptEntry("header cut off", index, pos)
    header = unpack_header(data, offset)
    if header.magic != MAGIC:
        raise CorruptEntry("wrong magic", index, pos)
    if header.index != index or header.pos != pos:
        raise CorruptEntry("index or pos does not continue", index, pos)
    if header.term < min_term:
        raise CorruptEntry("term falls", index, pos)
    if header.body_size < 0 or header.size != HEADER_SIZE + header.body_size or header.size > MAX_ENTRY_SIZE:
        raise CorruptEntry("impossible size", index, pos)
    end = offset + header.size
    if len(data) < end:
        raise CorruptEntry("body cut off", index, pos)
    if header.body_crc == 0 and header.chain_crc == 0:
        return header
    if crc32(memoryview(data)[offset + HEADER_SIZE : end], crc_begin(header.channel)) != header.body_crc:
        raise CorruptEntry("body CRC differs", index, pos)
    if (
        previous_chain is not None
        and chain_crc(previous_chain, index, header.term, header.body_crc) != header.chain_crc
    ):
        raise CorruptEntry("chain CRC differs", index, pos)
    return header


def known_magic(header: EntryHeader) -> bool:
    """Whether the header has the magic of an entry. This project writes 1. Apache's other values are accepted
    only in headers whose CRCs are 0."""
    return header.magic == MAGIC or (
        header.magic in APACHE_MAGICS and header.chain_crc == 0 and header.body_crc == 0
    )


def is_blank(data: bytes | bytearray | memoryview, offset: int) -> bool:
    """Whether a blank tail starts here."""
    return len(data) - offset >= MIN_BLANK_SIZE and BLANK.unpack_from(data, offset)[0] == BLANK_MAGIC
