"""One statistic: a sum, and what it was at points of the last minute, hour and day (StatsItem). Pure.

A sample is three numbers: when, the sum, how many times it grew. A window keeps them of its whole length and
one more. Unlike RocketMQ's, what came since the newest sample counts as well, and a window in which nothing
happened keeps no samples: 20,000 keys that were used once take no more than their names.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple


class Window(NamedTuple):
    """How often it is sampled, and how many samples it keeps."""

    name: str
    every_ticks: int
    samples: int


TICK_S = 10.0
"""Time between two samples of the shortest window."""
MINUTE = Window("statsMinute", 1, 7)
HOUR = Window("statsHour", 60, 7)
DAY = Window("statsDay", 360, 25)
WINDOWS = (MINUTE, HOUR, DAY)
MIN_ELAPSED_MS = 1000
"""A rate is of so much time at least: what began a moment ago has none yet."""
_WIDTH = 3


@dataclass(frozen=True)
class Snapshot:
    """What happened in one window. `tps`: of `total`, a second; `average`: of `total`, a call."""

    total: int = 0
    tps: float = 0.0
    average: float = 0.0


class StatsItem:
    """`add` is the hot path: two additions."""

    __slots__ = ("_sampled", "_windows", "times", "used", "value")

    def __init__(self, now_ms: int) -> None:
        self.value: int = 0
        self.times: int = 0
        self.used: int = 0
        """Tick in which it grew last, as `sample` found."""
        self._sampled: list[tuple[int, int, int]] = [(now_ms, 0, 0)] * len(WINDOWS)
        """The newest sample of each window, kept or not."""
        self._windows: list[array[int] | None] = [None] * len(WINDOWS)

    def add(self, value: int, times: int = 1) -> None:
        """It grew."""
        self.value += value
        self.times += times

    def sample(self, tick: int, now_ms: int) -> None:
        """Take the samples that are due at this tick."""
        if self._sampled[0][1] != self.value:
            self.used = tick
        for number, window in enumerate(WINDOWS):
            if tick % window.every_ticks:
                continue
            kept, before = self._windows[number], self._sampled[number]
            after = self._sampled[number] = (now_ms, self.value, self.times)
            if kept is None:
                if before[2] != self.times:
                    self._windows[number] = array("q", (*before, *after))
                continue
            kept.extend(after)
            if len(kept) > window.samples * _WIDTH:
                del kept[:_WIDTH]
                if kept[2] == self.times:  # nothing within the whole window
                    self._windows[number] = None

    def over(self, window: Window, now_ms: int) -> Snapshot:
        """Of a window that ends now."""
        number = WINDOWS.index(window)
        kept = self._windows[number]
        first = self._sampled[number] if kept is None else (kept[0], kept[1], kept[2])
        return self._since(first, now_ms)

    def lately(self, window: Window, now_ms: int) -> Snapshot:
        """Of the time since its newest sample but one."""
        number = WINDOWS.index(window)
        kept = self._windows[number]
        if kept is None:
            return self._since(self._sampled[number], now_ms)
        return self._since((kept[-2 * _WIDTH], kept[1 - 2 * _WIDTH], kept[2 - 2 * _WIDTH]), now_ms)

    def _since(self, first: tuple[int, int, int], now_ms: int) -> Snapshot:
        began, value, times = first
        total, calls = self.value - value, self.times - times
        elapsed_ms = max(now_ms - began, MIN_ELAPSED_MS)
        return Snapshot(total, total * 1000.0 / elapsed_ms, total / calls if calls else 0.0)


class Puts:
    """What is counted of each message that is appended to one topic: on the hot path, two additions."""

    __slots__ = ("batched", "messages", "size")

    def __init__(self) -> None:
        self.messages: int = 0
        self.size: int = 0
        """Bytes of their records."""
        self.batched: int = 0
        """Messages that came in a call that another one is counted for."""
