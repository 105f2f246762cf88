"""`python -m dledger` is the command `dledger`."""

from __future__ import annotations

import sys

from dledger.commands.app import main

if __name__ == "__main__":
    sys.exit(main())
