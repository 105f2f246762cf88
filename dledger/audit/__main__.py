"""`dledger audit verify STORE`, `dledger audit compare STORE STORE STORE`. See `--help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dledger.audit.crash import exit_4_on_crash


def main(argv: Sequence[str] | None = None) -> int:
    """The whole command; the exit code of the process."""
    exit_4_on_crash()
    from dledger.audit.command import run  # only now: a library that is missing is no verdict either

    return run(None if argv is None else list(argv))


if __name__ == "__main__":
    sys.exit(main())
