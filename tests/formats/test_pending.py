"""What a leader sees: the applied state and what it appended, together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dledger.chaos.scenarios.newer import NEWER_TABLES, NOTES, Note
from dledger.formats.state import GROUPS, TOPICS, GroupConfig, Pending, ReplicatedState, TopicConfig, pack_op

NAMES = st.sampled_from(["a", "b", "c"])
OPS = st.one_of(
    st.builds(lambda name, queues: TopicConfig(name, queues, queues, 6).op(), NAMES, st.integers(0, 9)),
    st.builds(lambda name, on: GroupConfig(name, on).op(), NAMES, st.booleans()),
    st.builds(lambda name, text: Note(name, text).op(), NAMES, st.sampled_from(["", "x"])),
    NAMES.map(NOTES.removal),
)


@given(st.lists(st.tuples(OPS, st.integers(0, 4)), max_size=30))
def test_it_is_what_the_state_will_be(steps: list[tuple[dict[str, Any], int]]) -> None:
    """Whenever entries are applied, and however many at once."""
    state, whole = ReplicatedState(NEWER_TABLES), ReplicatedState(NEWER_TABLES)
    pending = Pending(state)
    applied = 0
    for index, (op, more) in enumerate(steps):
        pending.appended(index, op)
        whole.apply(pack_op(op))
        upto = min(index + 1, applied + more)
        for entry in range(applied, upto):
            state.apply(pack_op(steps[entry][0]))
        applied = upto
        pending.applied(applied - 1)
        for table in (TOPICS, GROUPS, NOTES):
            ours = pending[table].rows  # type: ignore[index]  # tables of several types
            theirs = dict(whole[table].rows)  # type: ignore[index]
            assert dict(ours) == theirs and len(ours) == len(theirs)
            assert all((name in ours) == (name in theirs) for name in "abc")


def test_what_is_applied_takes_no_memory() -> None:
    state = ReplicatedState()
    pending = Pending(state)
    for index in range(100):
        op = TopicConfig(f"t{index % 10}", 1, 1, 6).op()
        pending.appended(index, op)
        state.apply(pack_op(op))
    layer: Any = pending[TOPICS].rows
    assert len(layer._order) == 10
    pending.applied(99)
    assert not layer._order and not layer._changed and not layer._latest and len(layer) == 10


def test_an_operation_that_will_be_skipped_changes_nothing_here_either() -> None:
    """It is sealed already, which cannot fail any more (safety.md S12)."""
    state = ReplicatedState()
    pending = Pending(state)
    op = TopicConfig("x" * 300, 1, 1, 6).op()
    pending.appended(0, op)
    assert state.apply(pack_op(op)) is None and state.skipped == 1
    assert dict(pending[TOPICS].rows) == dict(state.topics) == {}
