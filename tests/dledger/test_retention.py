"""What retention removes, as a pure decision (NPS I8-I12), and the snapshots that it may stand on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.log.retention import HOUR_MS, RetentionSettings, Situation, decide, is_delete_hour
from dledger.snapshots.catalog import superfluous

SETTINGS = RetentionSettings(reserved_hours=72.0, clean_forcibly=True)
SEGMENT = 1000
DAY_MS = 24 * HOUR_MS
FOUR = 100 * DAY_MS + 4 * HOUR_MS + 5
NOON = 100 * DAY_MS + 12 * HOUR_MS


@dataclass(frozen=True)
class At:
    """A boundary."""

    index: int
    pos: int
    store_time_ms: int


def boundaries(*hours_ago: float, now: int = FOUR) -> list[At]:
    """One a segment; how old the last record before each is."""
    return [
        At(place * 10 - 1, place * SEGMENT, now - int(hours * HOUR_MS))
        for place, hours in enumerate(hours_ago, 1)
    ]


def situation(**changes: object) -> Situation:
    plain = Situation(FOUR, 0.3, 0, 5 * SEGMENT, 55, 56)
    return replace(plain, **changes)  # type: ignore[arg-type]


def begins(*arguments: object) -> int | None:
    removal = decide(*arguments)  # type: ignore[arg-type]
    return None if removal is None else removal.boundary.pos


def test_what_expired_goes_at_four_and_only_then() -> None:
    old = boundaries(100, 80, 73, 71, 1)
    assert begins(SETTINGS, situation(), old) == 3 * SEGMENT
    assert begins(SETTINGS, situation(now_ms=NOON), boundaries(100, 80, 73, 71, 1, now=NOON)) is None
    assert begins(SETTINGS, situation(), boundaries(71, 60, 50, 40, 1)) is None


def ahead(*hours_ago: float | None) -> tuple[list[At], dict[int, int]]:
    """Boundaries with one store time, ten years to come, and when their snapshots were written."""
    stamped = [
        replace(one, store_time_ms=FOUR + 3650 * DAY_MS) for one in boundaries(*[0.0] * len(hours_ago))
    ]
    written = zip(stamped, hours_ago, strict=True)
    return stamped, {one.pos: FOUR - int(ago * HOUR_MS) for one, ago in written if ago is not None}


@pytest.mark.parametrize(
    ("written", "begin"),
    [
        ((100, 80, 73, 71, 1), 3 * SEGMENT),
        ((71, 60, 50, 40, 1), None),
        ((None, None, None, None, None), None),
        ((None, None, 73, 71, 1), 3 * SEGMENT),  # what comes before was stored before
        ((-87600, -87600, 73, 71, 1), 3 * SEGMENT),  # by the leader whose clock was ahead
        ((-87600, -87600, -87600, -87600, -87600), None),
        ((100, 80, None, None, None), 2 * SEGMENT),
    ],
)
def test_what_bears_a_time_to_come_expires_by_when_it_was_written(
    written: tuple[float | None, ...], begin: int | None
) -> None:
    stamped, written_ms = ahead(*written)
    assert begins(SETTINGS, situation(), stamped) is None
    assert begins(SETTINGS, situation(written_ms=written_ms), stamped) == begin


def test_a_store_time_that_may_be_right_is_not_replaced() -> None:
    young = boundaries(71, 60, 50, 40, 1)
    written_ms = {one.pos: FOUR - 100 * HOUR_MS for one in young}
    assert begins(SETTINGS, situation(written_ms=written_ms), young) is None
    stamped, written_ms = ahead(100, 80, 75, 74, 1)
    mixed = [*boundaries(73, 71, 70), *stamped[3:]]
    assert begins(SETTINGS, situation(written_ms=written_ms), mixed) == SEGMENT


def test_four_is_meant_in_local_time() -> None:
    east = replace(SETTINGS, utc_offset_s=8 * 3600)
    assert is_delete_hour(SETTINGS, FOUR) and not is_delete_hour(east, FOUR)
    assert is_delete_hour(east, FOUR - 8 * HOUR_MS)
    assert is_delete_hour(replace(SETTINGS, delete_hours=(4, 12)), NOON)


def test_what_lies_behind_something_younger_is_not_older_than_that() -> None:
    assert begins(SETTINGS, situation(), boundaries(100, 1, 80, 90, 1)) == SEGMENT
    assert begins(SETTINGS, situation(), boundaries(1, 100, 80, 90, 1)) is None
    assert begins(SETTINGS, situation(begin_pos=SEGMENT), boundaries(1, 100, 80, 90, 1)) is None
    unknown = [replace(boundary, store_time_ms=-1) for boundary in boundaries(100)]
    assert begins(SETTINGS, situation(), [*unknown, *boundaries(0, 90, 1)[1:]]) == 2 * SEGMENT


def test_what_is_needed_stays_but_where_the_disk_is_full() -> None:
    old = boundaries(100, 80, 73, 71, 1)
    for kept, wanted in (
        (0, None),
        (SEGMENT - 1, None),
        (SEGMENT, SEGMENT),
        (2500, 2 * SEGMENT),
        (9999, 3000),
    ):
        assert begins(SETTINGS, situation(kept_from=kept), old) == wanted
        assert begins(SETTINGS, situation(kept_from=kept), old, 10**9) == (wanted if kept < 9999 else 5000)
        assert begins(SETTINGS, situation(kept_from=kept, used_ratio=0.86), old) == SEGMENT


def test_a_filling_disk_does_not_wait_for_four() -> None:
    old = boundaries(100, 80, 73, 71, 1, now=NOON)
    assert begins(SETTINGS, situation(now_ms=NOON, used_ratio=0.76), old) == 3 * SEGMENT
    assert begins(SETTINGS, situation(now_ms=NOON, used_ratio=0.75), old) is None


def test_a_full_disk_takes_the_oldest_whatever_its_age_one_at_a_time() -> None:
    young = boundaries(5, 4, 3, 2, 1)
    full = situation(now_ms=NOON, used_ratio=0.86)
    removal = decide(SETTINGS, full, young)
    assert removal is not None and removal.boundary.pos == SEGMENT and removal.again
    assert begins(SETTINGS, replace(full, begin_pos=2 * SEGMENT), young) == 3 * SEGMENT
    assert begins(replace(SETTINGS, clean_forcibly=False), full, young) is None


def test_an_operator_may_ask_for_more() -> None:
    young = boundaries(5, 4, 3, 2, 1)
    noon = situation(now_ms=NOON)
    assert begins(SETTINGS, noon, young, 35) == 3 * SEGMENT
    assert begins(SETTINGS, noon, young, 30) == 3 * SEGMENT
    assert begins(SETTINGS, noon, young, 29) == 2 * SEGMENT
    assert begins(SETTINGS, noon, young, 5) is None
    assert begins(SETTINGS, situation(), boundaries(100, 80, 73, 71, 1), 15) == 3 * SEGMENT, "both count"


def test_never_the_last_segment_nor_the_unapplied_nor_what_a_peer_needs() -> None:
    old = boundaries(100, 99, 98, 97, 96)
    assert begins(SETTINGS, situation(), old) == 5 * SEGMENT
    assert begins(SETTINGS, situation(last_segment=4 * SEGMENT), old) == 4 * SEGMENT
    assert begins(SETTINGS, situation(applied_index=25), old) == 2 * SEGMENT
    assert begins(SETTINGS, situation(needed_from=30), old) == 3 * SEGMENT
    assert begins(SETTINGS, situation(needed_from=29), old) == 2 * SEGMENT
    assert begins(SETTINGS, situation(needed_from=0, used_ratio=0.9), old) == SEGMENT, "the disk goes first"


def test_an_unknown_age_never_expires() -> None:
    assert begins(SETTINGS, situation(), [At(9, SEGMENT, -1)]) is None


def test_settings_that_cannot_work_are_refused() -> None:
    for changes in ({"delete_hours": (24,)}, {"force_ratio": 0.5}, {"force_ratio": 1.1}, {"interval_s": 0}):
        with pytest.raises(ValueError):
            replace(SETTINGS, **changes)  # type: ignore[arg-type]


@given(st.sets(st.integers(0, 1000), max_size=40), st.integers(0, 20))
def test_thinned_snapshots_keep_the_first_and_the_two_newest(positions: set[int], keep: int) -> None:
    everything = sorted(positions)
    left = [pos for pos in everything if pos not in superfluous(everything, keep)]
    assert len(left) == min(len(everything), max(keep, 3))
    assert left[:1] == everything[:1] and left[-2:] == everything[-2:]
