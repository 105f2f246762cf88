"""A disk with a page cache. Each file and directory has a volatile state, a durable state, and a list of the
operations that lead from the durable to the volatile state.

* A write changes the volatile content and is pending until an fsync of the file makes it durable.
* A created, renamed or removed name is pending until its directory is synced; a rename is one operation on
  both directories. Syncing a directory makes durable only its own operations and earlier operations on the
  same files. A program must not expect that other names in other directories become durable with them.
* `kill` keeps everything. `power_cut` keeps what is durable and, depending on its mode, some of the pending
  operations: for each file (inode.py), and for the names of the whole disk. An operation that depends on a
  lost name is lost as well.
* Room is counted in blocks of 4 KiB that were written or allocated. A hole that `truncate` made uses no
  block. The faults are in disk_faults.py.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dledger.chaos.machine.disk_faults import DiskFaults, absolute
from dledger.chaos.machine.inode import MODES, Inode, surviving

if TYPE_CHECKING:
    from dledger.chaos.machine.world import World


def no_entry(path: str) -> FileNotFoundError:
    """Make the FileNotFoundError (ENOENT) for a path that does not exist."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class Directory:
    """The names in one directory."""

    __slots__ = ("durable", "lock_owner", "names", "number")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.lock_owner: object | None = None
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


# The things on which a change of names depends: files and directories by number, and names in a directory.
Subject = int | tuple[int, str]


@dataclass(frozen=True)
class NameOp:
    """One atomic change of names. In each directory that it concerns, one name is removed or set to a file or
    directory."""

    sequence: int
    changes: tuple[tuple[Directory, str, Inode | Directory | None], ...]
    subjects: tuple[Subject, ...]

    def apply_durably(self) -> None:
        """Make the change in the durable state."""
        for directory, name, target in self.changes:
            if target is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = target


