"""A rotating log file that says when it cannot be written, and comes back when it can be."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import time

LOG_FILE_SIZE = 32 * 1024 * 1024
"""Bytes of one log file before the next is begun."""
LOG_FILES = 5
"""Older log files that are kept."""
LOOK_S = 1.0
"""Time between two looks whether the file still has its name."""
TELL_S = 60.0
"""Time between two lines on standard error about lines that were lost."""


class LogFile(logging.handlers.RotatingFileHandler):
    """A file in a directory that is made if it is missing, also while the program runs. OSError at first."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        super().__init__(path, maxBytes=LOG_FILE_SIZE, backupCount=LOG_FILES, encoding="utf-8")
        self._looked = time.monotonic()
        self._told = float("-inf")
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. A file that was removed or moved away is made anew, and says so first."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if not os.path.exists(self.baseFilename) and not self.reopen():
                self._write("%s was removed or moved away while this program ran: made anew")
        super().emit(record)

    def reopen(self) -> str:
        """Open the file by its name again. Empty, or why that cannot be: then what was open stays so."""
        try:
            os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
            fresh = self._open()
        except OSError as error:
            self._tell(error)
            return f"{self.baseFilename}: {error.strerror or error}"
        before, self.stream = self.stream, fresh
        try:
            if before is not None:
                before.close()
        except OSError as error:
            self._tell(error)
        return ""

    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        """A line is lost: counted, and said on standard error once a minute."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._lost += 1
            self._tell(error)
        else:
            super().handleError(record)

    def _write(self, text: str) -> None:
        super().emit(logging.LogRecord("log", logging.WARNING, "", 0, text, (self.baseFilename,), None))

    def _tell(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._told < TELL_S:
            return
        self._told = now
        why = error.strerror or error
        try:
            print(
                f"{self.baseFilename} cannot be written: {why}. Log lines lost so far: {self._lost}",
                file=sys.stderr,
                flush=True,
            )
        except OSError:
            return  # nobody is left who could be told
