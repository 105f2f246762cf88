"""Consumer offsets (ConsumerOffsetManager). The table has a compact container, as there may be a million
offsets."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from dledger.formats.state.table import (
    MAX_NAME,
    MAX_OFFSET,
    MAX_QUEUES,
    Malformed,
    Op,
    StateRow,
    packed_array,
)

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

OFFSETS_OP, RESET_OP = "offsets", "reset"
_RUN = 4096
"""Largest number of consumer offsets of one group that are sorted in one step."""
_packer = msgpack.Packer()

Queue = tuple[str, int]
"""A queue: topic and queue id."""


def offsets_op(group: str, offsets: Iterable[tuple[str, int, int]], *, reset: bool = False) -> dict[str, Any]:
    """Make the operation that raises offsets of one group, or with `reset` sets them. They are given as
    (topic, queue id, offset)."""
    rows = [list(row) for row in sorted(offsets)]
    return {"group": group, "offsets": rows, "op": RESET_OP if reset else OFFSETS_OP}


class OffsetTable:
    """Maps group -> (topic, queue id) -> next offset to consume. Offsets only increase, except by a reset,
    and never go beyond the end of their queue (safety.md S28)."""

    name = "offsets"
    since = 1
    operations: tuple[str, ...] = (OFFSETS_OP, RESET_OP)

    def __init__(self) -> None:
        self.rows: dict[str, dict[Queue, int]] = {}
        self._copied: set[str] = set()
        """Groups whose offsets are shared with a copy of the state. They are copied before their next
        change."""
        self._groups: dict[str, dict[str, int]] = {}
        """Maps topic -> group with offsets in it -> upper bound (exclusive) of the queue ids of these
        offsets."""

    @property
    def empty(self) -> bool:
        """Whether no group ever reported an offset."""
        return not self.rows

    def apply(self, op: Op, state: ReplicatedState) -> None:
        """See `Table`. An offset beyond the end of its queue is ignored, and without a reset one that is not
        higher than the known one."""
        group = _name(op.get("group"))
        rows = [_row(item) for item in _list(op.get("offsets"))]
        self.rows.setdefault(group, {})
        known = self._own(group)
        reset = op["op"] == RESET_OP
        for topic, queue_id, offset in rows:
            key = (topic, queue_id)
            before = -1 if reset else known.get(key, -1)
            if before < offset <= state.next_offset(topic, queue_id):
                if key not in known:
                    self._has(group, topic, queue_id)
                known[key] = offset

    def _own(self, group: str) -> dict[Queue, int]:
        """Return the offsets of a group for a change. If they are shared with a copy of the state, they are
        copied first."""
        known = self.rows[group]
        if group in self._copied:
            self._copied.discard(group)
            known = self.rows[group] = known.copy()
        return known

    def _has(self, group: str, topic: str, queue_id: int) -> None:
        groups = self._groups.setdefault(topic, {})
        groups[group] = max(groups.get(group, 0), queue_id + 1)

    def forget(self, kind: str, name: str) -> None:
        """See `Table`."""
        if kind == "topic":
            for group, queues in self._groups.pop(name, {}).items():
                known = self._own(group)
                for queue_id in range(queues):
                    known.pop((name, queue_id), None)
        elif kind == "group":
            self._copied.discard(name)
            for topic in dict.fromkeys(topic for topic, _ in self.rows.pop(name, {})):
                groups = self._groups[topic]
                del groups[name]
                if not groups:
                    del self._groups[topic]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets in a topic."""
        return list(self._groups.get(topic, ()))

    def topics_of(self, group: str) -> list[str]:
        """Topics in which a group has offsets."""
        return [topic for topic, groups in self._groups.items() if group in groups]

    def load(self, value: Any) -> None:
        """See `Table`."""
        self.rows = {name: {(topic, queue): at for topic, queue, at in rows} for name, rows in value}
        self._copied = set()
        self._groups = {}
        for group, known in self.rows.items():
            for topic, queue_id in known:
                self._has(group, topic, queue_id)

    load_own = load

    def copy(self) -> OffsetCopy:
        """See `Table`. The copy shares the offsets of each group with the table until they change."""
        self._copied = set(self.rows)
        return OffsetCopy(self.rows.copy())

    def rows_of_view(self) -> Iterator[StateRow]:
        """See `Table`."""
        for name, offsets in sorted(self.rows.items()):
            for (topic, queue_id), offset in sorted(offsets.items()):
                yield StateRow("offset", name, topic, queue_id, offset)


@dataclass(frozen=True)
class OffsetCopy:
    """Consumer offsets at the time of the copy."""

    rows: dict[str, dict[Queue, int]]

    def pieces(self) -> Iterator[bytes]:
        """See `TableCopy`. The value is `[[group, [[topic, queue id, offset], ...]], ...]`."""
        yield _packer.pack_array_header(len(self.rows))
        for group in sorted(self.rows):
            rows = list(self.rows[group].items())
            runs: list[list[tuple[Queue, int]]] = []
            for at in range(0, len(rows), _RUN):
                runs.append(sorted(rows[at : at + _RUN]))
                if len(rows) > _RUN:
                    yield b""  # no bytes yet, but the sorting took as long as a piece
            yield _packer.pack_array_header(2) + msgpack.packb(group)
            yield from packed_array(
                len(rows), ((topic, queue, at) for (topic, queue), at in heapq.merge(*runs))
            )

    own_pieces = pieces


# Checked by hand for speed: an entry may hold a thousand rows, many times a second.


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise Malformed(f"not a name: {value!r}")
    return value


def _number(value: object, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise Malformed(f"not a number from 0 to {limit}: {value!r}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"not a list: {value!r}")
    return value


def _row(value: object) -> tuple[str, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise Malformed(f"not [topic, queue, offset]: {value!r}")
    return (_name(value[0]), _number(value[1], MAX_QUEUES), _number(value[2], MAX_OFFSET))
