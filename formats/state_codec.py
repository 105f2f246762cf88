"""The replicated state as bytes: the parts of a boundary snapshot, and what a broker's own state file holds.

Equal states have equal bytes (safety.md S20): everything is sorted. A large state takes seconds to pack, so a
copy of it is taken first, quickly, and packed in pieces: whoever packs lets others run meanwhile
(`runtime.pieces`).
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from dledger.formats.state import GroupConfig, Malformed, QueueBounds, ReplicatedState, TopicConfig

PIECE = 16 * 1024
"""Bytes after which a piece ends: about half a millisecond of work."""
_RUN = 4096
"""Consumer offsets of one group that are sorted at once."""
_FIELDS = 4
"""Numbers of a queue in a copy: id, next, min, first_position."""

_header = msgpack.Packer()


@dataclass(frozen=True, slots=True)
class StateCopy:
    """The replicated state as it was at one moment."""

    topics: list[TopicConfig]
    groups: list[GroupConfig]
    offsets: dict[str, dict[tuple[str, int], int]]
    queues: dict[str, array[int]]
    topics_version: int
    last_store_time_ms: int
    skipped: int


def copy_state(state: ReplicatedState) -> StateCopy:
    """Quick: well under a microsecond for each queue, less for all else, and nothing of it is sorted."""
    return StateCopy(
        list(state.topics.values()),
        list(state.groups.values()),
        {group: dict(offsets) for group, offsets in state.offsets.items()},
        {
            topic: array(
                "q", [n for queue, b in table.items() for n in (queue, b.next, b.min, b.first_position)]
            )
            for topic, table in state.queues.items()
        },
        state.topics_version,
        state.last_store_time_ms,
        state.skipped,
    )


# Parts of a boundary snapshot


def part_pieces(copy: StateCopy) -> Iterator[tuple[str, bytes]]:
    """(part, next piece of it): what `pack_parts` gives, a little at a time."""
    counters = {
        "last_store_time_ms": copy.last_store_time_ms,
        "skipped": copy.skipped,
        "topics_version": copy.topics_version,
    }
    yield "counters", msgpack.packb(counters)
    parts = {
        "groups": _configs(copy.groups),
        "offsets": _offsets(copy),
        "queues": _ends(copy),
        "topics": _configs(copy.topics),
    }
    for name, pieces in parts.items():
        for piece in pieces:
            yield name, piece


def pack_parts(state: ReplicatedState) -> dict[str, bytes]:
    """The state by part, as a boundary snapshot holds it: equal on all replicas (safety.md S20)."""
    parts: dict[str, bytearray] = {}
    for name, piece in part_pieces(copy_state(state)):
        parts.setdefault(name, bytearray()).extend(piece)
    return {name: bytes(data) for name, data in parts.items()}


def unpack_parts(parts: Mapping[str, bytes]) -> ReplicatedState:
    """Inverse of `pack_parts`: as a log that begins there knows it, so the queues are empty. ValueError."""
    try:
        values = {name: msgpack.unpackb(data, strict_map_key=False) for name, data in parts.items()}
        values.update(values.pop("counters"))
        values["queues"] = [
            [topic, [[queue, following, following, first] for queue, following, first in rows]]
            for topic, rows in values["queues"]
        ]
        return decode_state(values)
    except (Malformed, KeyError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not a state: {error!r}") from error


def queue_ends(parts: Mapping[str, bytes]) -> dict[tuple[str, int], int]:
    """(topic, queue id) -> next offset, from the parts of a snapshot; ValueError."""
    return {
        (topic, queue_id): bounds.next
        for topic, queues in unpack_parts(parts).queues.items()
        for queue_id, bounds in queues.items()
    }


# The state as one value


def state_pieces(copy: StateCopy) -> Iterator[bytes]:
    """All of it as a msgpack map, for `decode_state`; a piece at a time."""
    values: dict[str, Iterable[bytes]] = {
        "groups": _configs(copy.groups),
        "last_store_time_ms": [msgpack.packb(copy.last_store_time_ms)],
        "offsets": _offsets(copy),
        "queues": _bounds(copy),
        "skipped": [msgpack.packb(copy.skipped)],
        "topics": _configs(copy.topics),
        "topics_version": [msgpack.packb(copy.topics_version)],
    }
    yield _header.pack_map_header(len(values))
    for name, pieces in values.items():
        yield msgpack.packb(name)
        yield from pieces


def decode_state(value: Mapping[str, Any]) -> ReplicatedState:
    """Inverse of `state_pieces`, unpacked; ValueError, KeyError or TypeError when it is none."""
    state = ReplicatedState()
    for op in value["topics"]:
        config = TopicConfig.from_op(op)
        state.topics[config.name] = config
    for op in value["groups"]:
        group = GroupConfig.from_op(op)
        state.groups[group.name] = group
    for name, rows in value["offsets"]:
        state.offsets[name] = {(topic, queue): at for topic, queue, at in rows}
    for topic, rows in value["queues"]:
        state.queues[topic] = {queue: QueueBounds(*bounds) for queue, *bounds in rows}
    state.topics_version = int(value["topics_version"])
    state.last_store_time_ms = int(value["last_store_time_ms"])
    state.skipped = int(value["skipped"])
    return state


# Pieces


def _configs(configs: Sequence[TopicConfig | GroupConfig]) -> Iterator[bytes]:
    ordered = sorted(configs, key=lambda config: config.name)
    return _rows(len(ordered), (config.op() for config in ordered))


def _ends(copy: StateCopy) -> Iterator[bytes]:
    """What a log that begins here has to know of its queues."""
    names = [topic for topic in sorted(copy.queues) if any(copy.queues[topic][1::_FIELDS])]
    return _rows(
        len(names),
        (
            (topic, [(queue, end, first) for queue, end, _, first in _quads(copy.queues[topic]) if end])
            for topic in names
        ),
    )


def _bounds(copy: StateCopy) -> Iterator[bytes]:
    names = sorted(copy.queues)
    return _rows(len(names), ((topic, _quads(copy.queues[topic])) for topic in names))


def _quads(numbers: array[int]) -> list[tuple[int, ...]]:
    return sorted(zip(*(numbers[place::_FIELDS] for place in range(_FIELDS)), strict=True))


def _offsets(copy: StateCopy) -> Iterator[bytes]:
    yield _header.pack_array_header(len(copy.offsets))
    for group in sorted(copy.offsets):
        rows = list(copy.offsets[group].items())
        runs: list[list[tuple[tuple[str, int], int]]] = []
        for at in range(0, len(rows), _RUN):
            runs.append(sorted(rows[at : at + _RUN]))
            if len(rows) > _RUN:
                yield b""  # nothing yet, but it took as long as a piece
        yield _header.pack_array_header(2) + msgpack.packb(group)
        yield from _rows(len(rows), ((topic, queue, at) for (topic, queue), at in heapq.merge(*runs)))


def _rows(count: int, rows: Iterable[object]) -> Iterator[bytes]:
    """An array of so many values."""
    yield _header.pack_array_header(count)
    piece = bytearray()
    for row in rows:
        piece += msgpack.packb(row)
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
