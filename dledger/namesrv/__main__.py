"""`python -m dledger.namesrv` is the command `dledger namesrv`."""

from __future__ import annotations

import sys

from dledger.commands.app import main

if __name__ == "__main__":
    sys.exit(main(["namesrv", *sys.argv[1:]]))
