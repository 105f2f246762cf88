"""Figures that a node keeps about itself. They are plain values, which `status` reads."""

from __future__ import annotations

import asyncio

from dledger.log.flushing import FlushStats
from dledger.runtime import Log
from dledger.runtime.gc_pauses import Pauses

CORE_WAIT_HALF_S = 10.0
"""Time, in seconds, after which an observed wait for a core counts only half."""
LATE_LOOP_S = 0.1
"""A delay of the event loop of at least this many seconds is logged. It is a quarter of the shortest election
time-out."""


class NodeMetrics:
    """Figures since the start about writes to the disk, the event loop and the garbage collector."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.flushes: int = 0
        self.flushed_entries: int = 0
        self.flushed_bytes: int = 0
        self.flush_seconds: float = 0.0
        self.flush_seconds_max: float = 0.0
        self.loop_lag_max_s: float = 0.0
        self.loop_lag_s: float = 0.0
        self.core_wait_s: float = 0.0
        """Longest recent wait of the event loop for a core, in seconds. It shrinks with time
        (CORE_WAIT_HALF_S)."""
        self.loop_lag_max_waited_s: float = 0.0
        """The part of the loop's longest delay, in seconds, in which the loop was ready to run but other
        programs used the cores."""

    def flushed(self, stats: FlushStats) -> None:
        """Count one finished group write, and the time between its submission to the worker and its
        result."""
        self.flushes += 1
        self.flushed_entries += stats.entries
        self.flushed_bytes += stats.size
        self.flush_seconds += stats.seconds
        self.flush_seconds_max = max(self.flush_seconds_max, stats.seconds)

    async def watch_loop(self, every_s: float, log: Log) -> None:
        """Measure how late the loop wakes up, until cancelled; a long delay is logged."""
        loop = asyncio.get_running_loop()
        while True:
            began, waited_before_s = loop.time(), self._pauses.waited_s()
            await asyncio.sleep(every_s)
            self.loop_lag_s = max(0.0, loop.time() - began - every_s)
            waited_s = self._pauses.waited_s() - waited_before_s
            fading = 0.5 ** ((every_s + self.loop_lag_s) / CORE_WAIT_HALF_S)
            self.core_wait_s = max(waited_s, self.core_wait_s * fading)
            if self.loop_lag_s > self.loop_lag_max_s:
                self.loop_lag_max_s, self.loop_lag_max_waited_s = self.loop_lag_s, waited_s
            if self.loop_lag_s >= LATE_LOOP_S:
                # If most of the delay is waiting for a core, the machine is too busy.
                late_ms, waited_ms = round(self.loop_lag_s * 1e3), round(waited_s * 1e3)
                log.warning("the event loop was late", ms=late_ms, waited_for_core_ms=waited_ms)

    def snapshot(self) -> dict[str, object]:
        """Return all figures; times are in milliseconds."""
        mean = self.flush_seconds / self.flushes if self.flushes else 0.0
        return {
            "flushes": self.flushes,
            "flushed_entries": self.flushed_entries,
            "flushed_bytes": self.flushed_bytes,
            "flush_ms_mean": round(mean * 1e3, 3),
            "flush_ms_max": round(self.flush_seconds_max * 1e3, 3),
            "loop_lag_ms": round(self.loop_lag_s * 1e3, 3),
            "loop_lag_ms_max": round(self.loop_lag_max_s * 1e3, 3),
            "loop_lag_ms_max_waited": round(self.loop_lag_max_waited_s * 1e3, 3),
            "gc_pauses": sum(self._pauses.count),
            "gc_pauses_full": self._pauses.count[-1],
            "gc_ms_total": round(self._pauses.seconds * 1e3, 3),
            "gc_ms_max": round(self._pauses.worst_s * 1e3, 3),
        }
