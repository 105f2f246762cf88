"""The process that starts Spark's Python workers, without the traceback that Spark prints whenever a query
ends early (`show`, `limit`, `take`).

Spark then closes the connection to the worker, which is still sending rows. The worker's BrokenPipeError is
no fault, and Spark itself ignores it. Sessions on this machine name this module in the setting
`spark.python.daemon.module`.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace

from pyspark import daemon


def print_exc() -> None:
    """Print the exception that is being handled, unless a query has closed its connection early."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


def main() -> None:
    """Run Spark's own daemon with `print_exc`."""
    instead = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    setattr(daemon, "traceback", instead)  # noqa: B010  (a module, to type checkers)
    daemon.manager()


if __name__ == "__main__":
    main()
