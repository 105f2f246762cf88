"""The marker that a failed write or fsync leaves in the store (safety.md S3). The next start that finds it
discards what is not certain."""

from __future__ import annotations

import asyncio

from dledger.formats.store_files import POISONED_FILE
from dledger.runtime import Env, Lane

MARKER_LIMIT_S = 2.0
"""Limit, in seconds, of the wait for a failing disk to write the marker."""


async def leave_marker(env: Env, node_dir: str, reason: str) -> None:
    """Write the marker if the disk still allows it; never raises."""
    path = f"{node_dir}/{POISONED_FILE}"
    try:
        async with asyncio.timeout(MARKER_LIMIT_S):
            await env.workers.run(Lane.DISK, _write, env, path, reason)
            await env.workers.run(Lane.DISK, env.files.sync_dir, node_dir)
    except (OSError, TimeoutError) as error:
        env.log.error("cannot write the file that marks the store as poisoned", path=path, error=repr(error))


def _write(env: Env, path: str, reason: str) -> None:
    file = env.files.open(path, create=True)
    try:
        file.pwritev([reason.encode()], 0)
        file.fdatasync()
    finally:
        file.close()
