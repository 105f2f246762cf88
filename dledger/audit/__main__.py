"""`python -m dledger.audit` is the command `dledger audit`."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["audit"]
    runpy.run_module("dledger", run_name="__main__", alter_sys=True)
