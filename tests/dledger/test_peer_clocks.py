"""Whose clock is off is told by more than half of all."""

from __future__ import annotations

import pytest

from dledger.node.clocks import PeerClocks


@pytest.mark.parametrize(
    ("others", "off"),
    [
        ([], 0),
        ([-3_600_000], 0),  # of two nobody knows
        ([-3_600_000, 0], 0),
        ([-3_600_000, -3_600_400], 3_600_000),
        ([3_600_000, 7_200_000], -3_600_000),
        ([-3_600_000, 3_600_000], 0),
        ([-900, -900], 0),
        ([-5_000, -5_000, 0, 0], 0),
        ([-5_000, -6_000, -7_000, 0], 5_000),
        ([5_000, 6_000, 7_000, 0], -5_000),
        ([-5_000, -6_000, 0], 0),
        ([-5_000, -6_000, -7_000], 5_000),
    ],
)
def test_more_than_half_of_all_clocks_must_differ(others: list[int], off: int) -> None:
    clocks = PeerClocks()
    for number, other in enumerate(others):
        clocks.heard(f"n{number}", str(10_000_000 + other), 500)
    assert clocks.off_ms(10_000_000, 500) == off
    assert clocks.off_ms(10_060_000, 60_500) == off, "time passes on all of them"


def test_a_clock_that_is_set_right_agrees_again_and_odd_texts_count_for_nothing() -> None:
    clocks = PeerClocks()
    for peer in ("n1", "n2"):
        clocks.heard(peer, "1000000", 0)
    assert clocks.off_ms(1_500_000, 0) == 500_000 and clocks.off_ms(1_000_010, 10) == 0
    for told in (None, "", "-5", "9" * 16, "soon", "\u0661\u0662"):
        clocks.heard("n1", told, 0)
        assert clocks.off_ms(1_500_000, 0) == 0, told
        clocks.heard("n1", "1000000", 0)
