"""The compiled twins (dledger/_fast): built where Cython and a compiler are, left out where not.

Everything else about the package is in pyproject.toml. `DLEDGER_BUILD_FAST=0` leaves them out in any case.
"""

import os
import sys
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

PARTS = (
    "_fast", "admin", "audit", "bench", "broker", "chaos", "client", "commands", "context", "dashboard",
    "election", "files", "flight", "formats", "lake", "local", "log", "members", "namesrv", "node",
    "peers", "remoting", "replication", "runtime", "snapshots", "spark", "web",
)  # fmt: skip
"""The packages below `dledger/`. setuptools would leave out a missing one without a word."""
TWINS = "dledger/_fast/compiled.pyx"


def check_parts():
    missing = [part for part in PARTS if not (Path("dledger") / part / "__init__.py").is_file()]
    if missing:
        places = ", ".join(f"dledger/{part}" for part in missing)
        sys.exit(
            f"error: this copy of the source is incomplete: {places} missing. Clone it or unpack it again."
        )


def source_hash(path):
    """As in `dledger._fast`, which uses no module that was built from another source."""
    return sha256(Path(path).read_bytes()).hexdigest()


def extensions():
    if os.environ.get("DLEDGER_BUILD_FAST") == "0":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    digest = source_hash(TWINS)
    twins = Extension("dledger._fast.compiled", [TWINS], define_macros=[("TWINS_SOURCE", f'"{digest}"')])
    # A directory by content: cythonize compares times, and what lies there may be newer, of another source.
    modules = cythonize([twins], build_dir=f"build/{digest[:16]}")
    for module in modules:
        module.optional = True  # cythonize forgets it
    return modules


check_parts()
setup(ext_modules=extensions())
