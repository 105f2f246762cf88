"""Run the local engine in a test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from audit.compare import LAG_WARNING_ENTRIES
from audit.local import audit_stores
from audit.report import Report
from runtime.env import production_env


def audit(stores: Sequence[Path | str], lag_warning: int = LAG_WARNING_ENTRIES) -> Report:
    """Verify and compare."""
    env = production_env("test")
    try:
        return asyncio.run(audit_stores(env, [str(store) for store in stores], lag_warning=lag_warning))
    finally:
        env.workers.close()
