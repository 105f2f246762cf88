"""Searches the log for configurations when no file records where they are, or when a copy of one is missing.

The file `members` records which entries of a log are configurations (safety.md S19). If it is lost, damaged,
or was never written, the log is read from end to end when the node starts. If an entry is corrupt, it may be
a configuration, and the node does not know for sure whose votes count. Then it follows, repairs, and votes
(the candidate decides whose votes count), but does not stand for election until peers have repaired that
entry. Repair needs no leader, so a group in which every node is in this state recovers, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.context.config_entries import read_config, search
from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.log.faulty import FaultyEntries
from dledger.log.index_units import RETRY_S
from dledger.log.reading import Rotten


class ConfigSearch:
    """The search of one node. Whenever entries were repaired, it reads those entries of `members.unsure` that
    can be read now."""

    def __init__(
        self,
        context: NodeContext,
        base_config: Callable[[], tuple[int, bytes] | None],
        events: NodeEvents,
    ) -> None:
        """`base_config` returns index and configuration of the point at which the log begins, if a snapshot
        has it."""
        self._log = context.log
        self._members = context.members
        self._base_config = base_config
        self._events = events
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Search again, because entries were repaired, or may have been removed by retention."""
        if self._members.unsure:
            self._wake.set()

    async def run(self) -> None:
        """Search when woken, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._members.unsure and await self._look():
                    pass
            except OSError as error:
                self._log.put_off(error, self._log.first_index, self._log.last_index)
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _look(self) -> bool:
        """Search the readable entries. Returns True if something new was found, because then more may be
        found now."""
        log, unsure = self._log, self._members.unsure
        before = list(unsure)
        base = self._base_config()
        if base is not None and unsure.within(0, base[0]) is not None:
            self._members.restore(*base)  # entries were removed, or the log begins at a new snapshot
            self._events.configs_found()
        for first, last in self._readable():
            seen = log.cuts, log.first_index
            indexes, rotten = await search(log, first, last)
            try:
                found = [(index, await read_config(log, index)) for index in indexes]
            except Rotten:
                found = None  # noted as corrupt, and repaired first
            if seen != (log.cuts, log.first_index):
                return True  # entries are gone: search again
            if found is None:
                continue
            for index, configuration in found:
                if configuration is not None:
                    self._members.recall(index, configuration)
            unsure.remove(first, last)
            for begin, end in rotten:
                unsure.add(max(begin, first), min(end, last))
            self._events.configs_found()
        return list(unsure) != before

    def _readable(self) -> FaultyEntries:
        """Return the entries to search, without those that are corrupt and those that retention has
        removed."""
        readable = FaultyEntries()
        for first, last in self._members.unsure:
            readable.add(max(first, self._log.first_index), min(last, self._log.durable_mark))
        for first, last in self._log.faulty:
            readable.remove(first, last)
        return readable
