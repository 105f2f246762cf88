"""Carries out retention. At intervals it checks the disk and the clock, and then moves the beginning of the
log if old segments may be removed.

First the store records durably where the log will begin, so that an audit does not take removed entries for
lost ones. Then the host is notified. It refuses readers of older positions, and removes the data that it
derived from older entries. Then segments are removed, the oldest first. Index files and snapshots that are no
longer needed are removed last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.context.applier import Applier
from dledger.context.node_context import NodeContext
from dledger.errors import DISK_IS_FULL, OUT_OF_MEANS, PASSING, refused_by_system
from dledger.formats.snapshot import Manifest
from dledger.log.retention import Removal, RetentionSettings, Situation, decide
from dledger.runtime import Lane
from dledger.snapshots.catalog import SnapshotCatalog, base_of

ASKED_TIMEOUT_S = 60.0
"""Seconds for which an operator's request to delete entries is retried. A reader or a peer may be in the way
at first."""


class Retainer:
    """Retention on one node: removes old segments as the settings and operators ask."""

    def __init__(self, context: NodeContext, applier: Applier, catalog: SnapshotCatalog) -> None:
        self._env = context.env
        self._dir = context.config.node_dir
        self._settings = context.config.retention
        self._log = context.log
        self._host = context.host
        self._replicator = context.replicator
        self._applier = applier
        self._catalog = catalog
        self._wake = asyncio.Event()
        self._asked: int | None = None
        self._any_hour = False
        self._asked_until = 0.0
        self._unfinished = False
        self.used_ratio: float = 0.0
        """Share (0 to 1) of the file system that was in use at the last check."""
        self.removals: int = 0
        self.now_ms: Callable[[], int] = self._env.wall.now_ms
        """The clock by which the ages of segments are computed. It returns ms."""

    def retune(self, settings: RetentionSettings) -> None:
        """Use other settings from now on."""
        if settings != self._settings:
            self._settings = settings
            self._wake.set()

    def delete_before(self, index: int) -> None:
        """Note that an operator wants entries below `index` removed. Only whole segments that end at a
        snapshot can be removed."""
        self._asked = index
        self._asked_until = asyncio.get_running_loop().time() + ASKED_TIMEOUT_S
        self._wake.set()

    def delete_expired(self) -> None:
        """Note that an operator wants expired segments removed now, whatever the hour is."""
        self._any_hour = True
        self._wake.set()

    def wake(self) -> None:
        """Check again, but only while an operator's request to delete entries waits: what was in its way may
        be gone."""
        if self._asked is not None:
            self._wake.set()

    async def run(self) -> None:
        """Call `round` at intervals and when it is woken, until the task is cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the interval is over, which is the usual case
            self._wake.clear()
            await self.round()

    async def round(self) -> None:
        """Check once, and remove what may be removed."""
        try:
            usage = await self._env.workers.run(Lane.DISK, self._env.files.usage, self._dir)
            self.used_ratio = usage.used_ratio
        except OSError as error:
            self._env.log.warning("cannot measure the disk usage", error=error)
        await self._log.close_viewed()
        async with self._catalog.changing:
            if self._unfinished:
                self._unfinished = not await self._log.drop_before(self._log.base)
            try:
                kept_from = await self._host.kept_from()
            except OSError as error:
                self._env.log.warning("cannot determine which entries are still needed", error=error)
                return
            manifests, asked = self._catalog.manifests, self._asked
            any_hour, self._any_hour = self._any_hour, False
            situation = self._situation(kept_from)
            removal = decide(self._settings, situation, manifests, asked, any_hour=any_hour)
            if removal is not None:
                try:
                    await self._remove(removal)
                except OSError as error:
                    if error.errno not in OUT_OF_MEANS:
                        raise
                    self._env.log.warning("old segments not removed now, trying again", error=error)
        self._forget_asked()

    def _situation(self, kept_from: int | None) -> Situation:
        log = self._log
        leader = self._replicator.leader
        return Situation(
            self.now_ms(),
            self.used_ratio,
            log.begin_pos,
            max(log.durable_pos - 1, 0) // log.segment_size * log.segment_size,
            self._applier.applied_index,  # after a restart it may lag far behind the snapshots
            log.last_index + 1 if leader is None else leader.needed_from(),
            kept_from,
            self._catalog.written_ms(),
        )

    async def _remove(self, removal: Removal) -> None:
        manifest = removal.boundary
        assert isinstance(manifest, Manifest)
        parts = await self._catalog.load(manifest)
        if parts is None:
            return  # damaged: the next round chooses another one
        self._env.log.info(
            "removing old segments: the log begins later",
            first=manifest.index + 1,
            before=self._log.first_index,
            pos=manifest.pos,
            why=removal.why,
        )
        try:
            await self._catalog.say_begins(manifest.pos)
        except OSError as error:
            if error.errno not in PASSING:
                raise refused_by_system("cannot save the beginning of the log", error) from error
            # Without it nothing may go; a full disk gives up a prepared segment for it.
            given = error.errno in DISK_IS_FULL and await self._log.pool.give_up_one()
            self._env.log.warning("cannot save the beginning of the log", error=error, made_room=given)
            return
        await self._host.log_begins(parts, manifest.index, manifest.pos)
        self._unfinished = not await self._log.drop_before(base_of(manifest))
        if self._log.begin_pos < manifest.pos:
            return  # a cut meanwhile has removed everything after it: the next round decides again
        await self._catalog.prune(manifest.pos)
        self.removals += 1
        if removal.again:
            self._wake.set()

    def _forget_asked(self) -> None:
        asked = self._asked
        if asked is None:
            return
        late = asyncio.get_running_loop().time() >= self._asked_until
        reached = not any(
            self._log.begin_pos < manifest.pos and manifest.index < asked
            for manifest in self._catalog.manifests
        )
        if late or reached:
            self._asked = None
