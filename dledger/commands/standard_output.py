"""Standard output of commands: when it cannot be written, a command ends with one line, not with a
traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast


class OutputFailed(Exception):
    """Raised if standard output cannot be written, for example on a full disk. The text says why.

    It is not an OSError, so no command takes it for a failure of the data that it works on. If the reader of
    a pipe has gone (`dledger ... | head`), the error stays a BrokenPipeError, which ends a command silently.
    """


class _Guarded(io.TextIOWrapper):
    """Standard output that raises OutputFailed if it cannot be written."""

    def write(self, text: str, /) -> int:
        """Write as any text stream does. Raises OutputFailed if that fails."""
        with _told():
            return super().write(text)

    def flush(self) -> None:
        """Flush as any text stream does. Raises OutputFailed if that fails."""
        with _told():
            super().flush()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(error.strerror or str(error)) from error


@contextmanager
def guarded() -> Iterator[None]:
    """Guard this process's standard output while a command runs. If standard output was replaced, as in a
    test that captures it, nothing is done."""
    stream = sys.stdout
    if type(stream) is not io.TextIOWrapper or not _is_standard(stream):
        yield
        return
    stream.flush()
    sys.stdout = guard = _Guarded(
        cast(io.BufferedWriter, stream.buffer),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )
    try:
        try:
            yield
        finally:
            guard.flush()  # most commands end by SystemExit
    finally:
        sys.stdout = stream
        with suppress(OSError, OutputFailed):
            guard.detach()


def _is_standard(stream: io.TextIOWrapper) -> bool:
    try:
        return stream.fileno() == 1
    except OSError:  # also io.UnsupportedOperation
        return False
