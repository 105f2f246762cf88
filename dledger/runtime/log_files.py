"""A rotating log file. If the file was removed, it is made again. If it could not be written, it is tried
again with every line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dledger.runtime.log_writer import Descriptor

LOG_FILE_SIZE = 32 * 1024 * 1024
"""Size, in bytes, at which a log file is full and the next is begun."""
LOG_FILES = 5
"""Number of older log files that are kept."""
LOOK_S = 1.0
"""Interval, in seconds, at which it is checked that the file still has its name."""


class LogFile:
    """A log file. When it is full, it is renamed to `path.1` (and `path.1` to `path.2` ...), and a new file
    is begun. Its directory is made if it is missing, also while the program runs. Like `Descriptor` it does
    not use Python's buffers. Only one thread may call `write`.
    """

    def __init__(self, path: str, max_bytes: int = LOG_FILE_SIZE, backups: int = LOG_FILES) -> None:
        """Open the file. Raises OSError if that fails."""
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._file = -1
        self._size = 0
        self._looked = time.monotonic()
        self._again = False
        self.line_of: Callable[[str], bytes] = lambda text: f"{text}\n".encode()
        """Formats a line about the log itself in the same way as other lines."""
        self._open()

    def write(self, line: bytes) -> None:
        """Append a line. After an OSError this line is lost; the next line is tried again."""
        self._look()
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        self._append(line)

    def reopen(self) -> None:
        """Open the file by its name again before the next line is written. May be called from any thread."""
        self._again = True

    def _look(self) -> None:
        if self._file < 0 or self._again:
            self._again = False
            self._open()
            return
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        if not os.path.exists(self._path):
            self._open()
            text = f"{self._path} was removed or moved while this program ran: a new file was created"
            self._append(self.line_of(text))

    def _append(self, line: bytes) -> None:
        Descriptor(self._file).write(line)
        self._size += len(line)

    def _open(self) -> None:
        self._close()
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _rotate(self) -> None:
        self._close()
        for number in range(self._backups, 0, -1):
            older = f"{self._path}.{number}"
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            if os.path.exists(newer):
                os.replace(newer, older)
        self._open()
