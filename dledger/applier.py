"""Hands committed, locally durable entries to the host, in order and in small steps (rules 5 and 6, S21)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.host import Chunk, Host
from dledger.log.reading import Rotten
from dledger.log.store import LogStore
from formats.entry import unpack_header


class Applier:
    """`applied_index` follows the commit index, never beyond what is durable and whole here."""

    def __init__(
        self, log: LogStore, host: Host, applied_index: int, step_bytes: int, on_applied: Callable[[], None]
    ) -> None:
        self.applied_index = applied_index
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
        """More entries are durable here, or whole again."""
        if self._commit_index > self.applied_index:
            self._wake.set()

    async def run(self) -> None:
        """Apply until cancelled."""
        log = self._log
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (limit := min(self._commit_index, log.durable_index)) > self.applied_index:
                first = self.applied_index + 1
                last = min(log.range_end(first, self._step_bytes)[0], limit)
                if log.faulty and (bad := log.faulty.within(first, last)) is not None:
                    if bad == first:
                        break  # `durable_moved` comes when it is repaired
                    last = bad - 1
                data = log.range_bytes(first, last)
                if data is None:
                    try:
                        data, end = await log.read_range(first, last)
                    except Rotten:
                        continue
                    if end > last:
                        continue_at = log.end_of(last) - unpack_header(data).pos
                        data = data[:continue_at]
                view = memoryview(data)
                pos = unpack_header(view).pos
                self._host.apply(Chunk(first, last - first + 1, pos, view))
                view.release()
                data = None  # the last reference to a mapped segment
                self.applied_index = last
                self._on_applied()
                await asyncio.sleep(0)  # one step a turn: responses and heartbeats go in between
