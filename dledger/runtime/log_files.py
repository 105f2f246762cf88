"""A rotating log file. It is made anew after it was removed, and used again as soon as it can be written
again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dledger.runtime.log_writer import Descriptor

LOG_FILE_SIZE = 32 * 1024 * 1024
"""Bytes of one log file before the next is begun."""
LOG_FILES = 5
"""Older log files that are kept."""
LOOK_S = 1.0
"""Seconds between two checks that the file still has its name."""


class LogFile:
    """A file that is renamed to `path.1`, `path.2`, ... when it is full, and begun anew.

    Its directory is made if it is missing, also while the program runs. It does not use Python's buffers,
    like `Descriptor`. `write` is called by one thread.
    """

    def __init__(self, path: str, max_bytes: int = LOG_FILE_SIZE, backups: int = LOG_FILES) -> None:
        """Open the file; OSError when that fails."""
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._file = -1
        self._size = 0
        self._looked = time.monotonic()
        self._again = False
        self.line_of: Callable[[str], bytes] = lambda text: f"{text}\n".encode()
        """Formats a line about the log itself, like the other lines."""
        self._open()

    def write(self, line: bytes) -> None:
        """Append a line. After an OSError the line is lost; the next one is tried again."""
        self._look()
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        self._append(line)

    def reopen(self) -> None:
        """Open the file by its name again before the next line. May be called from any thread."""
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
