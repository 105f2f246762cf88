"""Hands committed, locally durable entries to the host, in order and in small steps (rules 5 and 6, S21)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.host import Chunk, Host
from dledger.log.store import LogStore


class Applier:
    """`applied_index` follows the commit index, never beyond what is durable here."""

    def __init__(
        self,
        log: LogStore,
        host: Host,
        applied_index: int,
        step_bytes: int,
        on_applied: Callable[[], None],
        on_boundary: Callable[[int, int], None],
    ) -> None:
        self.applied_index = applied_index
        self.busy = asyncio.Lock()
        """Held during each step; whoever replaces the host's state takes it."""
        self._on_boundary = on_boundary
        self._log = log
        self._host = host
        self._step_bytes = step_bytes
        self._on_applied = on_applied
        self._commit_index = -1
        self._wake = asyncio.Event()

    def commit_to(self, index: int) -> None:
        """Entries up to `index` are committed."""
        self._commit_index = max(self._commit_index, index)
        self._wake.set()

    def durable_moved(self) -> None:
        """More entries are durable here."""
        if self._commit_index > self.applied_index:
            self._wake.set()

    def restored(self, index: int) -> None:
        """The host was given the state after entry `index` (with `busy` held)."""
        self.applied_index = index
        self._on_applied()

    async def run(self) -> None:
        """Apply until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._limit() > self.applied_index:
                async with self.busy:
                    await self._step()
                await asyncio.sleep(0)  # one step a turn: responses and heartbeats go in between

    def _limit(self) -> int:
        return min(self._commit_index, self._log.durable_index)

    async def _step(self) -> None:
        log = self._log
        limit = self._limit()
        first = self.applied_index + 1
        if first > limit:
            return  # an install came in between
        pos, _ = log.locate(first)
        if pos % log.segment_size == 0:
            self._on_boundary(first - 1, pos)
        last, size = log.range_end(first, self._step_bytes)
        if last > limit:
            last = limit
            size = log.end_of(last) - pos
        view = log.view(pos, size)
        if view is None:
            view = memoryview(await log.read(pos, size))
        self._host.apply(Chunk(first, last - first + 1, pos, view))
        view.release()
        self.applied_index = last
        self._on_applied()
