"""Access to files: the few operations that a log needs. Each says what it makes durable.

Writes go to the page cache. Only `File.fdatasync` makes content durable. Only `Files.sync_dir` makes durable
that a *name* was created, renamed or removed. Errors are `OSError`s. The calls block, so they must be made in
worker jobs. The exceptions are reads with `File.view` of recent data that is in memory, and `File.pread_now`
(safety.md S8).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview

# Linux refuses more vectors than this in one pwritev (UIO_MAXIOV).
MAX_VECTORS = 1024
# Other systems cannot say what is in memory, nor write and sync in one call.
_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_DSYNC = getattr(os, "RWF_DSYNC", None)
_FADVISE = getattr(os, "posix_fadvise", None)


@dataclass(frozen=True)
class DiskUsage:
    """Use of the file system to which a path belongs, in bytes, as `df` counts. Space that is reserved for
    root or by a quota counts neither as used nor as free."""

    total: int
    """Sum of the used and the free bytes."""
    free: int
    """Bytes that this process may still use."""

    @property
    def used_ratio(self) -> float:
        """Share of `total` that is in use, 0.0 to 1.0."""
        return 1.0 - self.free / self.total if self.total else 1.0


class FileStamp(NamedTuple):
    """A value that changes when a file is written to or replaced, or when its name is given to another file.

    `changed_ms` is the wall clock of the last change of the content; it is 0 if `text` is computed from the
    content. Compare `text` as a whole.
    """

    changed_ms: int
    text: str


class File(Protocol):
    """An open file for positional reads and writes."""

    path: str

    def size(self) -> int:
        """Return the length in bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""

    def pread_now(self, length: int, offset: int) -> bytes | None:
        """Read as `pread` does, but do not wait for the disk; None if some of the data is not in memory. If
        the system cannot say what is in memory (a file system in memory or on a network, or not Linux), the
        file is read.
        """

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts one after another at `offset`. Raises OSError if not everything was written."""

    def pwritev_synced(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write as `pwritev` does, and make this write durable, but not earlier writes. A failure is final
        (safety.md S3)."""

    def fdatasync(self) -> None:
        """Make written content and the length durable. A failure is final (safety.md S3)."""

    def start_writeback(self, length: int, offset: int) -> None:
        """Ask the system to begin writing this range from its memory to the disk; do not wait for it. Nothing
        is guaranteed. It is used before many files are fsynced, so that their writes happen at the same time
        and not one after the other."""

    def allocate(self, size: int) -> None:
        """Reserve blocks on the disk up to `size`; they read as zeros. So an error of a full disk comes here
        and not later."""

    def truncate(self, size: int) -> None:
        """Set the length. New bytes read as zeros and have no blocks yet."""

    def view(self) -> memoryview:
        """Return the whole file at its present length, read-only. The view always shows the current content.
        A file has at most one view."""

    def close(self) -> None:
        """Close the file. Raises BufferError if a slice of `view()` still exists; then the file stays
        open."""


class Files(Protocol):
    """Operations on names and directories."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing. Raises FileNotFoundError if the file does not exist and `create` is
        false."""

    def open_read(self, path: str) -> File:
        """Open for reading only, as tools do beside a running node. Raises FileNotFoundError if there is no
        such file, and OSError at once for a directory, a named pipe or a device."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def size(self, path: str) -> int:
        """Return the length in bytes. Raises OSError for anything that is not a file."""

    def stamp(self, path: str) -> FileStamp | None:
        """Return a value that changes with the file; None if there can be no such value. Raises
        FileNotFoundError if there is no such file."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""

    def is_dir(self, path: str) -> bool:
        """Whether the name is a directory."""

    def mkdir(self, path: str, *, sync: bool = True) -> None:
        """Make a directory with its parents, and make their names durable; no error if it exists. With `sync`
        false the names are not durable before `sync_dir` of the parents, as with names of files."""

    def rename(self, old: str, new: str) -> None:
        """Rename, and replace an existing file atomically. Durable after `sync_dir` of both directories."""

    def unlink(self, path: str) -> None:
        """Remove a file name; no error if it does not exist."""

    def rmtree(self, path: str) -> None:
        """Remove a directory and everything in it; no error if it does not exist."""

    def sync_dir(self, path: str) -> None:
        """Make the names in this directory durable."""

    def usage(self, path: str) -> DiskUsage:
        """Return the use of the file system to which the path belongs."""

    def lock(self, path: str) -> File:
        """Create and lock a file, and lock its directory, against other processes until the result is closed.
        Raises BlockingIOError if the file or the directory is locked already. Removing the file does not
        unlock it."""


