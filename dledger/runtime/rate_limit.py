"""Files for background scans. They are read-only, are read no faster than a given rate, and can be stopped
from outside."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from dledger.runtime.files import Buffer, DiskUsage, File, Files, FileStamp


class Pace:
    """Limits how many bytes a second all files of one scanner together read; 0 means no limit. For one
    thread."""

    def __init__(self, bytes_per_s: int) -> None:
        self._rate = bytes_per_s
        self._free_at = 0.0
        self._stopped = threading.Event()

    def limit(self, bytes_per_s: int) -> None:
        """Set another rate from the next read on. May be called from any thread."""
        self._rate = bytes_per_s

    def spend(self, count: int) -> None:
        """Count a read of `count` bytes. Wait first, until the earlier reads fit the rate. Raises OSError
        (ECANCELED) after `stop`."""
        rate = self._rate
        if rate:
            now = time.monotonic()
            if self._free_at > now:
                self._stopped.wait(self._free_at - now)
            self._free_at = max(self._free_at, now) + count / rate
        self.check()

    def check(self) -> None:
        """Raise OSError (ECANCELED) after `stop`, because what was read may be incomplete then."""
        if self._stopped.is_set():
            raise OSError(errno.ECANCELED, "stopped: the program ends")

    def stop(self) -> None:
        """Make reads that wait, and all later reads, fail. May be called from any thread."""
        self._stopped.set()


class PacedFile:
    """An open file; each read counts towards the rate."""

    def __init__(self, file: File, pace: Pace) -> None:
        self.path: str = file.path
        self._file = file
        self._pace = pace

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, offset: int) -> bytes:
        data = self._file.pread(length, offset)
        self._pace.spend(len(data))
        return data

    def pread_now(self, length: int, offset: int) -> bytes | None:
        data = self._file.pread_now(length, offset)
        self._pace.spend(0 if data is None else len(data))
        return data

    def view(self) -> memoryview:
        """Return the whole file. All of its bytes count at once, because the caller is about to read them."""
        self._pace.spend(self._file.size())
        return self._file.view()

    def close(self) -> None:
        self._file.close()

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> NoReturn:
        raise _read_only(self.path)

    def pwritev_synced(self, parts: Sequence[Buffer], offset: int) -> NoReturn:
        raise _read_only(self.path)

    def fdatasync(self) -> NoReturn:
        raise _read_only(self.path)

    def start_writeback(self, length: int, offset: int) -> NoReturn:
        raise _read_only(self.path)

    def allocate(self, size: int) -> NoReturn:
        raise _read_only(self.path)

    def truncate(self, size: int) -> NoReturn:
        raise _read_only(self.path)


class PacedFiles:
    """A `Files` object for reading only, at a limited rate."""

    def __init__(self, files: Files, pace: Pace) -> None:
        self._files = files
        self._pace = pace

    def open_read(self, path: str) -> PacedFile:
        return PacedFile(self._files.open_read(path), self._pace)

    def open(self, path: str, create: bool = False) -> PacedFile:
        if create:
            raise _read_only(path)
        return self.open_read(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def stamp(self, path: str) -> FileStamp | None:
        return self._files.stamp(path)

    def listdir(self, path: str) -> list[str]:
        return self._files.listdir(path)

    def is_dir(self, path: str) -> bool:
        return self._files.is_dir(path)

    def usage(self, path: str) -> DiskUsage:
        return self._files.usage(path)

    def mkdir(self, path: str, *, sync: bool = True) -> NoReturn:
        raise _read_only(path)

    def rename(self, old: str, new: str) -> NoReturn:
        raise _read_only(new)

    def unlink(self, path: str) -> NoReturn:
        raise _read_only(path)

    def rmtree(self, path: str) -> NoReturn:
        raise _read_only(path)

    def sync_dir(self, path: str) -> NoReturn:
        raise _read_only(path)

    def lock(self, path: str) -> NoReturn:
        raise _read_only(path)


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "these files are read-only", path)
