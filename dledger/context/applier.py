"""Passes committed, locally durable entries to the host, in order and in small steps (architecture rules 5
and 6, S21)."""

from __future__ import annotations

import asyncio

from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.formats.entry import entry_pos
from dledger.host import Chunk
from dledger.log.index_units import RETRY_S
from dledger.log.reading import Rotten, size_of


class Applier:
    """Applies entries. `applied_index` follows the commit index, but never passes an entry that is corrupt or
    not yet durable on this node."""

    def __init__(self, context: NodeContext, events: NodeEvents) -> None:
        self.applied_index: int = -1
        """Index of the last entry that the host applied."""
        self.busy: asyncio.Lock = asyncio.Lock()
        """A lock that is held during each step. Code that replaces the host's state must take it."""
        self._log = context.log
        self._host = context.host
        self._step_bytes = context.config.apply_bytes
        self._events = events
        self._commit_index = -1
        self._wake = asyncio.Event()

    def open(self, applied_index: int) -> None:
        """Start after `applied_index`: the host has applied all entries up to it."""
        self.applied_index = applied_index

    def commit_to(self, index: int) -> None:
        """Note that entries up to `index` are committed. They will be applied."""
        self._commit_index = max(self._commit_index, index)
        self._wake.set()

    def durable_moved(self) -> None:
        """Note that more entries are durable on this node, or that entries were repaired."""
        if self._commit_index > self.applied_index:
            self._wake.set()

    def restored(self, index: int) -> None:
        """Note that the host's state was replaced by the state after entry `index`. The caller holds
        `busy`."""
        self.applied_index = index
        self._events.applied()

    async def run(self) -> None:
        """Apply committed entries until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (limit := self._limit()) > self.applied_index:
                async with self.busy:
                    if not await self._step():
                        break  # `durable_moved` comes when it is repaired
                if limit > self.applied_index:
                    await asyncio.sleep(0)  # so that responses and heartbeats are sent between two steps

    def _limit(self) -> int:
        return min(self._commit_index, self._log.durable_index)

    async def _step(self) -> bool:
        """Apply some entries. Returns False if the next entry is corrupt."""
        log = self._log
        limit = self._limit()
        first = self.applied_index + 1
        if first > limit:
            return True  # a snapshot was installed meanwhile
        last = min(log.range_end(first, self._step_bytes)[0], limit)
        if log.faulty.ranges and (bad := log.faulty.within(first, last)) is not None:
            if bad == first:
                return False
            last = bad - 1
        data = log.range_bytes(first, last)
        if data is None:
            try:
                data, end = await log.read_range(first, last)
            except Rotten:
                return True
            except OSError as error:
                log.put_off(error, first, last)
                await asyncio.sleep(RETRY_S)
                return True
            if end > last:
                data = data[: size_of(data, last - first + 1)]
        view = memoryview(data)
        pos = entry_pos(view)
        if pos % log.segment_size == 0:
            self._events.segment_applied(first - 1, pos)
        self._host.apply(Chunk(first, last - first + 1, pos, view))
        view.release()
        data = None  # the last reference to a mapped segment
        self.applied_index = last
        self._events.applied()
        return True
