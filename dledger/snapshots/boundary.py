"""Takes a snapshot where a segment ends (safety.md S20).

The host's state is copied on the loop, between the last entry of the segment and the next entry. The copy is
packed piece by piece while other tasks run, and a worker writes it. If the disk is slow or full, a boundary
gets no snapshot, and retention waits for the next boundary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dledger.context.node_context import NodeContext
from dledger.errors import PASSING, refused_by_system
from dledger.formats.entry import unpack_header
from dledger.formats.snapshot import make_manifest
from dledger.log.reading import Rotten, store_time_of
from dledger.runtime import Lane
from dledger.runtime.cooperative import gathered
from dledger.snapshots.catalog import SnapshotCatalog

MAX_WAITING = 2
"""Largest number of snapshots in memory that wait to be written. If that many wait when the applier reaches a
boundary, the boundary gets no snapshot."""


@dataclass(frozen=True)
class _Taken:
    index: int
    pos: int
    config: bytes
    pieces: Iterator[tuple[str, bytes]]


class BoundarySnapshots:
    """Takes snapshots of the state at segment boundaries, and writes them. The applier calls `reached` at a
    boundary, and the task `run` writes."""

    def __init__(
        self, context: NodeContext, catalog: SnapshotCatalog, on_published: Callable[[], None]
    ) -> None:
        self._env = context.env
        self._log = context.log
        self._host = context.host
        self._members = context.members
        self._catalog = catalog
        self._on_published = on_published
        self._waiting: deque[_Taken] = deque()
        self._wake = asyncio.Event()
        self.taken: int = 0
        self.skipped: int = 0

    def reached(self, index: int, pos: int) -> None:
        """Take a snapshot. Called when entry `index` has been applied and the next entry begins a segment at
        position `pos`."""
        if self._catalog.has(pos) or index < self._log.first_index:
            return
        config = self._members.state_at(index)  # S19; None while the configuration is in doubt
        if config is None or len(self._waiting) >= MAX_WAITING:
            self.skipped += 1
            return
        pieces = iter(self._host.snapshot())
        self._waiting.append(_Taken(index, pos, config, pieces))
        self._wake.set()

    async def run(self) -> None:
        """Write the snapshots that were taken, until the task is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._write(self._waiting[0])
                self._waiting.popleft()

    async def _write(self, taken: _Taken) -> None:
        log = self._log
        term = log.term_of(taken.index)
        if term is None or taken.index < log.first_index:
            return  # an install has replaced the log meanwhile
        try:
            parts = await gathered(taken.pieces)
            entry, _ = await log.read_range(taken.index, taken.index)
            manifest = await self._env.workers.run(
                Lane.DISK,
                make_manifest,
                taken.index,
                term,
                taken.pos,
                unpack_header(entry).chain_crc,
                store_time_of(entry),
                taken.config,
                parts,
            )
            await self._catalog.publish(manifest, parts)
            # Without this lock a snapshot could be removed at which the log is about to begin.
            async with self._catalog.changing:
                await self._catalog.prune(log.begin_pos)
        except (ValueError, Rotten) as error:
            self._env.log.warning("no snapshot written: the log has changed", index=taken.index, why=error)
            return
        except OSError as error:
            if error.errno not in PASSING:
                raise refused_by_system("cannot write a snapshot", error) from error
            # A snapshot is derived data. So the log goes on without it, and retention waits for a later
            # boundary.
            self.skipped += 1
            self._env.log.error("cannot write a snapshot", index=taken.index, error=error)
            return
        self.taken += 1
        self._env.log.info("snapshot", index=taken.index, pos=taken.pos, digest=manifest.digest[:16])
        self._on_published()
