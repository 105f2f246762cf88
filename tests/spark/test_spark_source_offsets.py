"""Offsets of streams: pure rules."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from dledger.spark.offsets import (
    DataLost,
    Position,
    QueueRange,
    There,
    check_not_lost,
    decode,
    divided,
    encode,
    limited,
    ranges_between,
    resumed,
)
from dledger.spark.selection import Bounds

QUEUES = st.sampled_from([("a", 0), ("a", 1), ("b", 0), ("c@g", 7)])
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 50))


LIVES = st.dictionaries(st.sampled_from(["a", "b", "c@g"]), st.sampled_from(["X.0", "X.17", "Y.0"]))


@given(OFFSETS, LIVES)
def test_a_position_survives_a_checkpoint(offsets: dict[tuple[str, int], int], lives: dict[str, str]) -> None:
    assert decode(encode(Position(offsets, lives))) == Position(offsets, lives)


def test_a_checkpoint_that_recorded_no_lives_is_read() -> None:
    assert decode({"a/0": 3, "c@g/7": 1}) == Position({("a", 0): 3, ("c@g", 7): 1}, {})


@pytest.mark.parametrize(
    "value", [{"logOffset": 3}, {"a/0": "3"}, {"a/x": 3}, {"a": "no life"}, {"a/0": None}]
)
def test_a_foreign_checkpoint_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not an offset of this source|is not a life"):
        decode(value)  # type: ignore[arg-type]


BOUNDS = {("a", 0): Bounds(0, 5), ("b", 0): Bounds(0, 5)}
READ = Position({("a", 0): 3, ("a", 1): 4, ("b", 0): 2}, {"a": "X.1", "b": "X.0"})


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"a": "X.9", "b": "X.0"}, "topic a was deleted and made again: .* the life X.1 .* now there is X.9"),
        (
            {"a": "Y.1", "b": "X.0"},
            "a is now read from the log of another group: .* the life X.1 .* there is Y.1",
        ),
        ({"b": "X.0"}, "topic a was deleted; the stream has read its life X.1"),
    ],
)
def test_offsets_of_a_life_that_ended_are_an_error_or_dropped(now: dict[str, str], said: str) -> None:
    there = There({queue: bounds for queue, bounds in BOUNDS.items() if queue[0] in now}, now)
    with pytest.raises(DataLost, match=said):
        resumed(READ, there, fail=True)
    assert resumed(READ, there, fail=False) == Position({("b", 0): 2}, now)


@pytest.mark.parametrize("fail", [True, False])
def test_what_a_source_does_not_know_is_no_loss(fail: bool) -> None:
    """Its state cannot be read, or is that of an older snapshot: then the recorded life is kept."""
    assert resumed(READ, There(BOUNDS), fail=fail) == READ
    before = {"a": "X.0", "b": "X.0"}
    assert resumed(READ, There(BOUNDS, older=before), fail=fail) == READ
    assert resumed(READ, There(BOUNDS, lives=before), fail=fail) == READ, "a replica that is behind"


def test_a_snapshot_shows_that_a_topic_was_made_again_and_is_not_recorded() -> None:
    there = There(BOUNDS, older={"a": "X.9", "b": "X.0"})
    with pytest.raises(DataLost, match="topic a was deleted and made again"):
        resumed(READ, there, fail=True)
    assert resumed(READ, there, fail=False) == Position({("b", 0): 2}, {"b": "X.0"})
    assert resumed(Position(READ.offsets), there, fail=True) == Position(READ.offsets)


@pytest.mark.parametrize("fail", [True, False])
def test_offsets_without_a_life_get_that_of_now(fail: bool) -> None:
    before, now = Position(READ.offsets), {"a": "X.9", "b": "X.0"}
    assert resumed(before, There(BOUNDS, now), fail=fail) == Position(READ.offsets, now)
    assert resumed(before, There(BOUNDS), fail=fail) == before, "a source that reports no lives"
    assert resumed(READ, There(BOUNDS, READ.lives), fail=fail) == READ


@given(OFFSETS, st.dictionaries(QUEUES, st.integers(0, 90)), st.integers(1, 200))
def test_a_limit_is_kept_and_used_up(
    start: dict[tuple[str, int], int], more: dict[tuple[str, int], int], limit: int
) -> None:
    there = {queue: Bounds(0, start.get(queue, 0) + count) for queue, count in more.items()}
    end = limited(start, there, limit)
    assert set(end) == set(start) | set(there), "no queue is forgotten"
    taken = {queue: end[queue] - start.get(queue, 0) for queue in end}
    assert all(0 <= count <= more.get(queue, 0) for queue, count in taken.items())
    assert sum(taken.values()) == min(limit, sum(more.values()))
    waiting = [queue for queue, count in more.items() if count]
    if len(waiting) <= limit:
        assert all(taken[queue] for queue in waiting), "no queue starves"


def test_a_source_that_is_behind_takes_nothing_back() -> None:
    there = {("a", 0): Bounds(0, 5)}
    assert limited({("a", 0): 9}, there, None) == {("a", 0): 9}
    assert check_not_lost({("a", 0): 9}, there, fail=True) == {("a", 0): 9}


def test_what_retention_deleted_fails_or_is_skipped() -> None:
    there = {("a", 0): Bounds(10, 50), ("new", 1): Bounds(3, 4)}
    with pytest.raises(DataLost, match="a/0: offset 7 is outside of the stored range 10 to 50"):
        check_not_lost({("a", 0): 7}, there, fail=True)
    assert check_not_lost({("a", 0): 7}, there, fail=False) == {("a", 0): 10, ("new", 1): 3}


@given(OFFSETS, OFFSETS, st.integers(1, 5))
def test_parts_cover_a_batch_once(
    start: dict[tuple[str, int], int], end: dict[tuple[str, int], int], parts: int
) -> None:
    ranges = ranges_between(start, end)
    wanted = {(item.topic, item.queue_id, at) for item in ranges for at in range(item.low, item.high)}
    cut = divided(ranges, parts)
    assert len(cut) <= parts and all(cut)
    found = [(i.topic, i.queue_id, at) for part in cut for i in part for at in range(i.low, i.high)]
    assert sorted(found) == sorted(wanted)


def test_a_new_queue_begins_at_its_start() -> None:
    assert ranges_between({}, {("a", 0): 2}) == [QueueRange("a", 0, 0, 2)]
