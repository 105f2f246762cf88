"""One statistic: a sum, and its values at points of the last minute, hour and day (StatsItem). Pure.

A sample has three numbers: the time, the sum, and how many times the sum grew. A window keeps the samples of
its whole length and one more. Unlike in RocketMQ, growth since the newest sample counts as well, and a window
in which nothing happened keeps no samples. So 20,000 keys that were used once take little more room than
their names.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple


class Window(NamedTuple):
    """A period: how often it is sampled, and how many samples it keeps."""

    name: str
    every_ticks: int
    samples: int


TICK_S = 10.0
"""Seconds between two samples of the shortest window."""
MINUTE = Window("statsMinute", 1, 7)
HOUR = Window("statsHour", 60, 7)
DAY = Window("statsDay", 360, 25)
WINDOWS = (MINUTE, HOUR, DAY)
MIN_ELAPSED_MS = 1000
"""Least time over which a rate is computed, in ms: just after its beginning a window has no useful rate
yet."""
_WIDTH = 3


@dataclass(frozen=True)
class Snapshot:
    """What was counted in one window. `tps`: `total` per second; `average`: `total` per call."""

    total: int = 0
    tps: float = 0.0
    average: float = 0.0


class StatsItem:
    """A sum with its samples. `add` is the hot path: two additions."""

    __slots__ = ("_sampled", "_windows", "times", "used", "value")

    def __init__(self, now_ms: int) -> None:
        self.value: int = 0
        self.times: int = 0
        self.used: int = 0
        """Tick in which it last grew, as `sample` found."""
        self._sampled: list[tuple[int, int, int]] = [(now_ms, 0, 0)] * len(WINDOWS)
        """The newest sample of each window, kept or not."""
        self._windows: list[array[int] | None] = [None] * len(WINDOWS)

    def add(self, value: int, times: int = 1) -> None:
        """Add to the sum."""
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
        """The growth within a window that ends now."""
        number = WINDOWS.index(window)
        kept = self._windows[number]
        first = self._sampled[number] if kept is None else (kept[0], kept[1], kept[2])
        return self._since(first, now_ms)

    def lately(self, window: Window, now_ms: int) -> Snapshot:
        """The growth since the last sample but one of a window."""
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
    """Counters of the messages that are appended to one topic; on the hot path they cost two additions."""

    __slots__ = ("batched", "messages", "size")

    def __init__(self) -> None:
        self.messages: int = 0
        self.size: int = 0
        """Bytes of the records."""
        self.batched: int = 0
        """Messages beyond the first of their batch: a batch counts as one call."""
