"""Runs `python -m dledger.bench`, which is the same as `dledger bench`."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["bench"]
    runpy.run_module("dledger", run_name="__main__", alter_sys=True)
