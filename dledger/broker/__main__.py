"""`python -m dledger.broker` is the command `dledger broker`."""

from __future__ import annotations

import sys

from dledger.commands.app import main

if __name__ == "__main__":
    sys.exit(main(["broker", *sys.argv[1:]]))
