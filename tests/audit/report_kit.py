"""Audits as users start them: a process, its exit code and its report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def report_of(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 240
) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `python -m MODULE ARGUMENTS --json`, as `spark audit STORE`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--json"],
        cwd=ROOT,
        env=None if environment is None else dict(environment),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, report
