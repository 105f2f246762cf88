"""Writes log lines in a thread, so that code that logs never waits for a reader or a disk.

Standard error may be a pipe that is not read for a while (a stalled log driver, a terminal after Ctrl-S), and
a log directory may be on a disk that hangs. Then lines wait in a bounded queue. When it is full the oldest
lines are dropped and counted. As soon as a line can be written, the count is logged instead of them.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol

MAX_QUEUED_LINES = 10_000
MAX_QUEUED_BYTES = 8 * 1024 * 1024
"""Limits of the lines that wait to be written: their number, and their bytes. Beyond them the oldest lines
are dropped."""
FLUSH_LIMIT_S = 1.0
"""Largest time, in seconds, for which an orderly end of the process waits until all lines are written. It
then waits as long again for one last line."""
STDOUT, STDERR = 1, 2
_OWN_NAME = "log"
"""Name of the logger that is shown in lines about the log itself."""


class Target(Protocol):
    """A destination of lines. `write` may block. It raises OSError if a line is lost."""

    def write(self, line: bytes) -> None:
        """Write one line. The line includes its newline."""


class Descriptor:
    """An open file, such as standard error. It does not use Python's buffers, because a thread that hangs
    while it writes such a buffer would keep the interpreter from ending."""

    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, line: bytes) -> None:
        """Write the whole line. If the descriptor is in non-blocking mode, wait until it accepts the line."""
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._number, left) :]
            except BlockingIOError:
                select.select([], [self._number], [])


class QueuedHandler(logging.Handler):
    """Passes formatted lines to a thread, which writes them to `target` (see the module). The thread is a
    daemon, so a write that hangs does not keep the process from ending.
    """

    def __init__(self, target: Target, complain: Callable[[str], None] | None = None) -> None:
        """`complain` is called in the thread if `target` fails. If several errors follow one another, it gets
        the text of the first one only."""
        super().__init__()
        self.target: Target = target
        self._complain = complain
        self._changed = threading.Condition(threading.Lock())
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._why = ""
        self._idle = True
        """Whether the thread has written all lines that it took from the queue."""
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never waits for the target."""
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
        except (
            TypeError,
            ValueError,
            LookupError,
        ):  # as in logging's handlers, a line that cannot be formatted is no failure of the program
            self.handleError(record)
            return
        with self._changed:
            self._lines.append(line)
            self._bytes += len(line)
            while len(self._lines) > MAX_QUEUED_LINES or self._bytes > MAX_QUEUED_BYTES:
                self._bytes -= len(self._lines.popleft())
                self._dropped += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but at most `FLUSH_LIMIT_S`."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle and not self._lines, FLUSH_LIMIT_S)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._lines))
                self._idle = False
                dropped, why, self._dropped, self._why = self._dropped, self._why, 0, ""
                line = self._lines.popleft()
                self._bytes -= len(line)
            try:
                if dropped:
                    self.target.write(self._note(dropped, why))
                    dropped, why = 0, ""
                self.target.write(line)
            except OSError as error:
                if not why and self._complain is not None:
                    self._complain(f"the log cannot be written: {error}")
                with self._changed:
                    self._dropped += dropped + 1
                    self._why = str(error)

    def _note(self, dropped: int, why: str) -> bytes:
        reason = why or "lines came faster than they could be written"
        text = f"log lines dropped count={dropped} reason={reason}"
        return self.line_of(text)

    def line_of(self, text: str) -> bytes:
        """Format a warning about the log itself in the same way as other lines."""
        record = logging.LogRecord(_OWN_NAME, logging.WARNING, "", 0, text, None, None)
        return (self.format(record) + "\n").encode("utf-8", "backslashreplace")


def standard_error() -> Target | None:
    """Return standard error without Python's buffers; None if it does not exist or was replaced."""
    return _standard(sys.stderr, sys.__stderr__, STDERR)


def say(line: str, *, stdout: bool = False, limit_s: float = FLUSH_LIMIT_S) -> None:
    """Write a line to standard error, or to standard output. Wait for its reader no longer than `limit_s`.

    Raises OSError if the line cannot be written, and TimeoutError (a kind of OSError) if the reader does not
    read it in time. In the latter case the line is written when the reader resumes, if the process still runs
    then.
    """
    stream, original = (sys.stdout, sys.__stdout__) if stdout else (sys.stderr, sys.__stderr__)
    target = _standard(stream, original, STDOUT if stdout else STDERR)
    if target is None:
        if stream is not None:
            print(line, file=stream, flush=True)
        return
    failures: list[OSError] = []

    def write() -> None:
        try:
            target.write(f"{line}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            failures.append(error)

    writing = threading.Thread(target=write, name="last word", daemon=True)
    writing.start()
    writing.join(limit_s)
    if failures:
        raise failures[0]
    if writing.is_alive():
        raise TimeoutError("the reader of the log takes no data")


def say_what_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The `sys.excepthook` of servers, which reports the exception that ended the process. It prints the
    traceback to standard error, but waits only for a limited time if nobody reads it."""
    flush_logs()
    with suppress(OSError):
        say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def flush_logs() -> None:
    """Wait until all logged lines are written, but at most `FLUSH_LIMIT_S` for each file."""
    names = list(logging.root.manager.loggerDict)
    for logger in (logging.getLogger(), *map(logging.getLogger, names)):
        for handler in logger.handlers:
            if isinstance(handler, QueuedHandler):
                handler.flush()


def _standard(stream: object, original: object, number: int) -> Target | None:
    if stream is None or stream is not original:
        return None
    return Descriptor(number)
