"""Command line: `python -m spark COMMAND ...`. See `--help`, and `spark.commands` for what there is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from audit.shell import exit_4_on_crash
from spark.commands import COMMANDS
from spark.commands.shell import run as run_one


def run(argv: Sequence[str] | None = None) -> int:
    """The whole command; the exit code of the process."""
    return run_one(COMMANDS, argv)


if __name__ == "__main__":
    exit_4_on_crash()
    sys.exit(run())
