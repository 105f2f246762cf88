"""Removes the rows of the state about deleted topics when they are no longer needed."""

from __future__ import annotations

import asyncio
from itertools import islice

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.services import LeaderService
from dledger.formats.state import DELETIONS, RESETS

SWEEP_S = 10.0
"""Seconds between two sweeps."""
KEPT = 1000
"""Number of deletions that are kept even if this leader's log no longer needs them, because the logs of other
brokers may begin earlier."""
TOGETHER = 100
"""Largest number of rows of each table that are removed in one turn of the loop."""


class DeletionService(LeaderService):
    """Runs one task while this node leads: a sweep every `SWEEP_S` seconds."""

    def __init__(self, core: Core) -> None:
        self._node = core.node
        self._clients = core.clients
        self._writer: CommitLogWriter | None = None

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._writer = writer

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None

    async def run(self) -> None:
        """See `LeaderService`."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """Remove rows that are no longer needed, as many as fit into one turn of the loop."""
        writer = self._writer
        if writer is None or not writer.room:
            return
        deleted = writer.pending[DELETIONS].rows
        begin = self._node.log.begin_pos
        old = (name for name, row in deleted.items() if row.at <= begin)
        for name in list(islice(old, min(TOGETHER, max(len(deleted) - KEPT, 0)))):
            writer.append_op(DELETIONS.removal(name))
        # Resets that were to send consumers to the beginning of a topic that was never created again.
        stale = (key for key in writer.pending[RESETS].rows if self._nobody_hears(writer, *key))
        for key in list(islice(stale, TOGETHER)):
            writer.append_op(RESETS.removal(key))

    def _nobody_hears(self, writer: CommitLogWriter, group: str, topic: str) -> bool:
        if writer.topic(topic) is not None:
            return False
        members = self._clients.consumers.get(group)
        return members is None or topic not in members.subscriptions
