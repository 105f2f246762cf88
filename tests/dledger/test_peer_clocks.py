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
    names = [f"n{number}" for number in range(len(others))]
    for name, other in zip(names, others, strict=True):
        clocks.hello(name, str(10_000_000 + other), 500)
    assert clocks.off_ms(10_000_000, 500, names) == off
    assert clocks.off_ms(10_060_000, 60_500, names) == off, "time passes on all of them"


def test_a_clock_that_is_set_right_agrees_again_and_odd_texts_count_for_nothing() -> None:
    clocks = PeerClocks()
    peers = ("n1", "n2")
    for peer in peers:
        clocks.hello(peer, "1000000", 0)
    assert clocks.off_ms(1_500_000, 0, peers) == 500_000 and clocks.off_ms(1_000_010, 10, peers) == 0
    for told in (None, "", "-5", "9" * 16, "soon", "\u0661\u0662", "0"):
        clocks.hello("n1", None, 0)
        clocks.hello("n1", told, 0)
        assert clocks.off_ms(1_500_000, 0, peers) == 0, told
        clocks.hello("n1", "1000000", 0)


def test_each_heartbeat_tells_the_clock_anew_and_those_of_older_programs_tell_none() -> None:
    clocks = PeerClocks()
    peers = ("n1", "n2")
    for peer in peers:
        clocks.hello(peer, "1000000", 0)
    for none in (0, -1, 1 << 62):
        clocks.heard("n1", none, 0)
        assert clocks.off_ms(1_500_000, 0, peers) == 500_000, none
    clocks.heard("n1", 1_500_000, 0)
    assert clocks.off_ms(1_500_000, 0, peers) == 0


def test_only_members_count_and_more_than_half_of_the_group_must_be_known() -> None:
    clocks = PeerClocks()
    for peer in ("n1", "n2", "removed"):
        clocks.hello(peer, "1000000", 0)
    assert clocks.off_ms(1_500_000, 0, ("n1", "n2", "n3", "n4")) == 500_000
    assert clocks.off_ms(1_500_000, 0, ("n1", "n2", "n3", "n4", "n5")) == 0, "three of six"
    assert clocks.off_ms(1_500_000, 0, ("n1", "n3")) == 0, "who was removed does not count"


@pytest.mark.parametrize(
    ("others", "group", "undecided"),
    [
        ([], 2, 0),
        ([0], 2, 0),
        ([-3_600_000], 2, 3_600_000),
        ([3_600_000], 3, -3_600_000),
        ([-3_600_000, -3_600_000], 3, 0),  # these know
        ([-3_600_000, 3_600_000], 3, 0),  # the one in the middle
        ([-3_600_000, 0], 3, 0),
        ([-3_600_000, -3_500_000, 0], 4, 3_500_000),
        ([-3_600_000, 0, 0], 4, 0),
        ([-3_600_000, -3_600_000], 7, 3_600_000),  # too few of seven are known
    ],
)
def test_where_too_few_clocks_are_known_it_is_said_that_they_differ(
    others: list[int], group: int, undecided: int
) -> None:
    clocks = PeerClocks()
    for number, other in enumerate(others):
        clocks.hello(f"n{number}", str(10_000_000 + other), 500)
    members = [f"n{number}" for number in range(group - 1)]
    assert clocks.undecided_ms(10_000_000, 500, members) == undecided
