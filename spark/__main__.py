"""Command line: `dledger spark COMMAND ...`. See `--help`, and `spark.commands` for what there is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dledger.audit.crash import exit_4_on_crash


def run(argv: Sequence[str] | None = None) -> int:
    """The whole command; the exit code of the process."""
    from dledger.spark.commands import COMMANDS  # only now: a library that is missing is no verdict either
    from dledger.spark.commands.shell import run as run_one

    return run_one(COMMANDS, argv)


if __name__ == "__main__":
    exit_4_on_crash()
    sys.exit(run())
