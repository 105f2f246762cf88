"""Faults of a disk: what the simulated disk `node.disk` can be told to do wrong.

Each fault that happens writes one line of kind `fault` to the trace, and is counted in `world.faults`. A
fault that has to wait for an operation writes a line of kind `arm` when it is requested.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger.chaos.machine.inode import BLOCK, SECTOR, Inode

if TYPE_CHECKING:
    import random

    from dledger.chaos.machine.world import World

OPERATIONS = ("write", "fsync", "read", "open")


def absolute(path: str) -> str:
    """The normalised absolute path."""
    return posixpath.normpath("///" + path)  # two slashes would be kept


@dataclass
class _Failure:
    operation: str
    path: str
    left: int
    code: int


class DiskFaults:
    """The faults of a `Disk`, as its base class."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng: random.Random = world.stream(f"disk/{name}")
        self.slowness: float = 1.0
        self.hung: bool = False
        self.forgetful: float = 0.0  # probability that a page is not in memory, for each look-up
        self.troubled: bool = False  # whether reads and writes have to look for faults
        self._room: int | None = None
        self._failures: list[_Failure] = []
        self._misdirected: list[str] = []
        self.on_misdirect: Callable[[str, int, int, int], None] | None = None
        """Called with the path, the intended offset, the length in bytes and the actual offset of each
        misdirected write."""
        self.on_failure: Callable[[str, str], None] | None = None
        """Called with the name of the operation and the path of each operation that fails."""
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []  # calls that end jobs, for `resume`

    def used(self) -> int:
        """Bytes that all files use."""
        raise NotImplementedError

    def _ask(self) -> None:
        self.troubled = bool(self._failures or self._misdirected or self._room is not None)

    # -- faults --------------------------------------------------------------------------------------

    def room(self, capacity: int | None) -> None:
        """Limit the disk to `capacity` bytes in all (see `used`). None restores the capacity of the settings.

        Beyond the limit, new files and writes to ranges without blocks fail with ENOSPC. Writes to blocks
        that a file already has succeed, and removing files frees room.
        """
        if capacity is None:
            self.world.note(self.name, "room", "any")
        else:
            self.world.fault(self.name, "disk_room", f"{capacity}, used {self.used()}")
        self._room = capacity
        self._ask()

    def fail(self, operation: str, count: int = 1, path: str = "/", code: int = errno.EIO) -> None:
        """Let the next `count` operations of this kind on the file `path`, or below the directory `path`,
        fail with an OSError of this code.

        Operations are "write" (also allocate and truncate), "fsync" (of files and directories), "read" (of
        files; in the simulation, mappings show no errors) and "open".
        """
        if operation not in OPERATIONS:
            raise ValueError(f"{operation}: not one of {', '.join(OPERATIONS)}")
        self.world.note(self.name, "arm", f"eio_{operation} x{count} {path}")
        self._failures.append(_Failure(operation, absolute(path), count, code))
        self._ask()

    def misdirect(self, path: str = "/") -> None:
        """Let the next write to the file `path`, or below the directory `path`, land at a wrong offset of the
        same file.

        The write is shifted by a multiple of 512 bytes. If the file is too short for another offset, the
        write is not changed, and the fault waits for the next write.
        """
        self.world.note(self.name, "arm", f"misdirect {path}")
        self._misdirected.append(absolute(path))
        self._ask()

    def slow(self, factor: float) -> None:
        """Let jobs that use the disk take `factor` times as long. A factor of 1 ends the slowness."""
        if factor != 1:
            self.world.fault(self.name, "disk_slow", f"{factor:g}")
        else:
            self.world.note(self.name, "quick", "")
        self.slowness = factor

    def forget(self, chance: float) -> None:
        """Simulate a shortage of memory: each look-up in the page cache misses with probability `chance`. A
        chance of 0 ends the shortage."""
        if chance:
            self.world.fault(self.name, "short_memory", f"{chance:g}")
        else:
            self.world.note(self.name, "memory", "")
        self.forgetful = chance

    def hang(self) -> None:
        """Let no job that uses the disk end before `resume` is called. A power cut before that loses these
        jobs."""
        if not self.hung:
            self.world.fault(self.name, "disk_hang")
            self.hung = True

    def resume(self) -> None:
        """End `hang`: the jobs that wait can end."""
        if self.hung:
            self.world.note(self.name, "resume", f"{len(self._waiting)} jobs")
            self.hung = False
            waiting, self._waiting = self._waiting, []
            for action, argument in waiting:
                self.world.push(self.world.now, action, argument)

    def mend(self) -> None:
        """End the faults of this disk: the limit of room, armed failures, slowness, hanging and the shortage
        of memory. Damaged content (rot) stays damaged."""
        self.resume()
        if self.slowness != 1:
            self.slow(1)
        if self.forgetful:
            self.forget(0)
        if self._room is not None:
            self.room(None)
        self._failures.clear()
        self._misdirected.clear()
        self._ask()

    # -- what the operations ask ---------------------------------------------------------------------

    def wait(self, action: Callable[[Any], None], argument: Any) -> None:
        """Remember `action(argument)`; `resume` calls it."""
        self._waiting.append((action, argument))

    @property
    def capacity(self) -> int:
        """Total size of the disk in bytes."""
        return self.world.settings.disk_bytes if self._room is None else self._room

    def free(self) -> int | None:
        """Bytes that are left, or None when no limit of room is set."""
        return None if self._room is None else max(0, self._room - self.used())

    def full(self, path: str) -> OSError:
        """Count a write that is refused for lack of room, and return its error ENOSPC."""
        self.world.fault(self.name, "enospc", path)
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def check_room(self, path: str) -> None:
        """Raises OSError ENOSPC if there is no block left for a new name."""
        free = self.free()
        if free is not None and free < BLOCK:
            raise self.full(path)

    def failure(self, operation: str, path: str) -> OSError | None:
        """The error with which this operation has to fail, or None if it succeeds. Each error uses up one of
        the failures that were requested with `fail`."""
        for rule in self._failures:
            if rule.operation == operation and _below(path, rule.path):
                rule.left -= 1
                if rule.left <= 0:
                    self._failures.remove(rule)
                    self._ask()
                self.world.fault(self.name, f"eio_{operation}", path)
                if self.on_failure is not None:
                    self.on_failure(operation, path)
                return OSError(rule.code, os.strerror(rule.code), path)
        return None

    def check(self, operation: str, path: str) -> None:
        """Raises the OSError that was requested with `fail`, if this operation has to fail."""
        if self._failures and (error := self.failure(operation, path)) is not None:
            raise error

    def place(self, path: str, inode: Inode, offset: int, length: int) -> int:
        """The offset at which a write lands: the given one, or another one if `misdirect` is armed for the
        file."""
        shift = offset % SECTOR
        places = (len(inode.content) - length - shift) // SECTOR + 1
        rule = next((rule for rule in self._misdirected if _below(path, rule)), None)
        if rule is None or places < 1:
            return offset
        found = self.rng.randrange(places) * SECTOR + shift
        if found == offset:
            found = (found + SECTOR) % (places * SECTOR)
        if found != offset:
            self._misdirected.remove(rule)
            self._ask()
            self.world.fault(self.name, "misdirect", f"{path} {offset}+{length} to {found}")
            if self.on_misdirect is not None:
                self.on_misdirect(path, offset, length, found)
        return found


def _below(path: str, place: str) -> bool:
    path = absolute(path)
    return place == "/" or path == place or path.startswith(place + "/")
