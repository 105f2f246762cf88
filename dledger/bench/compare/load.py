"""The loads, which are the same for every system, and the figures that are measured under each load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dledger.bench.compare.system import BATCH, CompareError, Sender, cpu_s
from dledger.bench.histogram import Histogram


@dataclass(frozen=True)
class Cell:
    """One load.

    With a `window`, this many requests are in flight at any time. With a `rate`, this many requests are
    sent a second, even if earlier ones are not answered yet, and each latency counts from the time when
    its request was due. `after` is another load that runs directly before this one.
    """

    name: str
    window: int = 0
    rate: int = 0
    batch: int = 1
    """Number of messages in one request: 1 or `BATCH`."""
    after: Cell | None = None


LARGEST_UNDER_WAY = 32 << 20
"""Limit, in bytes, of the message bodies that are in flight. With large messages the window is reduced to
keep it."""
LARGEST_RATE = 16 << 20
"""Limit, in bytes, of the message bodies that are sent per second. With large messages the rate is reduced
to keep it."""
LARGEST_BATCH = 1 << 20
"""Limit, in bytes, of the message bodies in a batch. All systems accept this with their default settings."""
LAST_ANSWERS_S = 30.0
LOADS = ("one", "steady", "256", "1024", "after", "batches")


def cells(size: int) -> dict[str, Cell]:
    """Return the loads for bodies of `size` bytes, by the names in `LOADS`.

    If large bodies make two loads equal, only one of them is included. The load with batches is included
    only if the batches are not too large.
    """
    rate = max(1, min(1000, LARGEST_RATE // size))
    steady = Cell(f"{rate:,} a second", rate=rate)
    most = max(1, LARGEST_UNDER_WAY // size)
    few, many = (Cell(f"{window} under way", window=window) for window in (min(256, most), min(1024, most)))
    found = {"one": Cell("one at a time", window=1), "steady": steady, "256": few, "1024": many}
    if few == many:
        del found["256"]
    found["after"] = Cell(f"{steady.name}, right after {many.name}", rate=rate, after=many)
    if size * BATCH <= LARGEST_BATCH:
        window = min(64, most // BATCH)
        found["batches"] = Cell(f"batches of {BATCH}, {window} under way", window=window, batch=BATCH)
    return found


@dataclass(frozen=True)
class Figures:
    """The figures that are measured under one load. Latencies of requests are in ms. The CPU time of all
    servers together is in ms per message."""

    messages: int
    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    server_cpu_ms: float
    failed: int

    def as_dict(self) -> dict[str, float | int]:
        """Return the figures as a JSON object."""
        return asdict(self)


class _Count:
    def __init__(self, sender: Sender, cell: Cell) -> None:
        self.loop = asyncio.get_running_loop()
        self.send = sender.send if cell.batch == 1 else sender.send_batch
        self.batch = cell.batch
        self.latency = Histogram()
        self.counting = False
        self.began = self.ended = float("inf")
        """Begin and end of the measured time. A request that was due in this time is counted with its
        latency, even if its answer comes later."""
        self.stopping = False
        self.stored = 0
        self.failed = 0
        self.under_way = 0
        self.idle = asyncio.Event()

    def done(self, since: float, ok: bool) -> None:
        self.under_way -= 1
        due = self.began <= since < self.ended
        if ok and due:
            self.latency.record(self.loop.time() - since)
        if ok and self.counting:
            self.stored += self.batch
        elif not ok and due:
            self.failed += self.batch
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
        count.send(self._told)

    def _told(self, ok: bool) -> None:
        count = self._count
        count.done(self._since, ok)
        if not count.stopping:
            self.go()


async def measure(
    sender: Sender, cell: Cell, pids: Sequence[int], seconds: float, warmup_s: float
) -> Figures:
    """Load the system for `seconds` after a warm-up, and return the figures. Raises CompareError if
    requests stay without an answer."""
    count = _Count(sender, cell)
    async with asyncio.TaskGroup() as tasks:
        paced = tasks.create_task(_paced(count, cell.rate), name="pace") if cell.rate else None
        for _ in range(cell.window):
            _Slot(count).go()
        try:
            await asyncio.sleep(warmup_s)
            count.counting = True
            cpu, count.began = cpu_s(pids), count.loop.time()
            await asyncio.sleep(seconds)
            count.ended, cpu = count.loop.time(), cpu_s(pids) - cpu
            took = count.ended - count.began
            count.counting = False
        finally:
            count.stopping = True
            if paced is not None:
                paced.cancel()
    if count.under_way:
        count.idle.clear()
        try:
            await asyncio.wait_for(count.idle.wait(), LAST_ANSWERS_S)
        except TimeoutError:
            raise CompareError(f"{cell.name}: {count.under_way} requests have no answer") from None
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
            count.send(lambda ok, since=due: count.done(since, ok))  # type: ignore[misc]
            due += 1 / rate
        await asyncio.sleep(max(0.0, due - count.loop.time()))
