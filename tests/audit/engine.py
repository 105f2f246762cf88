"""Run the local engine in a test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from dledger.audit.defaults import LAG_WARNING_ENTRIES
from dledger.audit.local import audit_stores
from dledger.audit.report import Report
from dledger.runtime.env import production_env
from dledger.runtime.processes import ProcessWorkers


def audit(
    stores: Sequence[Path | str],
    lag_warning: int = LAG_WARNING_ENTRIES,
    processes: ProcessWorkers | None = None,
    *,
    same_time: bool = False,
) -> Report:
    """Verify and compare; in `processes` however small the stores are."""
    env = production_env("test")
    paths = [str(store) for store in stores]
    try:
        return asyncio.run(
            audit_stores(
                env,
                paths,
                lag_warning=lag_warning,
                same_time=same_time,
                processes=processes,
                alone_below=0,
            )
        )
    finally:
        env.workers.close()
