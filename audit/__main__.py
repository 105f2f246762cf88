"""Command line: `python -m audit verify STORE`, `python -m audit compare STORE STORE STORE`. See `--help`."""

from __future__ import annotations

import sys

from audit.crash import exit_4_on_crash

if __name__ == "__main__":
    exit_4_on_crash()
    from audit.command import run  # only now: a library that is missing is no verdict either

    sys.exit(run())
