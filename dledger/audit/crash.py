"""Gives a crash of an audit the exit code 4. Python ends with exit code 1 after an unhandled exception, but
for an audit 1 means "warnings".

Imports nothing that may not be installed, so that it can be imported first.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

COULD_NOT_RUN = 4


def exit_4_on_crash() -> None:
    """From this call on, an unhandled exception prints its traceback and ends the process with 4."""
    sys.excepthook = _crash


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(COULD_NOT_RUN)
