"""Resets in the replicated state, against the oracle, and as a leader sees them."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.chaos.scenarios.oracle import Resets
from dledger.formats.state import (
    MAX_RESET_QUEUES,
    RESETS,
    OffsetReset,
    Pending,
    ReplicatedState,
    heard_op,
    pack_op,
)

GROUPS, TOPICS = st.sampled_from(["g", "h"]), st.sampled_from(["T", "U"])
QUEUES = st.dictionaries(st.integers(0, 3), st.integers(0, 2), min_size=1).map(
    lambda rows: tuple(sorted(rows.items()))
)
OPS = st.one_of(
    st.builds(OffsetReset, GROUPS, TOPICS, QUEUES).map(lambda row: row.op()),
    st.builds(heard_op, GROUPS, TOPICS, st.integers(0, 3), st.integers(0, 2)),
    st.tuples(GROUPS, TOPICS).map(RESETS.removal),
)


@settings(deadline=None)
@given(st.lists(OPS, max_size=30), st.integers(0, 30))
def test_they_are_what_the_oracle_says(ops: list[dict[str, Any]], applied: int) -> None:
    """By the applied state, by its snapshot, and by what is pending."""
    state, oracle, late = ReplicatedState(), Resets(), ReplicatedState()
    pending = Pending(late)
    for index, op in enumerate(ops):
        assert state.apply(pack_op(op)) == op["op"]
        oracle.apply(msgpack.unpackb(pack_op(op)), {})
        pending.appended(index, op)
    for op in ops[:applied]:
        late.apply(pack_op(op))
    pending.applied(min(applied, len(ops)) - 1)
    wanted = {key: tuple(sorted(row.items())) for key, row in oracle.rows.items()}
    assert {key: row.queues for key, row in state[RESETS].rows.items()} == wanted
    assert {key: row.queues for key, row in pending[RESETS].rows.items()} == wanted
    loaded = ReplicatedState()
    loaded.load_own(msgpack.unpackb(b"".join(state.copy().own_pieces()), strict_map_key=False))
    assert loaded == state


@pytest.mark.parametrize(
    "op",
    [
        {"op": "offset_reset", "group": "g", "topic": "T", "queues": []},
        {"op": "offset_reset", "group": "g", "topic": "T", "queues": [[0, -1]]},
        {"op": "offset_reset", "group": "", "topic": "T", "queues": [[0, 1]]},
        {"op": "offset_reset", "group": "g", "topic": "T", "queues": [[0, 0]] * (MAX_RESET_QUEUES + 1)},
        {"op": "reset_heard", "group": "g", "topic": "T", "queue": "0", "offset": 0},
        {"op": "reset_heard", "group": "g", "topic": "T"},
        {"op": "reset_over", "group": "g"},
    ],
)
def test_what_is_malformed_changes_nothing(op: dict[str, Any]) -> None:
    state = ReplicatedState()
    state.apply(pack_op(OffsetReset("g", "T", ((0, 1),)).op()))
    assert state.apply(pack_op(op)) is None and state.skipped == 1
    assert dict(state[RESETS].rows) == {("g", "T"): OffsetReset("g", "T", ((0, 1),))}
