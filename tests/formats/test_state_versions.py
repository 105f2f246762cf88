"""Programs of two versions read each other's states (docs/howto/upgrade.md)."""

from __future__ import annotations

import pytest

from dledger.chaos.scenarios.newer import NEWER_TABLES, NOTES, Note
from dledger.formats.state import (
    TABLES,
    GroupConfig,
    ReplicatedState,
    TopicConfig,
    UnknownOperation,
    holds_state,
    offsets_op,
    pack_op,
    pack_parts,
    state_version,
    unpack_parts,
)
from dledger.formats.state_file import pack_snapshot, unpack_snapshot


def filled(state: ReplicatedState) -> ReplicatedState:
    state.apply(pack_op(TopicConfig("T", 4, 4, 6, attributes=(("a", "b"),)).op()))
    state.apply(pack_op(GroupConfig("g").op()))
    state.bounds("T", 0).next = 9
    state.apply(pack_op(offsets_op("g", [("T", 0, 7)])))
    return state


def newer() -> ReplicatedState:
    state = filled(ReplicatedState(NEWER_TABLES))
    state.apply(pack_op(Note("n", "text").op()))
    return state


def test_a_table_that_is_empty_leaves_no_trace() -> None:
    """So snapshots of both programs are equal until something is written that only one knows."""
    older, state = filled(ReplicatedState()), filled(ReplicatedState(NEWER_TABLES))
    assert pack_parts(state) == pack_parts(older)
    assert pack_snapshot(1, 2, state) == pack_snapshot(1, 2, older)
    state.apply(pack_op(Note("n").op()))
    state.apply(pack_op(NOTES.removal("n")))
    assert pack_parts(state) == pack_parts(older)


def test_the_newer_program_reads_a_state_without_its_part() -> None:
    older = filled(ReplicatedState())
    assert unpack_parts(pack_parts(older), NEWER_TABLES)[NOTES].empty
    assert unpack_snapshot(pack_snapshot(1, 2, older), NEWER_TABLES).state[NOTES].empty


def test_the_older_program_carries_a_part_that_it_does_not_know() -> None:
    parts = pack_parts(newer())
    assert "notes" in parts
    carried = unpack_parts(parts)
    assert pack_parts(carried) == parts, "byte for byte"
    again = unpack_snapshot(pack_snapshot(1, 2, carried)).state
    assert pack_parts(again) == parts, "through its own state file, too"
    own = pack_snapshot(1, 2, newer())
    assert pack_snapshot(1, 2, unpack_snapshot(own).state) == own
    assert unpack_parts(pack_parts(again), NEWER_TABLES)[NOTES].rows == {"n": Note("n", "text")}


def test_what_is_carried_does_not_hide_an_operation_that_is_unknown() -> None:
    carried = unpack_parts(pack_parts(newer()))
    with pytest.raises(UnknownOperation, match="note"):
        carried.apply(pack_op(Note("n").op()))


def test_a_missing_part_is_empty() -> None:
    parts = pack_parts(filled(ReplicatedState()))
    for name in parts:
        if name != "counters":
            less = {key: value for key, value in parts.items() if key != name}
            assert pack_parts(unpack_parts(less))[name] == pack_parts(ReplicatedState())[name]
    assert unpack_parts({}) == ReplicatedState()


def test_a_state_is_told_from_what_other_hosts_keep() -> None:
    assert holds_state(pack_parts(ReplicatedState())) and holds_state(pack_parts(newer()))
    assert not holds_state({"count": b"\x00"})


@pytest.mark.parametrize("part", ["topics", "groups", "offsets", "queues", "counters"])
@pytest.mark.parametrize("value", [b"", b"\x05", b"\xc1", b"\x91\x05", b"\x91\x80"])
def test_a_part_that_is_none_is_refused(part: str, value: bytes) -> None:
    if (part, value) == ("counters", b"\x80"):
        return
    with pytest.raises(ValueError):
        unpack_parts(pack_parts(ReplicatedState()) | {part: value})


def test_each_operation_says_since_when_it_is_known() -> None:
    state = ReplicatedState(NEWER_TABLES)
    assert state.since("topic") == state.since("reset") == 1 < state_version(TABLES)
    assert (
        state.since("note")
        == state.since("unnote")
        == state_version(TABLES) + 1
        == state_version(NEWER_TABLES)
    )