class Disk(DiskFaults):
    """The file system of one machine. Paths are POSIX paths; a relative path starts at the root."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        # by number of the open file; they use room even without a name
        self.open_inodes: dict[int, Inode] = {}
        self._numbers = 0
        self._name_ops: list[NameOp] = []
        self._sequence = 0
        self.root: Directory = Directory(self.next_number())

    def next_number(self) -> int:
        """The next number for a file, a directory or an open file."""
        self._numbers += 1
        return self._numbers

    # -- names --------------------------------------------------------------------------------------

    def split(self, path: str) -> tuple[str, str]:
        """Split a path. Returns the normalised path of the parent directory, and the last component."""
        parent, name = posixpath.split(absolute(path))
        return parent, name

    def find(self, path: str) -> Inode | Directory | None:
        """The file or directory at a path, None if there is none."""
        place: Inode | Directory | None = self.root
        for part in absolute(path).split("/"):
            if part:
                place = place.names.get(part) if isinstance(place, Directory) else None
        return place

    def directory(self, path: str) -> Directory:
        """The directory at a path. Raises FileNotFoundError or NotADirectoryError."""
        place = self.find(path)
        if place is None:
            raise no_entry(path)
        if isinstance(place, Inode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return place

    def inode(self, path: str) -> Inode:
        """The file at a path. Raises FileNotFoundError or IsADirectoryError."""
        place = self.find(path)
        if place is None:
            raise no_entry(path)
        if isinstance(place, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return place

    def create(self, path: str) -> Inode:
        """Make and return a new empty file. Its parent directory must exist."""
        parent, name = self.split(path)
        inode = Inode(self.next_number())
        self._change((self.directory(parent), name, inode))
        return inode

    def make_directory(self, path: str) -> bool:
        """Make a directory and its missing parents. The new names are pending until they are synced. Returns
        False if the directory existed."""
        made = False
        parent, name = self.split(path)
        if not name:
            return False
        if self.find(parent) is None:
            self.make_directory(parent)
        place = self.directory(parent)
        there = place.names.get(name)
        if there is None:
            self._change((place, name, Directory(self.next_number())))
            made = True
        elif isinstance(there, Inode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return made

    def rename(self, old: str, new: str) -> None:
        """Rename atomically. A file that has the new name is replaced."""
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
        """Remove a name and, if it is a directory, everything below it. Returns False if there is no such
        name."""
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
        """Number of the last change of names. A sync that begins now covers the changes up to this number."""
        return self._sequence

    def sync_names(self, directory: Directory, mark: int) -> None:
        """Make durable all changes of names in a directory up to number `mark`, and the earlier changes on
        which those depend."""
        self._persist(
            lambda op: op.sequence <= mark and any(change[0] is directory for change in op.changes), mark
        )

    def _persist(self, chooses: Callable[[NameOp], bool], mark: int) -> None:
        wanted: dict[Subject, None] = {}
        chosen: list[NameOp] = []
        rest: list[NameOp] = []
        for op in reversed(self._name_ops):
            if chooses(op) or (op.sequence <= mark and any(subject in wanted for subject in op.subjects)):
                wanted.update(dict.fromkeys(op.subjects))
                chosen.append(op)
            else:
                rest.append(op)
        for op in reversed(chosen):
            op.apply_durably()
        self._name_ops = rest[::-1]

    def power_cut(self, mode: str = "prefix") -> tuple[int, int]:
        """Simulate a power cut: forget the pending operations, except those that survive in this `mode` (see
        `Faults.power_cut`). Returns how many file operations and how many name operations were lost."""
        if mode not in MODES:
            raise ValueError(f"{mode}: not one of {', '.join(MODES)}")
        kept = self._torn_names() if mode == "torn" else self._name_ops[: self._first_names(mode)]
        lost_names = len(self._name_ops) - len(kept)
        for op in kept:
            op.apply_durably()
        self._name_ops = []
        self.open_inodes.clear()
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
                    lost += thing.lose(mode, self.rng)
        return lost, lost_names

    def _first_names(self, mode: str) -> int:
        return surviving(len(self._name_ops), mode, self.rng)

    def _torn_names(self) -> list[NameOp]:
        missing: dict[Subject, None] = {}
        kept: list[NameOp] = []
        for op in self._name_ops:
            if self.rng.random() < 0.5 or any(subject in missing for subject in op.subjects):
                missing.update(dict.fromkeys(op.subjects))
            else:
                kept.append(op)
        return kept

    # -- what is there ------------------------------------------------------------------------------

    def files(self, under: str = "/") -> list[str]:
        """Paths of all files below a directory, sorted."""
        found: list[str] = []
        places = [(absolute(under), self.directory(under))]
        while places:
            path, place = places.pop()
            for name, thing in place.names.items():
                below = posixpath.join(path, name)
                if isinstance(thing, Directory):
                    places.append((below, thing))
                else:
                    found.append(below)
        return sorted(found)

    def used(self) -> int:
        """Bytes of the blocks of all files that have a name or are open."""
        return sum(inode.room for inode in self._inodes())

    def _inodes(self) -> dict[Inode, None]:
        """All files that have a name or are open, in the order in which they were opened or made."""
        inodes = dict.fromkeys(self.open_inodes.values())
        places = [self.root]
        while places:
            for thing in places.pop().names.values():
                if isinstance(thing, Directory):
                    places.append(thing)
                else:
                    inodes[thing] = None
        return inodes

    # -- the page cache ------------------------------------------------------------------------------

    def evict(self) -> None:
        """Simulate a shortage of memory: the page cache no longer holds any page of any file."""
        for inode in self._inodes():
            inode.evict()
        self.world.note(self.name, "evict", "")

    # -- rot ----------------------------------------------------------------------------------------

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Flip one bit of a file, in the page cache and on the device. Raises IndexError if `offset` is
        beyond the end."""
        inode = self.inode(path)
        inode.flip(offset, bit)
        self.world.fault(self.name, "flip", f"{path} {offset} bit {bit}")

    def zero(self, path: str, offset: int, length: int) -> None:
        """Overwrite a range of a file with zeros, in the page cache and on the device. Raises IndexError if
        the range goes beyond the end."""
        self.inode(path).zero(offset, length)
        self.world.fault(self.name, "zero", f"{path} {offset}+{length}")

    def lose(self, path: str) -> None:
        """Remove a file so that no power cut brings it back. Processes that have the file open keep it,
        without a name. Raises FileNotFoundError."""
        self.inode(path)
        self._remove_for_good(path)
        self.world.fault(self.name, "lose", path)

    def wipe(self, path: str) -> None:
        """Remove a directory with everything below it, so that no power cut brings it back. The root itself
        stays, and everything in it is removed."""
        place = self.directory(path)
        if place is self.root:
            place.names.clear()
            place.durable.clear()
            self._name_ops.clear()
        else:
            self._remove_for_good(path)
        self.world.fault(self.name, "wipe", path)

    def _remove_for_good(self, path: str) -> None:
        self.remove(path)
        mark = self.name_mark
        self._persist(lambda op: op.sequence == mark, mark)
