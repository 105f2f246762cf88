"""Loads, the same for every system, and what is measured of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dledger.bench.compare.system import Sender, cpu_s
from dledger.bench.histogram import Histogram


@dataclass(frozen=True)
class Cell:
    """One load. With a `window` so many are under way at any time; with a `rate` so many are sent a second,
    whether answers have come or not, and each counts from when it was due."""

    name: str
    window: int = 0
    rate: int = 0


ONE = Cell("one at a time", window=1)
WINDOW_256 = Cell("256 under way", window=256)
WINDOW_1024 = Cell("1024 under way", window=1024)
STEADY = Cell("1,000 a second", rate=1000)
AFTER_A_BURST = Cell("1,000 a second, right after 1024 under way", rate=1000)
CELLS = (ONE, STEADY, WINDOW_256, WINDOW_1024, AFTER_A_BURST)


@dataclass(frozen=True)
class Figures:
    """Of one cell. Latencies in ms, CPU time of all servers in ms a message."""

    messages: int
    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    server_cpu_ms: float
    failed: int

    def as_dict(self) -> dict[str, float | int]:
        """For JSON."""
        return asdict(self)


class _Count:
    def __init__(self, sender: Sender) -> None:
        self.loop = asyncio.get_running_loop()
        self.sender = sender
        self.latency = Histogram()
        self.counting = False
        self.stopping = False
        self.stored = 0
        self.failed = 0
        self.under_way = 0
        self.idle = asyncio.Event()

    def done(self, since: float, ok: bool) -> None:
        self.under_way -= 1
        if self.counting:
            if ok:
                self.stored += 1
                self.latency.record(self.loop.time() - since)
            else:
                self.failed += 1
        if not self.under_way:
            self.idle.set()


class _Slot:
    __slots__ = ("_count", "_since")

    def __init__(self, count: _Count) -> None:
        self._count = count
        self._since = 0.0

    def go(self) -> None:
        count = self._count
        count.under_way += 1
        self._since = count.loop.time()
        count.sender.send(self._told)

    def _told(self, ok: bool) -> None:
        count = self._count
        count.done(self._since, ok)
        if not count.stopping:
            self.go()


async def measure(
    sender: Sender, cell: Cell, pids: Sequence[int], seconds: float, warmup_s: float
) -> Figures:
    """Load it for `seconds` behind a warm-up."""
    count = _Count(sender)
    async with asyncio.TaskGroup() as tasks:
        paced = tasks.create_task(_paced(count, cell.rate), name="pace") if cell.rate else None
        for _ in range(cell.window):
            _Slot(count).go()
        try:
            await asyncio.sleep(warmup_s)
            count.counting = True
            cpu, began = cpu_s(pids), count.loop.time()
            await asyncio.sleep(seconds)
            took, cpu = count.loop.time() - began, cpu_s(pids) - cpu
            count.counting = False
        finally:
            count.stopping = True
            if paced is not None:
                paced.cancel()
    if count.under_way:
        count.idle.clear()
        await asyncio.wait_for(count.idle.wait(), 30.0)
    found = count.latency
    return Figures(
        messages=count.stored,
        rate=round(count.stored / took, 1),
        p50_ms=round(found.percentile_s(0.5) * 1000, 3),
        p99_ms=round(found.percentile_s(0.99) * 1000, 3),
        p999_ms=round(found.percentile_s(0.999) * 1000, 3),
        max_ms=round(found.longest_s * 1000, 3),
        server_cpu_ms=round(1000 * cpu / max(count.stored, 1), 4),
        failed=count.failed,
    )


async def _paced(count: _Count, rate: int) -> None:
    due = count.loop.time()
    while True:
        now = count.loop.time()
        while due <= now:
            count.under_way += 1
            count.sender.send(lambda ok, since=due: count.done(since, ok))  # type: ignore[misc]
            due += 1 / rate
        await asyncio.sleep(max(0.0, due - count.loop.time()))
