"""The format of the files of a flight recorder: blocks with a number and a checksum.

```
block = magic "DLFR" | kind u8 | number u64 | events u32 | size u32 | stored u32 | crc u32 | content
```

All numbers are big-endian. `number` counts the blocks of a run of the node through all its files. `events` is
the number of calls in the block, `size` the length of the content and `stored` its length in the file, which
is smaller if the content is compressed (LZ4 block format). `crc` is the CRC-32 of the header fields before it
and of the stored content.

A file begins with a block of kind BEGIN: a map with the version of the core and its whole state. Blocks of
kind CALLS hold the calls, one msgpack value after the other (`dledger.flight.tape`). A block of kind END says
that the node stopped in good order. The module is pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import lz4.block
import msgpack
import msgspec

from dledger.flight.states import CoreState
from dledger.flight.tape import ENCODER
from dledger.formats.checksum import crc32

MAGIC = b"DLFR"
_HEAD = struct.Struct(">4sBQIII")
_CRC = struct.Struct(">I")
HEADER_SIZE = _HEAD.size + _CRC.size
MAX_CONTENT = 8 * 1024 * 1024
"""Largest content of a block in bytes; a header with a larger size counts as damaged."""
FORMAT = 1
"""Version of the format of the files."""
NAME_DIGITS = 12
SUFFIX = ".flight"
"""Files are named by 12 digits and this suffix; the number grows with each file of a node."""


class Kind(IntEnum):
    """Kind of a block."""

    BEGIN = 1
    CALLS = 2
    END = 3


class Begin(msgspec.Struct, frozen=True):
    """Content of the first block of a file."""

    format: int
    version: str
    """Version of the core (`dledger.flight.version`)."""
    node: str
    run: int
    """Number of the file with which the run of the node began. All files of a run have the same number."""
    time_s: float
    """Time of the node's monotonic clock at which the state was taken."""
    wall_ms: int
    """Time of day at which the state was taken, in milliseconds."""
    lost: int
    """Number of calls before this file that were not written, because the disk was too slow."""
    state: CoreState


@dataclass(frozen=True)
class Block:
    """A block whose checksum fits. `offset` is its place in the file."""

    kind: Kind
    number: int
    events: int
    content: bytes
    offset: int


@dataclass(frozen=True)
class Damage:
    """A range of a file that is no block: `begin` is its first byte, `end` the first byte after it."""

    begin: int
    end: int
    why: str


def file_name(number: int) -> str:
    """Return the name of the file with this number."""
    return f"{number:0{NAME_DIGITS}d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """Return the number of the file with this name; None for other files."""
    digits = name.removesuffix(SUFFIX)
    fits = name.endswith(SUFFIX) and len(digits) == NAME_DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) if fits else None


def encode_block(kind: Kind, number: int, events: int, content: bytes) -> bytes:
    """Encode a block. The content is compressed if that makes it smaller."""
    packed: bytes = lz4.block.compress(content, store_size=False)
    stored = packed if len(packed) < len(content) else content
    head = _HEAD.pack(MAGIC, kind, number, events, len(content), len(stored))
    return b"".join((head, _CRC.pack(crc32(stored, crc32(head))), stored))


def encode_begin(begin: Begin) -> bytes:
    """Encode the content of the first block of a file."""
    return ENCODER.encode(begin)


def decode_begin(content: bytes) -> Begin:
    """Decode the content of the first block of a file. Raises msgspec.MsgspecError if it is something
    else."""
    return msgspec.msgpack.decode(content, type=Begin)


def decode_head(content: bytes) -> tuple[int, str]:
    """Return (format, version of the core) of the first block of a file, also if this program cannot read the
    rest. Raises msgspec.MsgspecError if the content is something else."""
    found = msgspec.msgpack.decode(content, type=dict[str, Any])
    return msgspec.convert(found.get("format"), int), msgspec.convert(found.get("version"), str)


def decode_calls(content: bytes) -> list[list[Any]]:
    """Return the calls of a block, each as a list (see `Tape.note`). Raises msgspec.MsgspecError or
    ValueError if the content is something else."""
    return [msgspec.convert(value, list[Any]) for value in _values(content)]


def _values(content: bytes) -> Iterator[object]:
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(content), 1), strict_map_key=False)
    unpacker.feed(content)
    yield from unpacker
    if unpacker.tell() != len(content):
        raise ValueError(f"the calls of a block end within a value at byte {unpacker.tell()}")


def read_blocks(data: bytes) -> list[Block | Damage]:
    """Return everything in a file, in order: its blocks, and the ranges that are none. After a damaged range
    the search continues at the next block whose checksum fits."""
    found: list[Block | Damage] = []
    at = 0
    while at < len(data):
        block, why = _block_at(data, at)
        if block is None:
            begin = at
            at = _next_block(data, at + 1)
            found.append(Damage(begin, at, why))
        else:
            found.append(block[0])
            at = block[1]
    return found


def _next_block(data: bytes, at: int) -> int:
    """Return the offset of the next block from `at` on, or the end of the data."""
    while (at := data.find(MAGIC, at)) >= 0:
        if _block_at(data, at)[0] is not None:
            return at
        at += 1
    return len(data)


def _block_at(data: bytes, at: int) -> tuple[tuple[Block, int] | None, str]:
    """Return (block, offset after it) of a block at this offset, or None and why there is none."""
    if len(data) - at < HEADER_SIZE:
        return None, "the file ends within the header of a block"
    magic, kind, number, events, size, stored = _HEAD.unpack_from(data, at)
    if magic != MAGIC or kind not in (Kind.BEGIN, Kind.CALLS, Kind.END) or max(size, stored) > MAX_CONTENT:
        return None, "no header of a block"
    begin, end = at + HEADER_SIZE, at + HEADER_SIZE + stored
    if end > len(data):
        return None, f"block {number} has {stored} bytes, but the file ends after {len(data) - begin}"
    content = data[begin:end]
    (crc,) = _CRC.unpack_from(data, at + _HEAD.size)
    if crc != crc32(content, crc32(data[at : at + _HEAD.size])):
        return None, f"the checksum of block {number} differs"
    if stored < size:
        try:
            content = lz4.block.decompress(content, uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            return None, f"block {number} cannot be decompressed: {error}"
    if len(content) != size:
        return None, f"block {number} has {len(content)} bytes instead of {size}"
    return (Block(Kind(kind), number, events, content, at), end), ""
