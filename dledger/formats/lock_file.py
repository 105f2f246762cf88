"""The file `lock` of a store (docs/reference/formats.md): the machine's boot id (64 bytes), the flush mode of
the run or `clean` (16), how far the run had written (index and CRC-32, 12), and zeros.

The CRC of the index continues that of the first 80 bytes. So an index that an older program left in the file
does not match.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from dledger.formats.checksum import crc32

BOOT_SIZE = 64
MODE_SIZE = 16
WRITTEN_AT = BOOT_SIZE + MODE_SIZE
"""Offset of the index up to which the run had written."""
LOCK_SIZE = 2 * BOOT_SIZE
CLEAN = b"clean"
MODES = {True: b"SYNC_FLUSH", False: b"ASYNC_FLUSH"}
"""Maps whether a run fsyncs each group of entries to the name of its flush mode."""
_WRITTEN = struct.Struct(">qI")
WRITTEN_SIZE = _WRITTEN.size


class LockRecord(NamedTuple):
    """Content of the file.

    * `boot`: boot id of the machine.
    * `clean`: whether the run ended in good order, with everything fsynced.
    * `sync_flush`: flush mode of the run, None if the file does not say.
    * `written`: index of the last entry that the run had written, None if the file does not say.
    """

    boot: bytes
    clean: bool
    sync_flush: bool | None
    written: int | None


def pack_written(index: int, of_run: int) -> bytes:
    """Encode the index of the last entry that was written. `of_run` is the CRC-32 of the first 80 bytes."""
    return _WRITTEN.pack(index, _crc(index, of_run))


def unpack_lock(data: bytes) -> LockRecord:
    """Read the content of the file. Missing bytes count as zeros."""
    before = data.ljust(LOCK_SIZE, b"\0")
    how = before[BOOT_SIZE:WRITTEN_AT].rstrip(b"\0")
    mode = next((sync for sync, name in MODES.items() if name == how), None)
    index, crc = _WRITTEN.unpack_from(before, WRITTEN_AT)
    known = mode is not None and crc == _crc(index, crc32(before[:WRITTEN_AT]))
    boot = before[:BOOT_SIZE].rstrip(b"\0 ")
    return LockRecord(boot, how.startswith(CLEAN), mode, index if known else None)


def lock_problem(data: bytes) -> str:
    """Return why the content of the file cannot be what a node or command has written; an empty text if it
    can."""
    if len(data) != LOCK_SIZE:
        return f"it has {len(data)} bytes instead of {LOCK_SIZE}"
    record = unpack_lock(data)
    how = data[BOOT_SIZE:WRITTEN_AT]
    if any(how) and not record.clean and record.sync_flush is None:
        return "it has no known flush mode"
    if any(data[WRITTEN_AT + WRITTEN_SIZE :]):
        return "it does not end with zeros"
    noted = data[WRITTEN_AT : WRITTEN_AT + WRITTEN_SIZE]
    if any(noted) and record.written is None:
        return "its CRC does not match"
    return ""


def _crc(index: int, of_run: int) -> int:
    return crc32(index.to_bytes(8, "big", signed=True), of_run)
