"""A disk with a page cache: per file and per directory a volatile state, a durable one, and the operations
that lie between them in order.

* A write changes the volatile content and is pending until an fsync of the file makes it durable.
* A created, renamed or removed name is pending until its directory is synced; a rename is one operation
  on both directories. Syncing one directory makes only its own operations durable, and the earlier ones
  of the same files: nobody may rely on the neighbours.
* `kill` keeps everything. `power_cut` keeps what is durable and a prefix, chosen by the seed, of what
  is pending: for each file, and for the names of the whole disk.

Seams for later faults: `_surviving` (torn and reordered writes), `Inode.read` and `Inode.write` (rot,
errors, a full disk).
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from chaos.sim.world import World

T = TypeVar("T")

_LARGE = 64 * 1024

# A write (offset, bytes) or a new length (length, None).
FileOp = tuple[int, bytes | None]


def no_entry(path: str) -> FileNotFoundError:
    """ENOENT."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def apply_op(content: bytearray, op: FileOp) -> bytearray:
    """A content after one operation, changed in place unless it was empty."""
    offset, data = op
    length = offset if data is None else offset + len(data)
    if data is None and length < len(content):
        del content[length:]
    elif length > len(content):
        if content:
            content.extend(bytes(length - len(content)))
        else:
            content = bytearray(length)  # zeros that take no memory until they are touched
    if data is not None:
        with memoryview(content) as view:
            view[offset : offset + len(data)] = data
    return content


class Inode:
    """Content of one file, whatever its names."""

    __slots__ = ("_dirty_end", "content", "durable", "lock_owner", "number", "pending", "written")

    def __init__(self, number: int) -> None:
        self.number = number
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: deque[FileOp] = deque()
        self.written = 0  # operations ever
        self._dirty_end = 0  # zeros from here on
        self.lock_owner: object | None = None

    def write(self, op: FileOp) -> None:
        """Into the page cache. BufferError when a mapped file would change its length."""
        op = self._without_zeros(op)
        self.content = apply_op(self.content, op)
        self.pending.append(op)
        self.written += 1
        offset, data = op
        self._dirty_end = (
            min(self._dirty_end, offset) if data is None else max(self._dirty_end, offset + len(data))
        )

    def _without_zeros(self, op: FileOp) -> FileOp:
        # Prepared segments are filled with megabytes of zeros: as memory that nobody touched they are free.
        offset, data = op
        if data is None or len(data) < _LARGE or offset < self._dirty_end or data != bytes(len(data)):
            return op
        return (max(len(self.content), offset + len(data)), None)

    def read(self, offset: int, length: int) -> bytes:
        """From the page cache; short at the end."""
        with memoryview(self.content) as view:
            return bytes(view[offset : offset + length])

    def commit(self, mark: int) -> None:
        """Make the first `mark` operations ever durable."""
        count = len(self.pending) - (self.written - mark)
        for _ in range(count):
            self.durable = apply_op(self.durable, self.pending.popleft())

    def lose(self, rng: random.Random) -> int:
        """Power cut. Returns the number of lost operations. The old content object stays with the dead."""
        kept = _surviving(list(self.pending), rng)
        lost = len(self.pending) - len(kept)
        for op in kept:
            self.durable = apply_op(self.durable, op)
        self.pending.clear()
        self.written = 0
        self.content = bytearray(self.durable)
        self.lock_owner = None
        return lost


