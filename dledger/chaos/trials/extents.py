"""Asks the file system which parts of a file have room on the disk (Linux: FS_IOC_FIEMAP)."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import struct

_FIEMAP = 0xC020660B
_REQUEST = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQQQIIII")
_COUNT = 32
"""Extents of one request."""


def has_room(descriptor: int, begin: int, end: int) -> bool:
    """Whether all bytes [begin, end) of a file have blocks on the disk, so that writing them needs no room.
    If the file system cannot say this, everything below the file's end counts."""
    at = begin
    while at < end:
        found = _extents(descriptor, at, end - at)
        if found is None:
            return end <= os.fstat(descriptor).st_size
        before = at
        for start, length in found:
            if start > at:
                return False
            at = max(at, start + length)
        if at == before:
            return False
    return True


def _extents(descriptor: int, start: int, length: int) -> list[tuple[int, int]] | None:
    """Begin and length of the first extents that touch a range; None if the file system cannot say."""
    buffer = array.array("B", bytes(_REQUEST.size + _COUNT * _EXTENT.size))
    _REQUEST.pack_into(buffer, 0, start, length, 0, 0, _COUNT, 0)
    try:
        fcntl.ioctl(descriptor, _FIEMAP, buffer, True)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS):
            return None
        raise
    mapped = _REQUEST.unpack_from(buffer)[3]
    rows = [_EXTENT.unpack_from(buffer, _REQUEST.size + place * _EXTENT.size) for place in range(mapped)]
    return [(row[0], row[2]) for row in rows]