class OsFile:
    """A file of the operating system."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._syncs_writes = _DSYNC is not None
        self._held = -1

    def hold(self, fd: int) -> None:
        """Keep this descriptor and close it together with the file; -1 means none."""
        self._held = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, length, offset)
        except OSError as error:
            error.filename = self.path  # the system does not say which
            raise
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_now(self, length: int, offset: int) -> bytes | None:
        if _NOWAIT is None:
            return self.pread(length, offset)
        buffer = bytearray(length)
        try:
            got = os.preadv(self._fd, [buffer], offset, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError:  # not every system knows the flag; a real error comes again below
            return self.pread(length, offset)
        if got < length and offset + got < self.size():
            return None  # the rest is not in memory
        return bytes(memoryview(buffer)[:got])

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        if len(parts) > MAX_VECTORS:
            parts = [b"".join(parts)]
        total = sum(len(part) for part in parts)
        written = os.pwritev(self._fd, parts, offset)
        if written == total:
            return
        rest = memoryview(b"".join(parts))[written:]
        offset += written
        while rest:
            count = os.pwrite(self._fd, rest, offset)
            if count == 0:
                raise OSError(errno.EIO, "write made no progress", self.path)
            rest = rest[count:]
            offset += count

    def pwritev_synced(self, parts: Sequence[Buffer], offset: int) -> None:
        if _DSYNC is not None and self._syncs_writes:
            if len(parts) > MAX_VECTORS:
                parts = [b"".join(parts)]
            try:
                written = os.pwritev(self._fd, parts, offset, _DSYNC)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
                self._syncs_writes = False  # not every file system, kernel or sandbox supports the flag
            else:
                if written == sum(len(part) for part in parts):
                    return
        self.pwritev(parts, offset)
        self.fdatasync()

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def start_writeback(self, length: int, offset: int) -> None:
        if _FADVISE is None:
            return
        try:
            # Linux begins to write dirty pages. Only whole pages that are not dirty leave its memory.
            _FADVISE(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            return  # this file system ignores the hint; errors of writing are reported by the fsync

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def view(self) -> memoryview:
        if self._map is None:
            self._map = mmap.mmap(self._fd, self.size(), mmap.MAP_SHARED, mmap.PROT_READ)
        if self._view is None:
            self._view = memoryview(self._map)
        return self._view

    def close(self) -> None:
        if self._map is not None:
            if self._view is not None:
                self._view.release()
                self._view = None
            self._map.close()  # BufferError while a slice is alive: the caller tries again later
            self._map = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._held >= 0:
            fd, self._held = self._held, -1
            os.close(fd)


def _must_be_a_file(path: str, found: os.stat_result) -> None:
    """Raise OSError for a directory, a named pipe or a device: a pipe or device has no size, and may never
    end."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


class OsFiles:
    """The file system of the operating system."""

    def open(self, path: str, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        return OsFile(path, os.open(path, flags, 0o644))

    def open_read(self, path: str) -> OsFile:
        # Without O_NONBLOCK a named pipe in place of a file waits for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _must_be_a_file(path, os.fstat(fd))
        except OSError:
            os.close(fd)
            raise
        return OsFile(path, fd)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        found = os.stat(path)
        _must_be_a_file(path, found)
        return found.st_size

    def stamp(self, path: str) -> FileStamp:
        # The time of the inode's change cannot be set back, as that of the content can.
        stat = os.stat(path)
        numbers = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino)
        return FileStamp(stat.st_mtime_ns // 1_000_000, " ".join(map(str, numbers)))

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def mkdir(self, path: str, *, sync: bool = True) -> None:
        if not sync:
            os.makedirs(path, exist_ok=True)
            return
        missing = []
        while not os.path.isdir(path):
            if os.path.islink(path):
                raise FileNotFoundError(
                    errno.ENOENT, f"a link to {os.readlink(path)}, which is missing", path
                )
            missing.append(path)
            path = os.path.dirname(path) or "."
        for name in reversed(missing):
            os.makedirs(name, exist_ok=True)
            self.sync_dir(os.path.dirname(name) or ".")

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def rmtree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        stats = os.statvfs(path)
        used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
        free = stats.f_bavail * stats.f_frsize
        return DiskUsage(used + free, free)

    def lock(self, path: str) -> OsFile:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.hold(_lock_directory(os.path.dirname(path) or "."))
        except OSError:
            file.close()
            raise
        return file


def _lock_directory(path: str) -> int:
    """Lock a directory and return its descriptor; -1 if the file system cannot lock directories (NFS). Raises
    BlockingIOError if the directory is locked already. (The caller locks a file in the directory in any
    case.)"""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        error.filename = path
        raise
    except OSError:
        os.close(fd)
        return -1
    return fd
