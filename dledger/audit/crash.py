"""A crash of an audit must not look like "warnings": Python ends with exit code 1 after an unhandled
exception, and 1 means warnings here. Imports nothing that may not be installed, so that it can come first."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

COULD_NOT_RUN = 4


def exit_4_on_crash() -> None:
    """From here on, an unhandled exception prints its traceback and ends the process with 4."""
    sys.excepthook = _crash


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(COULD_NOT_RUN)
