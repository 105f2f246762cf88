"""Unit of a ConsumeQueue file, 20 bytes: physical offset 8, record size 4, tag code 8
(store/consumequeue)."""

from __future__ import annotations

import struct
from typing import NamedTuple

UNIT = struct.Struct(">qiq")
UNIT_SIZE = 20
UNITS_PER_FILE = 300_000
FILE_SIZE = UNIT_SIZE * UNITS_PER_FILE


class QueueUnit(NamedTuple):
    """Where one message of a queue is in the log. The unit of queue offset `i` is at byte `i * 20`.
    `physical_offset` is the offset of the record, which is the `pos` of its entry + 48."""

    physical_offset: int
    size: int
    tags_code: int


def unpack_unit(data: bytes | bytearray | memoryview, offset: int = 0) -> QueueUnit:
    """Read one unit of 20 bytes."""
    return QueueUnit._make(UNIT.unpack_from(data, offset))
