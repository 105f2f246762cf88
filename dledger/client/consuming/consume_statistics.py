"""Rates of a consumer: the messages that it pulled and their results, by topic (ConsumerStatsManager). Pure.

Counts are kept in time slots of equal length, and the newest slot is still being filled. A window is a fixed
number of slots. While no messages arrive there is no work to do. A topic needs only the memory of its
windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields

from dledger.remoting.operator_bodies import ConsumeStatus

PIECES = 6
MINUTE_PIECE_S = 10.0
HOUR_PIECE_S = 600.0
LEAST_S = 1.0
"""A rate is computed over at least this many seconds, because shorter times give no meaningful rate."""


@dataclass(slots=True)
class Counts:
    """The counts of one period of time. Fields in seconds are sums over all pulls or calls."""

    pulled: int = 0
    pulls: int = 0
    pull_s: float = 0.0
    consumed: int = 0
    failed: int = 0
    calls: int = 0
    call_s: float = 0.0

    def add(self, other: Counts) -> None:
        """Add the counts of `other` to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Window:
    """The counts of the last `PIECES` time slots, each of which lasts `piece_s` seconds."""

    def __init__(self, piece_s: float, now: float) -> None:
        self._piece_s = piece_s
        self._began = now
        self._pieces: deque[tuple[int, Counts]] = deque()

    def current(self, now: float) -> Counts:
        """The counts of the current time slot. The caller adds to them."""
        number = int(now // self._piece_s)
        if not self._pieces or self._pieces[-1][0] != number:
            self._forget(number)
            self._pieces.append((number, Counts()))
        return self._pieces[-1][1]

    def over(self, now: float) -> tuple[Counts, float]:
        """The sum of the counts of all slots, and the number of seconds that they cover."""
        number = int(now // self._piece_s)
        self._forget(number)
        total = Counts()
        for _, counts in self._pieces:
            total.add(counts)
        begin = (number - PIECES + 1) * self._piece_s
        return total, max(now - max(begin, self._began), LEAST_S)

    def _forget(self, number: int) -> None:
        while self._pieces and self._pieces[0][0] <= number - PIECES:
            self._pieces.popleft()


class ConsumeStatistics:
    """The statistics of one consumer."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns seconds of a clock that never goes back."""
        self._now = now
        self._topics: dict[str, tuple[Window, Window]] = {}

    def pulled(self, topic: str, messages: int, took_s: float) -> None:
        """Count a pull that returned messages."""
        for counts in self._current(topic):
            counts.pulls += 1
            counts.pulled += messages
            counts.pull_s += took_s

    def called(self, topic: str, consumed: int, failed: int, calls: int, took_s: float) -> None:
        """Count `calls` calls of the listener, one after the other: `consumed` messages are consumed, and
        `failed` messages will come again."""
        for counts in self._current(topic):
            counts.consumed += consumed
            counts.failed += failed
            counts.calls += calls
            counts.call_s += took_s

    def status(self, topic: str) -> ConsumeStatus:
        """The statistics of a topic in the form that brokers ask for: the rates of the last minute and the
        failures of the last hour. If there was no call in the last minute, the response time is that of the
        last hour."""
        windows = self._topics.get(topic)
        if windows is None:
            return ConsumeStatus()
        now = self._now()
        minute, lasted_s = windows[0].over(now)
        hour, _ = windows[1].over(now)
        calls = minute if minute.calls else hour
        return ConsumeStatus(
            pullRT=_average_ms(minute.pull_s, minute.pulls),
            pullTPS=minute.pulled / lasted_s,
            consumeRT=_average_ms(calls.call_s, calls.calls),
            consumeOKTPS=minute.consumed / lasted_s,
            consumeFailedTPS=minute.failed / lasted_s,
            consumeFailedMsgs=hour.failed,
        )

    def _current(self, topic: str) -> tuple[Counts, Counts]:
        now = self._now()
        windows = self._topics.get(topic)
        if windows is None:
            windows = self._topics[topic] = Window(MINUTE_PIECE_S, now), Window(HOUR_PIECE_S, now)
        return windows[0].current(now), windows[1].current(now)


def _average_ms(seconds: float, times: int) -> float:
    return seconds * 1000 / times if times else 0.0