class Directory:
    """Names in one directory."""

    __slots__ = ("durable", "names", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


# What a change of names depends on: a file or directory by number, and a name in a directory.
Subject = int | tuple[int, str]


@dataclass(frozen=True)
class NameOp:
    """One atomic change of names: in each of the directories, a name set to something or to nothing."""

    sequence: int
    changes: tuple[tuple[Directory, str, Inode | Directory | None], ...]
    subjects: tuple[Subject, ...]

    def apply_durably(self) -> None:
        """To the durable state."""
        for directory, name, target in self.changes:
            if target is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = target


def _surviving(pending: list[T], rng: random.Random) -> list[T]:
    """What a power cut leaves of pending operations: a prefix."""
    return pending[: rng.randint(0, len(pending))] if pending else pending


class Disk:
    """The file system of one machine. Paths are POSIX; relative ones start at the root."""

    def __init__(self, world: World, name: str) -> None:
        self._random = world.stream(f"disk/{name}")
        self._numbers = 0
        self._name_ops: list[NameOp] = []
        self._sequence = 0
        self.root = Directory(self._number())

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- names --------------------------------------------------------------------------------------

    def split(self, path: str) -> tuple[str, str]:
        """Normalised parent and last component."""
        parent, name = posixpath.split(posixpath.normpath("/" + path))
        return parent, name

    def find(self, path: str) -> Inode | Directory | None:
        """What a path names."""
        place: Inode | Directory | None = self.root
        for part in posixpath.normpath("/" + path).split("/"):
            if part:
                place = place.names.get(part) if isinstance(place, Directory) else None
        return place

    def directory(self, path: str) -> Directory:
        """FileNotFoundError, NotADirectoryError."""
        place = self.find(path)
        if place is None:
            raise no_entry(path)
        if isinstance(place, Inode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return place

    def inode(self, path: str) -> Inode:
        """FileNotFoundError, IsADirectoryError."""
        place = self.find(path)
        if place is None:
            raise no_entry(path)
        if isinstance(place, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return place

    def create(self, path: str) -> Inode:
        """A new empty file; the parent must exist."""
        parent, name = self.split(path)
        inode = Inode(self._number())
        self._change((self.directory(parent), name, inode))
        return inode

    def make_directory(self, path: str) -> bool:
        """With its parents, all of them pending. False when it was there."""
        made = False
        parent, name = self.split(path)
        if not name:
            return False
        if self.find(parent) is None:
            self.make_directory(parent)
        place = self.directory(parent)
        there = place.names.get(name)
        if there is None:
            self._change((place, name, Directory(self._number())))
            made = True
        elif isinstance(there, Inode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return made

    def rename(self, old: str, new: str) -> None:
        """Atomically, replacing a file of the new name."""
        old_parent, old_name = self.split(old)
        new_parent, new_name = self.split(new)
        source, target = self.directory(old_parent), self.directory(new_parent)
        subject, replaced = source.names.get(old_name), target.names.get(new_name)
        if subject is None:
            raise no_entry(old)
        if subject is replaced:
            return
        if isinstance(replaced, Directory) and isinstance(subject, Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new)
        if isinstance(replaced, Inode) and isinstance(subject, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), new)
        if isinstance(replaced, Directory) and replaced.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        self._change((source, old_name, None), (target, new_name, subject))

    def remove(self, path: str) -> bool:
        """A name and, if it is a directory, all below it. False when it is not there."""
        if self.find(path) is None:
            return False
        parent, name = self.split(path)
        self._change((self.directory(parent), name, None))
        return True

    def _change(self, *changes: tuple[Directory, str, Inode | Directory | None]) -> None:
        subjects: list[Subject] = []
        for directory, name, target in changes:
            before = directory.names.get(name)
            subjects.append((directory.number, name))
            subjects += [thing.number for thing in (before, target) if thing is not None]
            if target is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = target
        self._sequence += 1
        self._name_ops.append(NameOp(self._sequence, changes, tuple(subjects)))

    # -- durability ---------------------------------------------------------------------------------

    @property
    def name_mark(self) -> int:
        """Number of the last change of names: what a sync that begins now covers."""
        return self._sequence

    def sync_names(self, directory: Directory, mark: int) -> None:
        """Make the changes in a directory up to `mark` durable, and the earlier ones they build on."""
        wanted: dict[Subject, None] = {}
        chosen: list[NameOp] = []
        rest: list[NameOp] = []
        for op in reversed(self._name_ops):
            touches = any(change[0] is directory for change in op.changes)
            if op.sequence <= mark and (touches or any(subject in wanted for subject in op.subjects)):
                wanted.update(dict.fromkeys(op.subjects))
                chosen.append(op)
            else:
                rest.append(op)
        for op in reversed(chosen):
            op.apply_durably()
        self._name_ops = rest[::-1]

    def power_cut(self, mode: str = "prefix") -> tuple[int, int]:
        """Forget what is not durable. Returns how many file operations and name operations were lost."""
        kept = _surviving(self._name_ops, self._random)
        lost_names = len(self._name_ops) - len(kept)
        for op in kept:
            op.apply_durably()
        self._name_ops = []
        lost = 0
        seen: dict[int, None] = {}
        places = [self.root]
        while places:
            place = places.pop()
            place.names = dict(place.durable)
            for name in sorted(place.names):
                thing = place.names[name]
                if isinstance(thing, Directory):
                    places.append(thing)
                elif thing.number not in seen:
                    seen[thing.number] = None
                    lost += thing.lose(self._random)
        return lost, lost_names

    def used(self) -> int:
        """Bytes in all files that have a name."""
        total = 0
        places = [self.root]
        while places:
            for thing in places.pop().names.values():
                if isinstance(thing, Directory):
                    places.append(thing)
                else:
                    total += len(thing.content)
        return total
