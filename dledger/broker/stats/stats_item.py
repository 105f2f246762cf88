"""One statistic: a sum, and its values at points of the last minute, hour and day (StatsItem). Pure.

A sample has three numbers: the time, the sum, and how many times the sum grew. A window keeps samples for its
whole length, and one sample before. There are two differences from RocketMQ. Growth since the newest sample
counts as well. A window in which nothing happened keeps no samples, so 20,000 keys that were used once take
little more room than their names.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple


class Window(NamedTuple):
    """A period over which growth is shown, with the ticks between two of its samples and the number of
    samples that it keeps."""

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
"""Shortest time, in ms, by which a sum is divided to get its rate. Just after a window begins, a shorter time
would give a useless rate."""
_WIDTH = 3


@dataclass(frozen=True)
class Snapshot:
    """The growth of a sum in one window. `tps`: `total` per second; `average`: `total` per call."""

    total: int = 0
    tps: float = 0.0
    average: float = 0.0


class StatsItem:
    """A sum with its samples. `add` is on the hot path and costs two additions."""

    __slots__ = ("_sampled", "_windows", "times", "used", "value")

    def __init__(self, now_ms: int) -> None:
        self.value: int = 0
        self.times: int = 0
        self.used: int = 0
        """Number of the tick (`TICK_S`) in which `sample` last found that the sum had grown."""
        self._sampled: list[tuple[int, int, int]] = [(now_ms, 0, 0)] * len(WINDOWS)
        """The newest sample of each window, even if the window keeps no samples."""
        self._windows: list[array[int] | None] = [None] * len(WINDOWS)

    def add(self, value: int, times: int = 1) -> None:
        """Add to the sum."""
        self.value += value
        self.times += times

    def sample(self, tick: int, now_ms: int) -> None:
        """Take the samples that are due at this tick. A tick is `TICK_S` seconds."""
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
                if kept[2] == self.times:  # the sum did not grow in the whole window
                    self._windows[number] = None

    def over(self, window: Window, now_ms: int) -> Snapshot:
        """Return the growth within a window that ends now."""
        number = WINDOWS.index(window)
        kept = self._windows[number]
        first = self._sampled[number] if kept is None else (kept[0], kept[1], kept[2])
        return self._since(first, now_ms)

    def lately(self, window: Window, now_ms: int) -> Snapshot:
        """Return the growth since the second newest sample of a window: the last one to two intervals."""
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
        """Bytes of the records of these messages."""
        self.batched: int = 0
        """Messages of batches, without the first message of each batch, because a batch counts as one
        call."""
