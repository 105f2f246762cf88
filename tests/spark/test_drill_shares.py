"""How index ranges that are to be drilled are divided among tasks. No Spark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

spans = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 300)), max_size=20)


@settings(deadline=None)  # the first one imports Spark
@given(spans, st.integers(1, 100))
def test_every_index_is_in_one_share_and_no_share_is_too_large(
    spans: list[tuple[int, int]], most: int
) -> None:
    from dledger.spark.parts import shares

    ranges, at = [], 0
    for gap, length in spans:
        ranges.append((at + gap, at + gap + length - 1))
        at += gap + length
    found = list(shares(ranges, most))
    each = [[index for first, last in share for index in range(first, last + 1)] for share in found]
    assert [index for share in each for index in share] == [
        index for first, last in ranges for index in range(first, last + 1)
    ]
    assert all(len(share) == most for share in each[:-1]) and all(0 < len(share) <= most for share in each)
