"""The oracle over client histories: what it accepts, and what it finds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.clients import Client
from dledger.chaos.scenarios.history import (
    ABSENT,
    ACKNOWLEDGED,
    REFUSED,
    RUNNING,
    UNKNOWN,
    Call,
    History,
    judge,
    judge_batches,
)
from dledger.messages import Code
from dledger.peers.log_client import RequestFailed


def append(value: bytes, begin: int, end: int, outcome: str = ACKNOWLEDGED, index: int = -1) -> Call:
    return Call("c0", "append", begin, value, index, end, outcome)


def read(index: int, value: bytes, begin: int = 50) -> Call:
    return Call("c0", "get", begin, value, index, begin + 10, ACKNOWLEDGED)


def absent(index: int, begin: int) -> Call:
    return Call("c1", "get", begin, b"", index, begin + 10, ABSENT)


def point(index: int, begin: int, end: int) -> Call:
    return Call("c1", "read", begin, b"", index, end, ACKNOWLEDGED)


def test_an_honest_history_is_counted() -> None:
    calls = [
        append(b"a", 0, 10, index=1),
        append(b"b", 1, 11, UNKNOWN),
        append(b"c", 2, 12, UNKNOWN),
        append(b"d", 3, 13, REFUSED),
        append(b"e", 20, 30, index=5),
        read(1, b"a"),
        Call("c0", "get", 70, b"", 3, 80, UNKNOWN),
        absent(6, 90),
    ]
    verdict = judge(calls, {1: b"a", 3: b"c", 5: b"e"})
    assert (verdict.acknowledged, verdict.unknown, verdict.recovered, verdict.refused) == (2, 2, 1, 1)
    assert (verdict.reads, verdict.absent, verdict.failed_reads) == (1, 1, 1)


@pytest.mark.parametrize(
    ("words", "calls", "log"),
    [
        ("lost: a", [append(b"a|", 0, 1, index=0)], {}),
        ("moved: a", [append(b"a|", 0, 1, index=0)], {1: b"a|"}),
        ("duplicated: a", [append(b"a|", 0, 1, UNKNOWN)], {1: b"a|", 2: b"a|"}),
        ("unexpected: b", [], {1: b"b|"}),
        ("a was refused", [append(b"a|", 0, 1, REFUSED)], {0: b"a|"}),
        ("c0 read x", [append(b"a|", 0, 1, index=0), read(0, b"x|")], {0: b"a|"}),
        ("c0 read a at 1, the log has no value", [append(b"a|", 0, 1, index=0), read(1, b"a|")], {0: b"a|"}),
        # A deposed leader showed its tail, which was cut; in its place is an entry of the group's own.
        ("c0 read a at 1, the log has no value", [append(b"a|", 0, 1, UNKNOWN), read(1, b"a|")], {}),
        ("stale read point 0", [append(b"a|", 0, 1, index=1), Call("c1", "read", 2, b"", 0, 3, ACKNOWLEDGED)],
         {1: b"a|"}),
        ("stale read point 0", [Call("c1", "read", 0, b"", 1, 1, ACKNOWLEDGED),
                                Call("c2", "read", 2, b"", 0, 3, ACKNOWLEDGED)], {}),
        ("b .* is at 0, but began after a", [append(b"a|", 0, 1, index=1), append(b"b|", 2, 3, index=0)],
         {0: b"b|", 1: b"a|"}),
        ("b .unknown. is at 0, but began after a",
         [append(b"a|", 0, 1, index=1), append(b"b|", 2, 3, UNKNOWN)], {0: b"b|", 1: b"a|"}),
        ("b .running. is at 0, but began after a",
         [append(b"a|", 0, 1, index=1), append(b"b|", 2, -1, RUNNING)], {0: b"b|", 1: b"a|"}),
        ("b .unknown. is at 4, but began after a read of c1 was told 4",
         [point(4, 0, 1), append(b"b|", 2, 3, UNKNOWN)], {4: b"b|"}),
        ("b .* is at 0, but began after a get of c0 was told 1",
         [append(b"a|", 0, 1, UNKNOWN), read(1, b"a|", 2), append(b"b|", 20, 21, index=0)],
         {0: b"b|", 1: b"a|"}),
        ("b .* is at 0, but began after a get of c0 was told 0",
         [read(0, b"b|", 2), append(b"b|", 20, 21, index=0)], {0: b"b|"}),
        ("stale read point 0 of c1, begun after a get of c0 was told 1",
         [append(b"a|", 0, 1, UNKNOWN), read(1, b"a|", 2), point(0, 20, 21)], {1: b"a|"}),
        ("c1 was told that there is no 1, asked after a was told 1",
         [append(b"a|", 0, 1, index=1), absent(1, 2)], {1: b"a|"}),
        ("c1 was told that there is no 1, asked after c was told 3",
         [append(b"a|", 0, 30, index=1), append(b"c|", 0, 1, index=3), absent(1, 2)], {1: b"a|", 3: b"c|"}),
        ("c1 was told that there is no 1, asked after a get of c0 was told 1",
         [append(b"a|", 0, 1, UNKNOWN), read(1, b"a|", 2), absent(1, 20)], {1: b"a|"}),
        ("c1 was told that there is no 1, asked after a read of c1 was told 1",
         [point(1, 0, 1), absent(1, 2)], {}),
    ],
)  # fmt: skip
def test_it_finds(words: str, calls: list[Call], log: dict[int, bytes]) -> None:
    with pytest.raises(InvariantViolated, match=words):
        judge(calls, log)


def test_calls_at_one_time_may_come_in_any_order() -> None:
    judge([append(b"a", 0, 10, index=1), append(b"b", 5, 15, index=0)], {0: b"b", 1: b"a"})


@pytest.mark.parametrize(
    "calls",
    [
        [append(b"a", 0, 10, index=1), append(b"b", 5, 15, UNKNOWN)],
        [append(b"b", 0, 1, UNKNOWN), append(b"a", 2, 3, index=1)],
        [append(b"b", 0, 1, UNKNOWN), append(b"a", 2, 3, index=1), read(0, b"b", 4), read(1, b"a", 20)],
        [append(b"b", 0, 50, index=0), append(b"a", 0, 10, index=1), absent(1, 10), absent(2, 60)],
        [append(b"b", 0, 5, index=0), append(b"a", 0, 60, index=1), absent(1, 10), read(1, b"a", 10)],
        [append(b"b", 0, 5, index=0), append(b"a", 0, 60, UNKNOWN), read(1, b"a", 10), absent(1, 20)],
        [append(b"b", 0, 5, UNKNOWN), append(b"a", 0, 6, UNKNOWN), absent(0, 90), absent(1, 90)],
    ],
)
def test_it_lets_pass(calls: list[Call]) -> None:
    """It accepts concurrent calls, values that came into the log after their time-out, and entries that no
    call named."""
    judge(calls, {0: b"b", 1: b"a"})


def test_an_append_of_unknown_outcome_that_is_nowhere_has_no_place_in_the_order() -> None:
    judge([append(b"a", 0, 1, index=1), append(b"b", 2, 3, UNKNOWN), append(b"c", 4, 5, index=2)],
          {1: b"a", 2: b"c"})  # fmt: skip


def test_a_client_batch_is_whole_or_not_there() -> None:
    whole, gone = [b"a|", b"b|", b"c|"], [b"x|", b"y|"]
    assert judge_batches([whole, gone], {4: b"a|", 5: b"b|", 6: b"c|"}) == 1
    for log in ({4: b"a|", 5: b"b|"}, {4: b"a|", 6: b"b|", 7: b"c|"}, {4: b"b|", 5: b"a|", 6: b"c|"}):
        with pytest.raises(InvariantViolated, match="the batch from a on"):
            judge_batches([whole], log)


@pytest.mark.parametrize(
    ("code", "text", "outcome", "violated"),
    [
        (Code.UNEXPECTED_ARGUMENT, "committed entries are 0..-1", ABSENT, False),
        (Code.UNEXPECTED_ARGUMENT, "committed entries are 0..6", ABSENT, False),
        (Code.UNEXPECTED_ARGUMENT, "committed entries are 0..7", ABSENT, True),
        (Code.UNEXPECTED_ARGUMENT, "committed entries are 8..9", UNKNOWN, False),
        (Code.UNEXPECTED_ARGUMENT, "other words", UNKNOWN, True),
        (Code.INCONSISTENT_STATE, "committed entries are 0..6", UNKNOWN, False),
        (None, "no answer", UNKNOWN, False),
    ],
)
def test_what_a_get_of_entry_7_was_told(code: Code | None, text: str, outcome: str, violated: bool) -> None:
    told: list[str] = []
    client = Client(SimpleNamespace(client_names=["c0"], violated=told.append), 0, History(), [])  # type: ignore[arg-type]
    assert client._not_shown(7, RequestFailed(text, code)) == outcome
    assert bool(told) == violated
