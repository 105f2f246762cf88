"""The policy for preferred leaders: when leadership moves, and when it is left alone."""

from __future__ import annotations

from dledger.election.preferred import PreferredLeader, PreferredSettings

SETTINGS = PreferredSettings(settle_s=2.0, short_lived_s=30.0, backoff_min_s=10.0, backoff_max_s=60.0)


def leading(now: float = 0.0) -> PreferredLeader:
    policy = PreferredLeader(SETTINGS)
    policy.leader_changed("n0", now)
    return policy


def test_it_waits_until_it_has_led_for_a_while() -> None:
    policy = leading()
    assert policy.choose(["n1"], "n0", ["n1"], 1.9) is None
    assert policy.choose(["n1"], "n0", ["n1"], 2.0) == "n1"


def test_a_preferred_leader_stays_even_if_another_is_preferred_more() -> None:
    assert leading().choose(["n1", "n0"], "n0", ["n1"], 9.0) is None


def test_who_is_not_fit_is_passed_over() -> None:
    policy = leading()
    assert policy.choose(["n1", "n2"], "n0", ["n2"], 9.0) == "n2"
    assert policy.choose(["n1"], "n0", [], 9.0) is None


def test_a_follower_moves_nothing() -> None:
    policy = PreferredLeader(SETTINGS)
    policy.leader_changed("n2", 0.0)
    assert policy.choose(["n1"], "n0", ["n1"], 9.0) is None


def test_a_failed_take_over_backs_off_exponentially_up_to_a_limit() -> None:
    policy = leading()
    now = 2.0
    pauses = []
    for _ in range(5):
        assert policy.choose(["n1"], "n0", ["n1"], now) == "n1"
        policy.tried("n1", False, now)
        began = now
        while policy.choose(["n1"], "n0", ["n1"], now) is None:
            now += 1.0
        pauses.append(now - began)
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_short_leadership_counts_as_failed_for_those_who_only_watched() -> None:
    watcher = PreferredLeader(SETTINGS)
    now = 0.0
    for _ in range(3):
        watcher.leader_changed("n1", now)
        watcher.leader_changed(None, now + 5.0)
        now += 6.0
    watcher.leader_changed("n0", now)
    assert watcher.choose(["n1"], "n0", ["n1"], now + 30.0) is None
    assert watcher.choose(["n1"], "n0", ["n1"], now + 50.0) == "n1"


def test_a_long_leadership_makes_good() -> None:
    policy = leading()
    policy.tried("n1", False, 2.0)
    policy.tried("n1", False, 12.0)
    policy.leader_changed("n1", 40.0)
    policy.leader_changed("n0", 80.0)
    assert policy.choose(["n1"], "n0", ["n1"], 83.0) == "n1"
    policy.tried("n1", False, 83.0)
    assert policy.choose(["n1"], "n0", ["n1"], 93.0) == "n1", "the count began anew"


def test_a_leadership_that_an_operator_ended_is_no_failure() -> None:
    policy = PreferredLeader(SETTINGS)
    policy.leader_changed("n1", 0.0)
    policy.leader_changed(None, 5.0, commanded=True)
    policy.leader_changed("n0", 5.1)
    assert policy.choose(["n1"], "n0", ["n1"], 7.1) == "n1"


def test_nor_does_it_make_good() -> None:
    policy = leading()
    policy.tried("n1", False, 2.0)
    policy.leader_changed("n1", 13.0)
    policy.leader_changed("n0", 14.0, commanded=True)
    policy.tried("n1", False, 24.0)
    assert policy.choose(["n1"], "n0", ["n1"], 43.0) is None
    assert policy.choose(["n1"], "n0", ["n1"], 44.0) == "n1", "twice as long as the first time"


def test_who_is_named_anew_is_left_alone_no_more() -> None:
    policy = leading()
    for now in (2.0, 12.0, 32.0):
        policy.tried("n1", False, now)
    policy.forgive()
    assert policy.choose(["n1"], "n0", ["n1"], 32.1) == "n1"
    policy.tried("n1", False, 32.1)
    assert policy.choose(["n1"], "n0", ["n1"], 42.1) == "n1", "the count began anew"
