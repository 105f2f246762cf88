"""The replicated state is a total, deterministic function of its operations (safety.md S13, S28)."""

from __future__ import annotations

import random
from contextlib import suppress
from copy import deepcopy
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.formats.state import (
    PIECE,
    GroupConfig,
    ReplicatedState,
    TopicConfig,
    UnknownOperation,
    offsets_op,
    pack_op,
    pack_parts,
    unpack_parts,
)
from dledger.formats.state_file import CorruptSnapshot, pack_snapshot, unpack_snapshot

NAMES = st.sampled_from(["T", "U", "%RETRY%g"])
TOPICS = st.builds(TopicConfig, NAMES, st.integers(0, 1024), st.integers(0, 1024), st.integers(0, 7))
ROWS = st.lists(st.tuples(NAMES, st.integers(0, 3), st.integers(0, 20)), max_size=4)
OPS = st.one_of(
    TOPICS.map(lambda topic: topic.op()),
    st.builds(GroupConfig, NAMES, st.booleans()).map(lambda group: group.op()),
    st.builds(lambda rows, reset: offsets_op("g", rows, reset=reset), ROWS, st.booleans()),
)
JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=8,
)


def with_queues() -> ReplicatedState:
    state = ReplicatedState()
    for topic in ("T", "U"):
        for queue in range(2):
            state.bounds(topic, queue).next = 10
    return state


def test_topics_and_groups_are_made_and_replaced() -> None:
    state = ReplicatedState()
    for queues in (4, 8, 8):
        state.apply(pack_op(TopicConfig("T", queues, queues, 6, attributes=(("a", "b"),)).op()))
    state.apply(pack_op(GroupConfig("g", retry_max=3).op()))
    assert state.topics["T"].read_queues == 8 and state.topics["T"].attributes == (("a", "b"),)
    assert state.topics_version == 2
    assert state.groups["g"].retry_max == 3


def test_offsets_only_rise_but_for_a_reset() -> None:
    state = with_queues()
    state.apply(pack_op(offsets_op("g", [("T", 0, 7), ("T", 1, 3)])))
    state.apply(pack_op(offsets_op("g", [("T", 0, 5), ("T", 1, 4)])))
    assert state.offsets["g"] == {("T", 0): 7, ("T", 1): 4}
    state.apply(pack_op(offsets_op("g", [("T", 0, 2)], reset=True)))
    assert state.consumer_offset("g", "T", 0) == 2


def test_offsets_beyond_the_end_are_skipped() -> None:
    state = with_queues()
    state.apply(pack_op(offsets_op("g", [("T", 0, 11), ("X", 0, 1), ("T", 1, 10)])))
    assert state.offsets["g"] == {("T", 1): 10}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        msgpack.packb("topic"),
        msgpack.packb({"op": 5}),
        msgpack.packb({"offsets": []}),
        msgpack.packb({"op": ["topic"]}),
        msgpack.packb({"op": "topic"}),
        msgpack.packb(TopicConfig("T", 1, 1, 6).op() | {"read": 1.5}),
        msgpack.packb(TopicConfig("T", 1, 1, 6).op() | {"write": True}),
        msgpack.packb(TopicConfig("T", 1, 1, 6).op() | {"name": "x" * 256}),
        msgpack.packb({"op": "offsets", "group": "g", "offsets": [["T", 0, 1], ["T"]]}),
        msgpack.packb({"op": "offsets", "group": "g", "offsets": {"T": 1}}),
    ],
)
def test_what_is_no_operation_is_counted_and_changes_nothing(body: bytes) -> None:
    state = with_queues()
    before = deepcopy(state)
    assert state.apply(body) is None
    before.skipped = 1
    assert state == before


def test_an_operation_of_a_newer_program_is_never_skipped() -> None:
    state = with_queues()
    before = deepcopy(state)
    with pytest.raises(UnknownOperation, match="does not know the operation 'lease'"):
        state.apply(pack_op({"op": "lease", "name": "x"}))
    assert state == before


@given(st.one_of(st.binary(max_size=60), JSON_LIKE.map(msgpack.packb), OPS.map(pack_op)))
def test_apply_never_raises(body: bytes) -> None:
    state = with_queues()
    with suppress(UnknownOperation):
        state.apply(body)
    for offsets in state.offsets.values():
        assert all(offset <= state.next_offset(*queue) for queue, offset in offsets.items())


@given(st.lists(OPS, max_size=12))
def test_a_snapshot_holds_the_whole_state(ops: list[dict[str, Any]]) -> None:
    state = with_queues()
    for op in ops:
        state.apply(pack_op(op))
    data = pack_snapshot(41, 999, state)
    snapshot = unpack_snapshot(data)
    assert (snapshot.applied, snapshot.end_pos) == (41, 999)
    assert snapshot.state == state
    assert pack_snapshot(41, 999, snapshot.state) == data


@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    good = pack_snapshot(41, 999, with_queues())
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        unpack_snapshot(bytes(bad))
    with pytest.raises(CorruptSnapshot):
        unpack_snapshot(good[:at])


def large_state(topics: int, seed: int) -> ReplicatedState:
    """A state that is the same for each seed; only the order of its operations differs."""
    state = ReplicatedState()
    names = [f"topic-{number:05d}" for number in range(topics)]
    random.Random(seed).shuffle(names)
    for name in names:
        state.apply(pack_op(TopicConfig(name, 8, 8, 6).op()))
        state.apply(pack_op(GroupConfig(f"group-{name}").op()))
        for queue in random.Random(seed).sample(range(8), 8):
            bounds = state.bounds(name, queue)
            bounds.next, bounds.first_position = queue * 1000, queue
    for name in names:
        state.apply(pack_op(offsets_op("all", [(name, queue, queue * 1000) for queue in range(8)])))
    return state


def test_a_state_has_the_same_parts_in_whatever_order_it_came_to_be() -> None:
    state, other = large_state(2000, 1), large_state(2000, 2)
    assert list(state.topics) != list(other.topics)
    parts = pack_parts(state)
    assert parts == pack_parts(other)
    assert pack_snapshot(1, 2, state) == pack_snapshot(1, 2, other)
    ends = {name: msgpack.unpackb(data) for name, data in parts.items()}
    assert [row[0] for row in ends["queues"]] == sorted(state.topics)
    assert ends["queues"][0] == ["topic-00000", [[queue, queue * 1000, queue] for queue in range(1, 8)]]
    assert ends["offsets"] == [
        ["all", [[name, queue, queue * 1000] for name in sorted(state.topics) for queue in range(8)]]
    ]
    assert unpack_parts(parts).topics == state.topics


def test_a_large_state_is_packed_in_small_pieces_as_it_was_when_it_was_copied() -> None:
    state = large_state(2000, 1)
    parts, copy = pack_parts(state), state.copy()
    state.bounds("topic-00000", 1).next += 1
    state.apply(pack_op(TopicConfig("another", 1, 1, 6).op()))
    state.apply(pack_op(offsets_op("all", [("topic-00000", 1, 1001)])))
    packed: dict[str, bytes] = {}
    largest = count = 0
    for name, piece in copy.part_pieces():
        packed[name] = packed.get(name, b"") + piece
        largest, count = max(largest, len(piece)), count + 1
    assert packed == parts != pack_parts(state)
    assert largest < 2 * PIECE and count > sum(map(len, parts.values())) / PIECE
    assert max(map(len, copy.own_pieces())) < 2 * PIECE
