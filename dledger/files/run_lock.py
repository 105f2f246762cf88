"""The file `lock` of a store: keeps other processes out, and says how the last run was. Methods block.

128 bytes: the machine's boot id (64), the flush mode of the run or `clean` (16), how far the run had written
(index and CRC-32, 12), zeros.

*How far it had written* tells a torn tail from rot after a mere kill (decision 16): what is noted was in the
page cache as a whole (SYNC_FLUSH: on the device) before anybody was told, and what is not noted was told to
nobody. The note is not fsynced: after a loss of power it means nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from dledger.formats.checksum import crc32
from dledger.formats.store_files import LOCK_FILE
from dledger.runtime import File, Files

_BOOT_SIZE = 64
_MODE_SIZE = 16
_WRITTEN = struct.Struct(">qI")
_WRITTEN_AT = _BOOT_SIZE + _MODE_SIZE
_SIZE = 2 * _BOOT_SIZE
_CLEAN = b"clean"
_MODES = {True: b"SYNC_FLUSH", False: b"ASYNC_FLUSH"}


def lock_of_flushed() -> bytes:
    """Content of the lock of a store that a command has made and fsynced, and in which no node has run yet:
    under ASYNC_FLUSH, too, a loss of power took nothing of it."""
    return bytes(_BOOT_SIZE) + _CLEAN.ljust(_BOOT_SIZE, b"\0")


@dataclass(frozen=True)
class LastRun:
    """What the file tells of the run before this one."""

    other_boot: bool
    """The machine was started anew since."""
    clean: bool
    """It ended in good order, with everything fsynced (noted under ASYNC_FLUSH only); or there was none, and
    what made the store has fsynced it."""
    sync_flush: bool | None
    """Its flush mode; None when the file does not say."""
    written: int | None
    """Index of the last entry that it had written; None when nobody knows (older programs, lost power)."""


class RunLock:
    """Held from `take` to `close`."""

    def __init__(self, file: File, boot_id: str) -> None:
        self._file = file
        self._boot = boot_id.encode()[:_BOOT_SIZE]
        self._of_run: int | None = None
        """CRC of what this run noted of itself: what an older program leaves behind it does not fit."""

    @classmethod
    def take(cls, files: Files, node_dir: str, boot_id: str) -> Self:
        """BlockingIOError when another process has it."""
        return cls(files.lock(f"{node_dir}/{LOCK_FILE}"), boot_id)

    def last_run(self) -> LastRun:
        """How the run before this one was and ended."""
        before = self._file.pread(_SIZE, 0).ljust(_SIZE, b"\0")
        how = before[_BOOT_SIZE:_WRITTEN_AT].rstrip(b"\0")
        mode = next((sync for sync, name in _MODES.items() if name == how), None)
        other_boot = before[:_BOOT_SIZE].rstrip(b"\0 ") != self._boot
        index, crc = _WRITTEN.unpack_from(before, _WRITTEN_AT)
        known = not other_boot and mode is not None and crc == _crc(index, crc32(before[:_WRITTEN_AT]))
        return LastRun(other_boot, how.startswith(_CLEAN), mode, index if known else None)

    def note_run(self, sync_flush: bool, last_index: int) -> None:
        """This start of the machine has recovered the log, up to `last_index` (not before: a start may be cut
        short).

        All of it is fsynced: from here on a loss of power is to be judged by the flush mode of this run.
        """
        of_run = self._boot.ljust(_BOOT_SIZE, b"\0") + _MODES[sync_flush].ljust(_MODE_SIZE, b"\0")
        self._of_run = crc32(of_run)
        written = _WRITTEN.pack(last_index, _crc(last_index, self._of_run))
        self._file.pwritev([(of_run + written).ljust(_SIZE, b"\0")], 0)
        self._file.fdatasync()

    def note_written(self, index: int) -> None:
        """All entries up to `index` are written, and nobody was told of further ones."""
        if self._of_run is not None:
            self._file.pwritev([_WRITTEN.pack(index, _crc(index, self._of_run))], _WRITTEN_AT)

    def forget_written(self) -> None:
        """The log is about to be cut by somebody else than its node (`recover`)."""
        self._file.pwritev([bytes(_WRITTEN.size)], _WRITTEN_AT)

    def note_boot(self) -> None:
        """This start of the machine knows what is on the disk."""
        self._file.pwritev([self._boot.ljust(_BOOT_SIZE, b"\0")], 0)

    def clear_clean(self) -> None:
        """Durably: from here on a loss of power may lose something."""
        self._file.pwritev([bytes(_BOOT_SIZE)], _BOOT_SIZE)
        self._file.fdatasync()

    def note_clean(self) -> None:
        """Everything that was written is fsynced, durably said."""
        self._file.pwritev([_CLEAN.ljust(_BOOT_SIZE, b"\0")], _BOOT_SIZE)
        self._file.fdatasync()

    def close(self) -> None:
        """Let others in."""
        self._file.close()


def _crc(index: int, of_run: int) -> int:
    return crc32(index.to_bytes(8, "big", signed=True), of_run)
