"""The files of a broker whose disk can be broken while it runs.

`FaultyFiles` are the files of the operating system, with two additions. The switches of the trial make
operations fail, wait or take longer. And, if there is an undo journal, every change is recorded there before
it is made, so that a loss of power can be reproduced (`power_loss`).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dledger.chaos.trials.extents import has_room
from dledger.chaos.trials.switches import DiskFault, Switches
from dledger.chaos.trials.undo_journal import Journal, NameChange
from dledger.runtime.files import Buffer, DiskUsage, OsFile, OsFiles

HANG_POLL_S = 0.01
"""Pause, in seconds, between two looks of an operation that hangs at the switch."""
STAGE = "new"
"""Directory of the journal in which files are made before they get their names."""


class Disk:
    """What all files of a broker share: the switches, and the journal with its lock."""

    def __init__(self, switches: Switches, journal: Journal | None) -> None:
        self.switches: Switches = switches
        self.journal: Journal | None = journal
        self.lock: threading.RLock = threading.RLock()
        """Serialises the calls of the journal. Changes of names are made while it is held."""

    def check(self, error: DiskFault, path: str, takes_time: bool) -> None:
        """Let an operation wait, as the switches say, and raise OSError EIO if `error` is switched on."""
        switches = self.switches
        now = switches.disk
        if takes_time and now & DiskFault.HANG:
            switches.count()
            while switches.disk & DiskFault.HANG:
                time.sleep(HANG_POLL_S)
        if takes_time and now & DiskFault.SLOW:
            switches.count()
            time.sleep(switches.slow_ms / 1000)
        if now & error:
            switches.count()
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def full(self, path: str) -> OSError:
        """Count an operation that is refused for lack of room, and return its error ENOSPC."""
        self.switches.count()
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def sync_names(self, path: str, sync: Callable[[str], None]) -> None:
        """Sync a directory, and note which names are durable now."""
        if self.switches.troubled:
            self.check(DiskFault.SYNC_ERROR, path, takes_time=True)
        if self.journal is None:
            sync(path)
            return
        number = os.stat(path).st_ino
        with self.lock:
            mark = self.journal.names_mark()
        sync(path)
        with self.lock:
            for kept in self.journal.names_synced(number, mark):
                # An earlier life of the broker may have removed it already.
                if kept.is_dir():
                    kept.rmdir()
                else:
                    kept.unlink(missing_ok=True)


class FaultyFile(OsFile):
    """An open file. What reads only is passed on; everything else looks at the switches and the journal."""

    def __init__(self, disk: Disk, path: str, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk
        self._inode = os.fstat(fd).st_ino

    def pread(self, length: int, offset: int) -> bytes:
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.READ_ERROR, self.path, takes_time=False)
        return super().pread(length, offset)

    def pread_now(self, length: int, offset: int) -> bytes | None:
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.READ_ERROR, self.path, takes_time=False)
        return super().pread_now(length, offset)

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._write(parts, offset, synced=False)

    def pwritev_synced(self, parts: Sequence[Buffer], offset: int) -> None:
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.SYNC_ERROR, self.path, takes_time=True)
        self._write(parts, offset, synced=True)

    def _write(self, parts: Sequence[Buffer], offset: int, synced: bool) -> None:
        length = sum(len(part) for part in parts)
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.WRITE_ERROR, self.path, takes_time=True)
            self._check_room(offset, offset + length)
        if self._disk.journal is None or not length:
            self._pass_on(parts, offset, synced)
            return
        size = self.size()
        sizes = (size, max(size, offset + length))
        sequence = self._begin(self._disk.journal, offset, length, sizes, resizes=False)
        done = False
        try:
            self._pass_on(parts, offset, synced)
            done = True
        finally:
            with self._disk.lock:
                self._disk.journal.end_write(self._inode, sequence, synced and done)

    def _pass_on(self, parts: Sequence[Buffer], offset: int, synced: bool) -> None:
        if not synced:
            super().pwritev(parts, offset)
        elif self._disk.journal is None:
            super().pwritev_synced(parts, offset)
        else:
            # Not the fallback of `OsFile.pwritev_synced`: its fdatasync would count as one of the broker's.
            super().pwritev(parts, offset)
            super().fdatasync()

    def _begin(
        self, journal: Journal, offset: int, length: int, sizes: tuple[int, int], *, resizes: bool
    ) -> int:
        with self._disk.lock:
            before = super().pread(length, offset) if offset < sizes[0] else b""
            return journal.begin_write(self._inode, offset, length, sizes, before, resizes)

    def _check_room(self, begin: int, end: int) -> None:
        """Raise OSError ENOSPC if the disk is full and not all bytes [begin, end) have room."""
        if self._disk.switches.disk & DiskFault.FULL and not has_room(self._fd, begin, end):
            raise self._disk.full(self.path)

    def fdatasync(self) -> None:
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.SYNC_ERROR, self.path, takes_time=True)
        journal = self._disk.journal
        if journal is None:
            super().fdatasync()
            return
        with self._disk.lock:
            mark = journal.mark(self._inode)
        super().fdatasync()
        with self._disk.lock:
            journal.synced(self._inode, mark)

    def allocate(self, size: int) -> None:
        if self._disk.switches.troubled:
            self._check_room(0, size)
        self._resize(size, max(size, self.size()), super().allocate)

    def truncate(self, size: int) -> None:
        self._resize(size, size, super().truncate)

    def _resize(self, size: int, after: int, change: Callable[[int], None]) -> None:
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.WRITE_ERROR, self.path, takes_time=True)
        before = self.size()
        if self._disk.journal is None or after == before:
            change(size)
            return
        begin, end = min(before, after), max(before, after)
        sequence = self._begin(self._disk.journal, begin, end - begin, (before, after), resizes=True)
        try:
            change(size)
        finally:
            with self._disk.lock:
                self._disk.journal.end_write(self._inode, sequence, synced=False)


class FaultyFiles(OsFiles):
    """The file system of one broker. With a journal, the store and the journal must be in the same file
    system."""

    def __init__(self, switches: Switches, journal: Journal | None) -> None:
        self._disk = Disk(switches, journal)
        if journal is not None:
            self._stage = journal.directory / STAGE
            self._stage.mkdir(exist_ok=True)

    def open(self, path: str, create: bool = False) -> FaultyFile:
        journal = self._disk.journal
        if create and (journal is not None or self._disk.switches.troubled):
            with self._disk.lock:
                if not os.path.lexists(path):
                    self._check_new(path)
                    if journal is not None:
                        self._make(path, journal, self._touch)
        file = super().open(path, create)
        return self._faulty(file)

    def open_read(self, path: str) -> FaultyFile:
        return self._faulty(super().open_read(path))

    def _faulty(self, file: OsFile) -> FaultyFile:
        """Return the open file with faults. The descriptor belongs to the new object."""
        return FaultyFile(self._disk, file.path, file._fd)

    def _check_new(self, path: str) -> None:
        """Raise OSError if no file can be made now."""
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.WRITE_ERROR, path, takes_time=True)
            if self._disk.switches.disk & DiskFault.FULL:
                raise self._disk.full(path)

    @staticmethod
    def _touch(path: Path) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))

    def _make(self, path: str, journal: Journal, make: Callable[[Path], None]) -> None:
        """Make a file or directory elsewhere, so that its number is known before it gets its name."""
        parent, name = _split(path)
        number = os.stat(parent).st_ino
        new = self._stage / f"{os.getpid()}-{journal.names_mark()}"
        make(new)
        inode = os.stat(new).st_ino
        journal.new_file(inode)
        journal.change_names([NameChange(number, name, 0, inode)])
        os.rename(new, path)

    def mkdir(self, path: str, *, sync: bool = True) -> None:
        if self._disk.journal is None:
            if not os.path.isdir(path):
                self._check_new(path)
            super().mkdir(path, sync=sync)
            return
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path) or "."
        for name in reversed(missing):
            with self._disk.lock:
                if not os.path.isdir(name):
                    self._check_new(name)
                    self._make(name, self._disk.journal, Path.mkdir)
            if sync:
                self.sync_dir(os.path.dirname(name) or ".")

    def rename(self, old: str, new: str) -> None:
        if self._disk.switches.troubled:
            self._disk.check(DiskFault.WRITE_ERROR, new, takes_time=True)
        journal = self._disk.journal
        if journal is None:
            super().rename(old, new)
            return
        with self._disk.lock:
            subject, replaced = os.lstat(old).st_ino, _inode(new)
            if subject == replaced:
                return
            (source, old_name), (target, new_name) = _split(old), _split(new)
            kept = journal.change_names(
                [
                    NameChange(os.stat(source).st_ino, old_name, subject, 0),
                    NameChange(os.stat(target).st_ino, new_name, replaced, subject),
                ],
                keeps=bool(replaced),
            )
            if kept is not None and os.path.isdir(new):
                os.rename(new, kept)
            elif kept is not None:
                os.link(new, kept)
            super().rename(old, new)

    def unlink(self, path: str) -> None:
        if self._disk.journal is None:
            super().unlink(path)
            return
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        with self._disk.lock:
            self._remove(path, self._disk.journal)

    def rmtree(self, path: str) -> None:
        if self._disk.journal is None:
            super().rmtree(path)
            return
        with self._disk.lock:
            self._remove_tree(path, self._disk.journal)

    def _remove_tree(self, path: str, journal: Journal) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            for name in sorted(os.listdir(path)):
                self._remove_tree(os.path.join(path, name), journal)
        self._remove(path, journal)

    @staticmethod
    def _remove(path: str, journal: Journal) -> None:
        if number := _inode(path):
            parent, name = _split(path)
            kept = journal.change_names([NameChange(os.stat(parent).st_ino, name, number, 0)], keeps=True)
            assert kept is not None
            os.rename(path, kept)

    def sync_dir(self, path: str) -> None:
        self._disk.sync_names(path, super().sync_dir)

    def usage(self, path: str) -> DiskUsage:
        found = super().usage(path)
        if self._disk.switches.disk & DiskFault.FULL:
            return DiskUsage(found.total, 0)
        return found


def _split(path: str) -> tuple[str, str]:
    parent, name = os.path.split(path.rstrip("/"))
    return parent or ".", name


def _inode(path: str) -> int:
    """Number of a file or directory; 0 if there is none."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0
