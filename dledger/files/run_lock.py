"""The file `lock` of a store: keeps other processes out, and records how the last run was. Methods block.

`formats.lock_file` has the layout of its 128 bytes.

*How far the run had written* distinguishes a torn tail from corruption after a kill without a loss of power
(decision 16). Entries up to the recorded index were completely in the page cache (SYNC_FLUSH: on the device)
before another node or a client was notified of them. Nobody was notified of later entries. The record is not
fsynced, so after a loss of power it means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dledger.formats.checksum import crc32
from dledger.formats.lock_file import (
    BOOT_SIZE,
    CLEAN,
    LOCK_SIZE,
    MODE_SIZE,
    MODES,
    WRITTEN_AT,
    WRITTEN_SIZE,
    pack_written,
    unpack_lock,
)
from dledger.formats.store_files import LOCK_FILE
from dledger.runtime import File, Files


def lock_of_flushed() -> bytes:
    """Return the content of the file for a store that a command has made and fsynced, before any node runs in
    it. It says that a loss of power cannot have lost anything, even under ASYNC_FLUSH."""
    return bytes(BOOT_SIZE) + CLEAN.ljust(BOOT_SIZE, b"\0")


@dataclass(frozen=True)
class LastRun:
    """What the file records about the run before this one."""

    other_boot: bool
    """Whether the machine was started again since that run."""
    clean: bool
    """Whether that run ended in good order, with everything fsynced (recorded under ASYNC_FLUSH only). Also
    true if there was no run, and the command that made the store has fsynced it."""
    sync_flush: bool | None
    """Flush mode of that run; None if the file does not say."""
    written: int | None
    """Index of the last entry that the run had written; None if that is not known (older programs, loss of
    power)."""


class RunLock:
    """The locked file. The lock is held from `take` to `close`."""

    def __init__(self, file: File, boot_id: str) -> None:
        self._file = file
        self._boot = boot_id.encode()[:BOOT_SIZE]
        self._of_run: int | None = None
        """CRC of what this run recorded about itself. The CRC of the recorded index continues it, so an index
        that an older program left in the file does not match."""

    @classmethod
    def take(cls, files: Files, node_dir: str, boot_id: str) -> Self:
        """Take the lock. Raises BlockingIOError if another process has it."""
        return cls(files.lock(f"{node_dir}/{LOCK_FILE}"), boot_id)

    def last_run(self) -> LastRun:
        """How the run before this one was, and how it ended."""
        found = unpack_lock(self._file.pread(LOCK_SIZE, 0))
        other_boot = found.boot != self._boot
        return LastRun(other_boot, found.clean, found.sync_flush, None if other_boot else found.written)

    def note_run(self, sync_flush: bool, last_index: int) -> None:
        """Record that this run has recovered the log up to `last_index`. This is not done earlier, because a
        start may be interrupted.

        Everything up to there is fsynced, so from now on the effects of a loss of power depend on the flush
        mode of this run.
        """
        of_run = self._boot.ljust(BOOT_SIZE, b"\0") + MODES[sync_flush].ljust(MODE_SIZE, b"\0")
        self._of_run = crc32(of_run)
        written = pack_written(last_index, self._of_run)
        self._file.pwritev([(of_run + written).ljust(LOCK_SIZE, b"\0")], 0)
        self._file.fdatasync()

    def note_written(self, index: int) -> None:
        """Record that all entries up to `index` are written. Nobody has been notified of later entries."""
        if self._of_run is not None:
            self._file.pwritev([pack_written(index, self._of_run)], WRITTEN_AT)

    def forget_written(self) -> None:
        """Delete the record of what was written, before a command other than the node (`recover`) cuts the
        log."""
        self._file.pwritev([bytes(WRITTEN_SIZE)], WRITTEN_AT)

    def note_boot(self) -> None:
        """Record that this start of the machine knows what is on the disk."""
        self._file.pwritev([self._boot.ljust(BOOT_SIZE, b"\0")], 0)

    def clear_clean(self) -> None:
        """Delete the mark `clean`, durably, because from now on a loss of power may lose entries."""
        self._file.pwritev([bytes(BOOT_SIZE)], BOOT_SIZE)
        self._file.fdatasync()

    def note_clean(self) -> None:
        """Record durably that everything that was written is fsynced."""
        self._file.pwritev([CLEAN.ljust(BOOT_SIZE, b"\0")], BOOT_SIZE)
        self._file.fdatasync()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()
