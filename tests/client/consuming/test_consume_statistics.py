"""What a consumer counts of itself."""

from __future__ import annotations

import pytest

from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.remoting.operator_bodies import ConsumeStatus


class Clock:
    """Seconds, as they are set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_rates_are_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    clock = Clock(1000.0)
    statistics = ConsumeStatistics(clock)
    for _ in range(100):  # a second each: 10 pulled, consumed by 10 calls, every tenth fails
        statistics.pulled("a", 10, 0.2)
        statistics.called("a", 9, 1, 10, 0.5)
        clock.now += 1
    found = statistics.status("a")
    assert found.pullTPS == pytest.approx(10, rel=0.05)
    assert found.consumeOKTPS == pytest.approx(9, rel=0.05)
    assert found.consumeFailedTPS == pytest.approx(1, rel=0.05)
    assert (found.pullRT, found.consumeRT) == (pytest.approx(200), pytest.approx(50))
    assert found.consumeFailedMsgs == 100
    assert statistics.status("b") == ConsumeStatus()

    clock.now += 60
    later = statistics.status("a")
    assert later == ConsumeStatus(consumeRT=later.consumeRT, consumeFailedMsgs=100)
    assert later.consumeRT == pytest.approx(50)  # of the hour
    clock.now += 3600
    assert statistics.status("a") == ConsumeStatus()


def test_what_began_a_moment_ago_is_no_more_than_it_was() -> None:
    clock = Clock(1009.9)
    statistics = ConsumeStatistics(clock)
    statistics.called("a", 5, 0, 5, 0.0)
    assert statistics.status("a").consumeOKTPS == 5
    clock.now += 10
    assert statistics.status("a").consumeOKTPS == pytest.approx(0.5)


def test_idle_topics_keep_no_pieces() -> None:
    clock = Clock(0.0)
    statistics = ConsumeStatistics(clock)
    for _ in range(1000):
        statistics.called("a", 1, 0, 1, 0.0)
        clock.now += 10
    minute, hour = statistics._topics["a"]
    assert len(minute._pieces) <= 7 and len(hour._pieces) <= 7
