"""Command line: `dledger audit verify STORE`, `dledger audit compare STORE STORE STORE`. See `--help`."""

from __future__ import annotations

import sys

from dledger.audit.crash import exit_4_on_crash

if __name__ == "__main__":
    exit_4_on_crash()
    from dledger.audit.command import run  # only now: a library that is missing is no verdict either

    sys.exit(run())
