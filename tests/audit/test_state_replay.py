"""The one replay of the state over windows of a log."""

from __future__ import annotations

import numpy as np
import pytest

from dledger.audit.replay import Entries, Queued, StateReplay
from dledger.formats.entry import Kind
from dledger.formats.state import GroupConfig, ReplicatedState, UnknownOperation, offsets_op, pack_op


def entries(ops: dict[int, bytes], count: int) -> tuple[bytes, Entries]:
    """`count` entries from index 0 on; those of `ops` are system entries, the others messages."""
    data, at, sizes = b"", [], []
    for index in range(count):
        body = ops.get(index, b"")
        at.append(len(data))
        sizes.append(len(body))
        data += body
    kinds = [Kind.SYSTEM if index in ops else Kind.MESSAGE for index in range(count)]
    columns = (list(range(count)), kinds, [1000 + index for index in range(count)], at, sizes)
    return data, Entries(*(np.array(column, np.int64) for column in columns))


def queued(*rows: tuple[int, int, int, int]) -> Queued:
    return Queued(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


KEYS = [("T", 0), ("U", 1)]


def test_operations_see_the_queues_as_they_were_at_their_place() -> None:
    ops = {
        1: pack_op(offsets_op("g", [("T", 0, 1), ("U", 1, 1)])),
        3: pack_op(offsets_op("g", [("U", 1, 1)])),
    }
    data, columns = entries(ops, 5)
    replay = StateReplay(ReplicatedState(), KEYS.__getitem__)
    messages = queued((0, 0, 0, 100), (2, 1, 0, 200), (4, 0, 1, 300))
    seen = [
        (mark, dict(replay.state.offsets["g"])) for mark in replay.add(data, 4, columns, messages, [2, 3])
    ]
    assert seen == [(2, {("T", 0): 1}), (3, {("T", 0): 1, ("U", 1): 1})]
    assert replay.state.next_offset("T", 0) == 2 and replay.state.bounds("U", 1).first_position == 200
    assert replay.state.last_store_time_ms == 1004


def test_what_a_newer_program_wrote_is_told_with_its_place() -> None:
    ops = {1: pack_op(GroupConfig("g").op()), 2: pack_op({"op": "note", "name": "x"})}
    data, columns = entries(ops, 4)
    replay = StateReplay(ReplicatedState(), KEYS.__getitem__)
    with pytest.raises(UnknownOperation, match="'note'"):
        list(replay.add(data, 3, columns, queued((0, 0, 0, 100), (3, 0, 1, 200))))
    assert replay.at == 2 and "g" in replay.state.groups and replay.state.next_offset("T", 0) == 1
