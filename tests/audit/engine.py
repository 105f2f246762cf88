"""Run the local engine in a test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from audit.compare import LAG_WARNING_ENTRIES
from audit.local import audit_stores
from audit.report import Report
from runtime.env import production_env
from runtime.processes import ProcessWorkers


def audit(
    stores: Sequence[Path | str],
    lag_warning: int = LAG_WARNING_ENTRIES,
    processes: ProcessWorkers | None = None,
) -> Report:
    """Verify and compare; in `processes` however small the stores are."""
    env = production_env("test")
    paths = [str(store) for store in stores]
    try:
        return asyncio.run(
            audit_stores(env, paths, lag_warning=lag_warning, processes=processes, alone_below=0)
        )
    finally:
        env.workers.close()
