"""`dledger spark COMMAND ...`. See `--help`, and `dledger.spark.commands` for what there is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dledger.audit.crash import exit_4_on_crash


def run(argv: Sequence[str] | None = None) -> int:
    """The whole command, in a process of somebody else's; its exit code."""
    from dledger.spark.commands import COMMANDS  # only now: a library that is missing is no verdict either
    from dledger.spark.commands.program import run as run_one

    return run_one(COMMANDS, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The whole command; the exit code of the process, 4 after a crash."""
    exit_4_on_crash()
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
