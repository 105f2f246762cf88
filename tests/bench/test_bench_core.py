"""The microbenchmark of the pure cores runs and gives a figure for each step."""

from __future__ import annotations

from dledger.bench.core import measure


def test_every_step_is_measured() -> None:
    figures = measure(steps=200)
    assert len(figures) >= 8
    for name, microseconds in figures.items():
        assert microseconds > 0, name
