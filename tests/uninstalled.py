"""Processes to which some packages are not installed, though they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_HIDE = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in {packages!r}
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
_RUN_MODULE = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def run_without(packages: Sequence[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -c program arguments` in the root of the repository; after five minutes it is an error.

    `packages`: names of top-level modules. Processes that this one starts find them.
    """
    command = [sys.executable, "-c", _HIDE.format(packages=sorted(packages)) + program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def run_module_without(
    packages: Sequence[str], module: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments`, the same way."""
    return run_without(packages, _RUN_MODULE.format(module=module), *arguments)
