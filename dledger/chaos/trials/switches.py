"""The switches of a broker whose surroundings can be broken: one page of memory that the trial and the broker
share, as a mapped file.

The trial sets a switch, and the broker reads it at its next operation. Without a fault the broker reads one
number for each operation on a file. The broker counts in the same page how often a fault struck.
"""

from __future__ import annotations

import enum
import mmap
import os
from pathlib import Path

SIZE = 4096
"""Size of the file, in bytes."""


class DiskFault(enum.IntFlag):
    """What is wrong with the disk. Several faults may exist at once."""

    FULL = 1
    """Writes that need room fail with ENOSPC, and the file system reports that it is full."""
    READ_ERROR = 2
    """Reads fail with EIO. Reads through a mapping are not affected."""
    WRITE_ERROR = 4
    """Writes fail with EIO."""
    SYNC_ERROR = 8
    """Syncs of files and directories fail with EIO."""
    SLOW = 16
    """Each write and each sync takes longer (`slow_ms`)."""
    HANG = 32
    """Writes and syncs wait until the fault is over."""


_DISK, _SLOW_MS, _CLOCK_MS, _STRUCK = range(4)


class Switches:
    """The switches of one broker. Every number is 64 bits wide and aligned, so neither side ever reads half
    of a change. Only the trial sets switches, and only the broker counts."""

    def __init__(self, path: Path) -> None:
        """Map the file, which is made if it does not exist. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            self._numbers = memoryview(mmap.mmap(descriptor, SIZE)).cast("q")
        finally:
            os.close(descriptor)

    @property
    def disk(self) -> DiskFault:
        """The faults of the disk."""
        return DiskFault(self._numbers[_DISK])

    @disk.setter
    def disk(self, value: DiskFault) -> None:
        self._numbers[_DISK] = value

    @property
    def troubled(self) -> int:
        """The faults of the disk as a number; 0 if there is none. This is all that an operation on a file
        reads while there is no fault."""
        return self._numbers[_DISK]

    @property
    def slow_ms(self) -> int:
        """How much longer each write and each sync takes, in milliseconds."""
        return self._numbers[_SLOW_MS]

    @slow_ms.setter
    def slow_ms(self, value: int) -> None:
        self._numbers[_SLOW_MS] = value

    @property
    def clock_ms(self) -> int:
        """How far the broker's wall clock is ahead of the right time, in milliseconds; negative if it is
        behind."""
        return self._numbers[_CLOCK_MS]

    @clock_ms.setter
    def clock_ms(self, value: int) -> None:
        self._numbers[_CLOCK_MS] = value

    @property
    def struck(self) -> int:
        """How many operations of the broker a fault of the disk has changed."""
        return self._numbers[_STRUCK]

    def count(self) -> None:
        """Count an operation that a fault has changed."""
        self._numbers[_STRUCK] += 1
