"""Shipping of scan results (digests): this broker scans its own store at intervals and writes the rows as
Parquet files.

The files go to `digestShipPath`, a directory or URL that auditors can also read (`audit.parquet` has its
layout). The size of the rows is about one ten-thousandth of that of the log. A segment that has not changed
and has no faults is scanned again only after `digestRescanHours`, because bytes on a disk can change without
being written. A segment that is still written to is scanned completely in every round. These scans take turns
with the scans for auditors, at the same limited rate.

A failure of shipping never stops the broker. It is logged, counted on /metrics and retried in the next round.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from dledger.runtime.env import Env
from dledger.runtime.files import Files
from dledger.runtime.rate_limit import Pace, PacedFiles
from dledger.runtime.remote_files import check_driver, files_for, is_url
from dledger.runtime.settings import ConfigError
from dledger.runtime.workers import Lane

if TYPE_CHECKING:
    from dledger.audit.shipped_scans import Scan
    from dledger.audit.store_directory import Replica, SegmentTask

HOUR_MS = 3_600_000

_NUMBERED = re.compile(r"[\w-]*\d[\w-]*")
"""Matches words with digits, for example a segment or an address. They are replaced before two errors are
compared, because they differ although the cause is the same."""


@dataclass
class ShipStats:
    """Counters since the start. `shipped_ms` is the wall clock in ms of the last complete round, 0 before the
    first."""

    rounds: int = 0
    segments: int = 0
    failures: int = 0
    shipped_ms: int = 0


@dataclass(frozen=True)
class ShipSettings:
    """Settings of shipping. An empty `path` turns shipping off. If `rescan_hours` is 0, a finished segment is
    never scanned again."""

    path: str
    group: str
    interval_ms: int
    rescan_hours: int


def check_installed(path: str) -> None:
    """Check that the packages for shipping are installed. Raises ConfigError, which says what to install. The
    modules of these packages are loaded now, before the event loop runs."""
    try:
        import_module("dledger.audit.shipped_scans")
    except ImportError as error:
        extra = "pip install 'dledger[arrow]', or leave digestShipPath out"
        raise ConfigError(f"digestShipPath: {error}: {extra}") from error
    if is_url(path):
        try:
            check_driver(path)
        except OSError as error:
            raise ConfigError(f"digestShipPath: {error}") from error


class Shipper:
    """Scans the store and writes the rows, in rounds. `pace` limits the rate at which the store is read.
    After `pace` was stopped, rows are no longer written."""

    def __init__(self, env: Env, settings: ShipSettings, store_root: str, node: str, pace: Pace) -> None:
        self.stats: ShipStats = ShipStats()
        self._env = env
        self._settings = settings
        self._store_root = store_root
        self._node = node
        self._pace = pace
        self._store = PacedFiles(env.files, pace)
        self._log = env.log.child("ship")
        self._causes: set[str] = set()
        """Causes of failures since the last complete round. Each cause is logged only once."""

    async def run(self) -> None:
        """Do one round every `interval_ms`, until cancelled. Returns at once if no path is set."""
        while self._settings.path:
            await asyncio.sleep(self._settings.interval_ms / 1000)
            try:
                await self.ship()
            except Exception as error:  # the boundary of one round: the broker's work does not depend on it
                self._failed(error)
            else:
                if self._causes:
                    self._log.info("digests are shipped again", path=self._settings.path)
                self._causes.clear()

    def _failed(self, error: Exception) -> None:
        self.stats.failures += 1
        cause = _NUMBERED.sub("0", repr(error))
        if cause not in self._causes:
            self._causes.add(cause)
            self._log.warning("digests not shipped", path=self._settings.path, error=repr(error))

    async def ship(self) -> int:
        """Do one round and return how many segments were scanned. Raises every error that occurs in the store
        or at the destination."""
        run = self._env.workers.run
        there, replica, tasks = await run(Lane.SCAN, self._look)
        scanned = 0
        for task in tasks:
            scanned += await run(Lane.SCAN, self._ship_segment, there, replica, task)
        await run(Lane.SCAN, self._ship_side, there, replica)
        self.stats.rounds += 1
        self.stats.segments += scanned
        self.stats.shipped_ms = self._env.wall.now_ms()
        return scanned

    # --- in a thread; none of this is part of the store, so a job may make several things durable -----------

    def _look(self) -> tuple[Files, Replica, list[SegmentTask]]:
        """Return the files interface of the destination, this replica, and the segments to scan."""
        from dledger.audit.store_directory import StoreError, open_store, segment_tasks

        path = self._settings.path
        there = files_for(path, self._env.files, writable=True)  # for this round: a driver may connect
        # The directory is not created, because it may be a missing mount. A bucket has no directories.
        if not is_url(path) and not there.is_dir(path):
            raise StoreError(f"{path}: no such directory; is it mounted?")
        for replica in open_store(self._store, self._store_root):
            if replica.name == self._node:
                return there, replica, segment_tasks(replica)
        raise StoreError(f"{self._store_root}: no replica of {self._node}")

    def _ship_segment(self, there: Files, replica: Replica, task: SegmentTask) -> int:
        from dledger.audit.scan import scan_segment
        from dledger.audit.shipped_scans import Place, ShippedRowsError, read_scan, segment_bound, write_scan

        path = self._settings.path
        now_ms = self._env.wall.now_ms()
        oldest_ms = now_ms - self._settings.rescan_hours * HOUR_MS if self._settings.rescan_hours else 0
        try:
            known = read_scan(there, path, Place(self._settings.group, replica.name, task.start))
        except ShippedRowsError:
            known = None  # it is written again
        if known is not None and still_true(known, replica, task, oldest_ms):
            return 0
        rows = list(scan_segment(self._store, task))
        self._pace.check()
        bound = segment_bound(replica.row(), task, rows, now_ms)._replace(group=self._settings.group)
        write_scan(there, path, bound, rows)
        return 1

    def _ship_side(self, there: Files, replica: Replica) -> None:
        from dledger.audit.scan import scan_side
        from dledger.audit.shipped_scans import (
            SIDE,
            Place,
            ShippedRowsError,
            forget_scans,
            read_scan,
            side_bound,
            write_scan,
        )
        from dledger.audit.store_directory import segment_tasks

        path = self._settings.path
        group = self._settings.group  # not the name in the store, which may be damaged
        now_ms = self._env.wall.now_ms()
        bound = side_bound(replica.row(), segment_tasks(replica), now_ms)._replace(group=group)
        rows = list(scan_side(self._store, replica))
        self._pace.check()
        try:
            before = read_scan(there, path, Place(group, replica.name, SIDE))
        except ShippedRowsError:
            before = None
        write_scan(there, path, bound, rows)
        # A reader that began with the previous side rows must still find the segments that those rows name.
        kept = [*bound.segments, *(before.bound.segments if before is not None else ())]
        forget_scans(there, path, group, replica.name, kept)


def still_true(known: Scan, replica: Replica, task: SegmentTask, oldest_ms: int) -> bool:
    """Return whether a new scan would have the same result as the known one. This is so if the segment is
    finished, or if it has not changed and has no faults. Returns False if the known scan is older than
    `oldest_ms`."""
    from dledger.audit.findings import Finding, SegmentRow
    from dledger.audit.shipped_scans import reusable, segment_bound

    if reusable(known.bound, replica.row(), task, not_before_ms=oldest_ms):
        return True
    fresh = segment_bound(replica.row(), task, known.rows, known.bound.scanned_ms)
    if fresh._replace(group=known.bound.group) != known.bound or known.bound.scanned_ms < oldest_ms:
        return False
    covered = [row for row in known.rows if isinstance(row, SegmentRow)]
    if len(covered) != 1 or any(isinstance(row, Finding) for row in known.rows):
        return False
    # The commit index on disk lags behind the log, so the scan must cover exactly what the index files cover.
    end = covered[0].last_index
    return not covered[0].lacking and end <= task.committed and (task.next_first or task.index_end) == end + 1
