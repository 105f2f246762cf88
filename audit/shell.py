"""The outer shell: shared options, and a crash of an audit must not look like "warnings".

Python ends with exit code 1 after an unhandled exception, and 1 means warnings here.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from types import TracebackType

from audit.compare import LAG_WARNING_ENTRIES

COULD_NOT_RUN = 4


def add_audit_arguments(command: argparse.ArgumentParser) -> None:
    """Options that the audit has with and without Spark."""
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--lag-warning",
        type=int,
        default=LAG_WARNING_ENTRIES,
        metavar="N",
        help="warn of a replica that is more than N entries behind (default %(default)s)",
    )


def exit_4_on_crash() -> None:
    """From here on, an unhandled exception prints its traceback and ends the process with 4."""
    sys.excepthook = _crash


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(COULD_NOT_RUN)
