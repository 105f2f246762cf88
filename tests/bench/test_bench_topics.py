"""What a change of one topic costs is measured, against NameServers of their own."""

from __future__ import annotations

from dledger.bench.topics import topics


def test_every_figure_is_there() -> None:
    figures = topics(50)
    assert len(figures) == 8
    assert all(milliseconds > 0 for milliseconds in figures.values()), figures
