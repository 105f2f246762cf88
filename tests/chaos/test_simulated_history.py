"""The oracle over client histories: what it lets pass, and what it finds."""

from __future__ import annotations

import pytest

from chaos.invariants import InvariantViolated
from chaos.simulate.history import ACKNOWLEDGED, REFUSED, UNKNOWN, Call, judge, judge_batches


def append(value: bytes, begin: int, end: int, outcome: str = ACKNOWLEDGED, index: int = -1) -> Call:
    return Call("c0", "append", begin, value, index, end, outcome)


def read(index: int, value: bytes) -> Call:
    return Call("c0", "get", 50, value, index, 60, ACKNOWLEDGED)


def test_an_honest_history_is_counted() -> None:
    calls = [
        append(b"a", 0, 10, index=1),
        append(b"b", 1, 11, UNKNOWN),
        append(b"c", 2, 12, UNKNOWN),
        append(b"d", 3, 13, REFUSED),
        append(b"e", 20, 30, index=5),
        read(1, b"a"),
        Call("c0", "get", 70, b"", 3, 80, UNKNOWN),
    ]
    verdict = judge(calls, {1: b"a", 3: b"c", 5: b"e"})
    assert (verdict.acknowledged, verdict.unknown, verdict.recovered, verdict.refused) == (2, 2, 1, 1)
    assert (verdict.reads, verdict.failed_reads) == (1, 1)


@pytest.mark.parametrize(
    ("words", "calls", "log"),
    [
        ("lost: a", [append(b"a|", 0, 1, index=0)], {}),
        ("moved: a", [append(b"a|", 0, 1, index=0)], {1: b"a|"}),
        ("duplicated: a", [append(b"a|", 0, 1, UNKNOWN)], {1: b"a|", 2: b"a|"}),
        ("unexpected: b", [], {1: b"b|"}),
        ("a was refused", [append(b"a|", 0, 1, REFUSED)], {0: b"a|"}),
        ("c0 read x", [append(b"a|", 0, 1, index=0), read(0, b"x|")], {0: b"a|"}),
        ("stale read point 0", [append(b"a|", 0, 1, index=1), Call("c1", "read", 2, b"", 0, 3, ACKNOWLEDGED)],
         {1: b"a|"}),
        ("stale read point 0", [Call("c1", "read", 0, b"", 1, 1, ACKNOWLEDGED),
                                Call("c2", "read", 2, b"", 0, 3, ACKNOWLEDGED)], {}),
        ("b is at 0, but began after a", [append(b"a|", 0, 1, index=1), append(b"b|", 2, 3, index=0)],
         {0: b"b|", 1: b"a|"}),
    ],
)  # fmt: skip
def test_it_finds(words: str, calls: list[Call], log: dict[int, bytes]) -> None:
    with pytest.raises(InvariantViolated, match=words):
        judge(calls, log)


def test_calls_at_one_time_may_come_in_any_order() -> None:
    judge([append(b"a", 0, 10, index=1), append(b"b", 5, 15, index=0)], {0: b"b", 1: b"a"})


def test_a_client_batch_is_whole_or_not_there() -> None:
    whole, gone = [b"a|", b"b|", b"c|"], [b"x|", b"y|"]
    assert judge_batches([whole, gone], {4: b"a|", 5: b"b|", 6: b"c|"}) == 1
    for log in ({4: b"a|", 5: b"b|"}, {4: b"a|", 6: b"b|", 7: b"c|"}, {4: b"b|", 5: b"a|", 6: b"c|"}):
        with pytest.raises(InvariantViolated, match="the batch from a on"):
            judge_batches([whole], log)
