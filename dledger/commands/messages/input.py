"""Reads standard input or a file on the event loop, without a thread.

A thread that waits for a terminal or a pipe could not be ended by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from collections.abc import AsyncIterator
from types import TracebackType

CHUNK_BYTES = 64 * 1024


class Input:
    """An open input. Raises OSError if it cannot be opened."""

    def __init__(self, path: str) -> None:
        """`path` is the file to read; `-` means standard input."""
        self.name = "standard input" if path == "-" else path
        self._own = path != "-"
        if not self._own and sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        self._fd = os.open(path, os.O_RDONLY) if self._own else sys.stdin.fileno()
        kind = os.fstat(self._fd).st_mode
        if stat.S_ISDIR(kind):
            self.close()
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self._waits = not stat.S_ISREG(kind)

    def close(self) -> None:
        """Close the file, if this object opened it."""
        if self._own:
            os.close(self._fd)

    def __enter__(self) -> Input:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they arrive, until the input ends."""
        while data := await self._read():
            yield data

    async def _read(self) -> bytes:
        if not self._waits:
            await asyncio.sleep(0)  # a file is always ready: let other tasks run
            return os.read(self._fd, CHUNK_BYTES)
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:  # such as /dev/null, which no selector takes
            return os.read(self._fd, CHUNK_BYTES)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)
        return os.read(self._fd, CHUNK_BYTES)
