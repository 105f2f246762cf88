"""IndexFile: the messages that have a key (store/index/IndexFile, IndexHeader). Pure;
docs/reference/formats.md.

A file has a header of 40 bytes, then hash slots of 4 bytes, then units of 20 bytes:

| header | begin and end store time 8 + 8 (ms), begin and end position 8 + 8, slots in use 4, count 4 |
| slot   | number of the newest unit whose key hash falls into this slot, 0 for none                 |
| unit   | key hash 4, position 8, seconds after the begin time 4, number of the previous unit of its slot 4 |

Units are numbered from 1 (`count` starts at 1 and is the number of the next unit). A unit holds only the hash
of a key, so the caller of a search must compare the keys of the messages that it finds. Files are named by
the time at which they were made (17 digits).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dledger.formats.message_ids import java_hash
from dledger.formats.properties import KEYS, UNIQ_KEY, find_property
from dledger.formats.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK

HEADER = struct.Struct(">qqqqii")
HEADER_SIZE = 40
SLOT = struct.Struct(">i")
SLOT_SIZE = 4
UNIT = struct.Struct(">iqii")
UNIT_SIZE = 20
SLOTS = 5_000_000
"""Default number of hash slots in a file, as in Apache's brokers (maxHashSlotNum)."""
UNITS = 20_000_000
"""Default number of units in a file, as in Apache's brokers (maxIndexNum)."""
KEY_SEPARATOR = " "
TAG_PREFIX = "T#"
"""Prefix with which newer Apache brokers (5.4) index a message by its tag, like by a key. Brokers of this
project do not."""
NAME_DIGITS = 17
"""Number of digits in a file name: yyyyMMddHHmmssSSS."""
MAX_SECONDS = 0x7FFFFFFF
_INT_MIN = -0x80000000


class IndexHeader(NamedTuple):
    """Header of an index file: the fields of its 40 bytes, in order. Times are in ms since the epoch,
    positions are physical offsets of records."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    slots_used: int = 0
    count: int = 1  # type: ignore[assignment]  # RocketMQ's indexCount; tuple.count is not used


class KeyUnit(NamedTuple):
    """Unit of an index file: one key of one message. `seconds` is the store time in seconds after the file's
    begin time. `before` is the number of the previous unit of the same slot, 0 for none."""

    key_hash: int
    position: int
    seconds: int
    before: int


def unpack_index_header(data: bytes) -> IndexHeader:
    """Read a header of 40 bytes. Raises struct.error if there are fewer."""
    return IndexHeader._make(HEADER.unpack_from(data))


def file_size(slots: int = SLOTS, units: int = UNITS) -> int:
    """Size of a file in bytes. A file has this size from the start."""
    return HEADER_SIZE + slots * SLOT_SIZE + units * UNIT_SIZE


def unit_offset(slots: int, number: int) -> int:
    """Offset in the file of the unit with this number."""
    return HEADER_SIZE + slots * SLOT_SIZE + number * UNIT_SIZE


def key_hash(topic: str, key: str) -> int:
    """Hash of a message's key, computed over `topic#key`; never negative."""
    value = java_hash(f"{topic}#{key}")
    return 0 if value == _INT_MIN else abs(value)


def message_keys(properties: bytes) -> Iterator[str]:
    """Keys under which a message is indexed, in order: its unique key (UNIQ_KEY), then its KEYS, which are
    separated by blanks."""
    unique = find_property(properties, UNIQ_KEY.encode())
    if unique is not None:
        yield unique.decode("utf-8", "replace")
    keys = find_property(properties, KEYS.encode())
    for key in keys.decode("utf-8", "replace").split(KEY_SEPARATOR) if keys else ():
        if key:
            yield key


def is_indexed(sys_flag: int) -> bool:
    """Whether messages with this sysFlag are indexed. Only rollbacks are not."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def seconds_after(begin_ms: int, store_ms: int) -> int:
    """Value of a unit's field `seconds`."""
    return min(max((store_ms - begin_ms) // 1000, 0), MAX_SECONDS) if begin_ms > 0 else 0


class IndexFileWriter:
    """Adds units to an index file. It passes every change of the file to `write(offset, data)`.

    `after` is the header of the previous file. As long as this file has no unit, its header takes begin and
    end from the end of the previous file.
    """

    def __init__(
        self,
        write: Callable[[int, bytes], None],
        slots: int = SLOTS,
        units: int = UNITS,
        after: IndexHeader | None = None,
    ) -> None:
        self._write = write
        self._heads = array("i", bytes(slots * SLOT_SIZE))
        self._units = units
        self.header: IndexHeader = IndexHeader()
        if after is not None:
            end = {"begin_ms": after.end_ms, "end_ms": after.end_ms}
            self.header = self.header._replace(
                **end, begin_position=after.end_position, end_position=after.end_position
            )

    @property
    def full(self) -> bool:
        """Whether the next unit must go into another file."""
        return self.header.count >= self._units

    def put(self, hashed: int, position: int, store_ms: int) -> bool:
        """Add one unit, as IndexFile.putKey does. Returns False if the file is full."""
        if self.full:
            return False
        header = self.header
        slots = len(self._heads)
        slot = hashed % slots
        unit = UNIT.pack(hashed, position, seconds_after(header.begin_ms, store_ms), self._heads[slot])
        self._heads[slot] = header.count
        begin = (store_ms, position) if header.count <= 1 else (header.begin_ms, header.begin_position)
        self._write(unit_offset(slots, header.count), unit)
        self._write(HEADER_SIZE + slot * SLOT_SIZE, SLOT.pack(header.count))
        self.header = IndexHeader(
            begin[0], store_ms, begin[1], position, header.slots_used + 1, header.count + 1
        )
        self._write(0, HEADER.pack(*self.header))
        return True


def lookup(
    read: Callable[[int, int], bytes],
    slots: int,
    hashed: int,
    begin_ms: int,
    end_ms: int,
    most: int,
    links: int = UNITS,
) -> tuple[list[int], int]:
    """Find positions of messages that may have the key, the newest first (IndexFile.selectPhyOffset). Also
    return the number of units that were read; at most `links` are read.

    `most` limits the positions. `read(length, offset)` returns bytes of the file. The search ends at an
    invalid link.
    """
    header = unpack_index_header(read(HEADER_SIZE, 0))
    found: list[int] = []
    followed = 0
    (number,) = SLOT.unpack(read(SLOT_SIZE, HEADER_SIZE + hashed % slots * SLOT_SIZE))
    while 0 < number < header.count and len(found) < most and followed < links:
        unit = KeyUnit._make(UNIT.unpack(read(UNIT_SIZE, unit_offset(slots, number))))
        followed += 1
        # The time of the first unit is relative to the end of the previous file.
        time_ms = header.begin_ms + (unit.seconds * 1000 if number > 1 else 0)
        if unit.seconds < 0 or unit.before >= number:
            break
        # Units count whole seconds, so a message may be up to one second later than this time.
        if unit.key_hash == hashed and begin_ms <= time_ms + 999 and time_ms <= end_ms:
            found.append(unit.position)
        if time_ms + 999 < begin_ms:
            break
        number = unit.before
    return found, followed
