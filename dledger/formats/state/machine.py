"""Replicated state of a broker group: a pure function of the committed log (architecture rule 1).

`ReplicatedState.apply` never fails and reads no clock (safety.md S13). A malformed operation changes nothing,
is counted, and is skipped in the same way on every replica. Operations are the msgpack bodies of SYSTEM
entries. `op` names them, and each belongs to one table (`registry`):

| op       | fields                                                       | effect                       |
|----------|--------------------------------------------------------------|------------------------------|
| topic    | name read write perm order flags attributes                  | create or replace a topic    |
| group    | name enable broadcast retry_queues retry_max order flags     | create or replace a group    |
| offsets  | group, offsets = [[topic, queue, offset], ...]               | raise consumer offsets (S28) |
| reset    | those of `offsets`                                           | set offsets, also lower them |

For an operation that this program does not know, `apply` raises UnknownOperation and the program ends. A
newer program wrote that operation, and without its effect this state would differ from that of other replicas
for ever. An unknown part of a snapshot is kept byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, cast

import msgpack

from dledger.formats.state.deletions import forgotten_by
from dledger.formats.state.groups import GROUPS, GroupConfig
from dledger.formats.state.offsets import OffsetTable
from dledger.formats.state.queues import QueueBounds, QueueEnds
from dledger.formats.state.registry import OFFSETS, QUEUES, TABLES
from dledger.formats.state.table import (
    SKIPPED,
    Declared,
    DeclaredTable,
    K,
    Malformed,
    Op,
    R,
    Source,
    StateRow,
    Table,
    TableCopy,
)
from dledger.formats.state.topics import TOPICS, TopicConfig
from dledger.formats.state.versions import VERSIONS

COUNTERS = "counters"
"""Part of a snapshot for values that belong to no table."""
_ALWAYS = 1
"""State version of the first tables. They are written even when they are empty, because programs of that time
need each part."""
_OTHERS = "tables"
"""Key in the state file for the tables of later versions."""
_packer = msgpack.Packer()


class UnknownOperation(Exception):
    """Raised for an operation that a newer program wrote. The state cannot be known without it. `op` is its
    name."""

    def __init__(self, op: str) -> None:
        super().__init__(f"this version of the program does not know the operation {op!r}")
        self.op = op


def pack_op(op: Op) -> bytes:
    """Encode an operation as the canonical body of a SYSTEM entry: msgpack, keys sorted, no floats (safety.md
    S10)."""
    packed: bytes = msgpack.packb({key: op[key] for key in sorted(op)}, use_bin_type=True)
    return packed


class ReplicatedState:
    """Everything that must survive a failover, except messages. Operations change it only by `apply`.
    Messages change the bounds of queues and the store time."""

    def __init__(self, tables: Sequence[Source] = TABLES) -> None:
        self.sources: tuple[Source, ...] = tuple(tables)
        self._tables: dict[str, Table] = {source.name: source.make() for source in tables}
        self._by_op = {op: table for table in self._tables.values() for op in table.operations}
        self._queues = cast(QueueEnds, self._tables[QUEUES.name])
        self.last_store_time_ms: int = 0
        """Store time in ms of the newest message applied (safety.md S15)."""
        self.skipped: int = 0
        """Number of malformed operations, which were skipped."""
        self.unknown: dict[str, bytes] = {}
        """Parts of a loaded snapshot that this program does not know. They are kept unchanged."""

    def __getitem__(self, declared: Declared[K, R]) -> DeclaredTable[K, R]:
        """Return the table of this declaration."""
        return cast("DeclaredTable[K, R]", self._tables[declared.name])

    def __eq__(self, other: object) -> bool:
        """Whether two states are equal in everything, including the data that only this replica has."""
        if not isinstance(other, ReplicatedState):
            return NotImplemented
        return b"".join(self.copy().own_pieces()) == b"".join(other.copy().own_pieces())

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # it changes

    def apply(self, body: bytes | memoryview) -> str | None:
        """Apply the body of one SYSTEM entry. Return the name of the operation, None if it was skipped.

        Raises UnknownOperation for an operation of a newer program.
        """
        try:
            op = msgpack.unpackb(body, strict_map_key=False)
            name = op["op"]
            table = self._by_op.get(name)
            if table is not None:
                table.apply(op, self)
                gone = forgotten_by(op)
                if gone is not None:
                    self._forget(*gone)
                return str(name)
        except (*SKIPPED, msgpack.UnpackException):
            table, name = None, None  # never fails, by design (S13): every table checks before it changes
        if isinstance(name, str):
            raise UnknownOperation(name)
        self.skipped += 1
        return None

    def forget_topic(self, name: str) -> None:
        """Remove everything that belongs to a topic, as its deletion does. For readers of a log, who know of
        a later deletion."""
        self._forget("topic", name)

    def _forget(self, kind: str, name: str) -> None:
        for table in self._tables.values():
            table.forget(kind, name)

    @staticmethod
    def read(body: bytes) -> Op | None:
        """Decode the operation of a SYSTEM entry; None if the body holds no operation."""
        try:
            op = msgpack.unpackb(body, strict_map_key=False)
        except (ValueError, msgpack.UnpackException):
            return None
        return op if isinstance(op, dict) and isinstance(op.get("op"), str) else None

    def since(self, op: str) -> int:
        """State version of the programs that know this operation. Raises KeyError for an unknown
        operation."""
        return self._by_op[op].since

    def holds(self, op: str) -> bool:
        """Whether the state already has something of this operation's version or a later one: a row in a
        table of that version, or a note of that version (`versions`). Then every reader of this log must know
        the version already."""
        since = self.since(op)
        notes = self._tables.get(VERSIONS.name)
        if notes is not None and max(self[VERSIONS].rows, default=0) >= since:
            return True
        return any(table.since >= since and not table.empty for table in self._tables.values())

    # -- views ----------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """Topics by name."""
        return self[TOPICS].rows

    @property
    def topics_version(self) -> int:
        """Number of changes of `topics` (DataVersion.counter)."""
        return self[TOPICS].version

    @property
    def groups(self) -> Mapping[str, GroupConfig]:
        """Consumer groups by name."""
        return self[GROUPS].rows

    @property
    def offsets(self) -> dict[str, dict[tuple[str, int], int]]:
        """Maps group -> (topic, queue id) -> next offset to consume."""
        return cast(OffsetTable, self._tables[OFFSETS.name]).rows

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets in a topic."""
        return cast(OffsetTable, self._tables[OFFSETS.name]).groups_of(topic)

    def topics_of(self, group: str) -> list[str]:
        """Topics in which a group has offsets."""
        return cast(OffsetTable, self._tables[OFFSETS.name]).topics_of(group)

    @property
    def queues(self) -> dict[str, dict[int, QueueBounds]]:
        """Maps topic -> queue id -> bounds."""
        return self._queues.rows

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Bounds of a queue, created on first use."""
        return self._queues.bounds(topic, queue_id)

    def touch(self, topic: str) -> None:
        """Note that bounds of queues of this topic were changed (`QueueEnds.touch`)."""
        self._queues.touch(topic)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the next message of a queue; 0 for a queue without messages."""
        bounds = self._queues.rows.get(topic, {}).get(queue_id)
        return 0 if bounds is None else bounds.next

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Next offset to consume; None if the group never reported an offset."""
        return self.offsets.get(group, {}).get((topic, queue_id))

    def rows_of_view(self) -> Iterator[StateRow]:
        """Rows of all tables, for views and tools."""
        return chain.from_iterable(table.rows_of_view() for table in self._tables.values())

    # -- snapshots ------------------------------------------------------------------------------------

    def copy(self) -> StateCopy:
        """Copy the state as it is now. Fast, because nothing is sorted."""
        written = [one for one in self._tables.values() if one.since <= _ALWAYS or not one.empty]
        return StateCopy(
            {table.name: table.copy() for table in sorted(written, key=lambda table: table.name)},
            frozenset(table.name for table in written if table.since > _ALWAYS),
            self._counters(),
            dict(self.unknown),
        )

    def _counters(self) -> dict[str, int]:
        counters = {"last_store_time_ms": self.last_store_time_ms, "skipped": self.skipped}
        for table in self._versioned():
            if table.version or table.since <= _ALWAYS:
                counters[f"{table.name}_version"] = table.version
        return {name: counters[name] for name in sorted(counters)}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        self.last_store_time_ms = int(counters.get("last_store_time_ms", 0))
        self.skipped = int(counters.get("skipped", 0))
        for table in self._versioned():
            table.version = int(counters.get(f"{table.name}_version", 0))

    def _versioned(self) -> list[DeclaredTable[Any, Any]]:
        tables = self._tables.values()
        return [one for one in tables if isinstance(one, DeclaredTable) and one.declaration.versioned]

    def load_parts(self, parts: Mapping[str, bytes]) -> None:
        """Load the state of a boundary snapshot into a new state. A missing part counts as empty, an unknown
        part is kept.

        Raises ValueError if a part is invalid; then the state must not be used.
        """
        try:
            for name, table in self._tables.items():
                if name in parts:
                    table.load(msgpack.unpackb(parts[name], strict_map_key=False))
            self._set_counters(msgpack.unpackb(parts.get(COUNTERS, b"\x80")))
        except (Malformed, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise ValueError(f"not a state: {error!r}") from error
        self.unknown = {name: parts[name] for name in sorted(parts.keys() - self._tables.keys() - {COUNTERS})}

    def load_own(self, value: Mapping[str, Any]) -> None:
        """Inverse of `StateCopy.own_pieces`, for the unpacked value. Raises ValueError, KeyError or TypeError
        for an invalid value."""
        others = dict(value.get(_OTHERS, {}))
        for name, table in self._tables.items():
            found = value[name] if table.since <= _ALWAYS else others.pop(name, None)
            if found is not None:
                table.load_own(found)
        self._set_counters(value)
        self.unknown = {name: msgpack.packb(others[name]) for name in sorted(others)}


@dataclass(frozen=True)
class StateCopy:
    """The replicated state as it was at one moment."""

    tables: Mapping[str, TableCopy]
    later: frozenset[str]
    """Names of the tables whose version is later than 1."""
    counters: Mapping[str, int]
    unknown: Mapping[str, bytes]

    def part_pieces(self) -> Iterator[tuple[str, bytes]]:
        """Yield pairs (name of the part, next piece of its bytes) for all parts of a boundary snapshot."""
        yield COUNTERS, msgpack.packb(self.counters)
        for name in sorted(self.tables.keys() | self.unknown.keys()):
            if name in self.unknown:
                yield name, self.unknown[name]
            else:
                for piece in self.tables[name].pieces():
                    yield name, piece

    def own_pieces(self) -> Iterator[bytes]:
        """Yield the whole state as one msgpack map, one piece at a time, for `ReplicatedState.load_own`."""
        others = sorted(self.later | self.unknown.keys())
        keys = {*self.counters, *(self.tables.keys() - self.later), *((_OTHERS,) if others else ())}
        yield _packer.pack_map_header(len(keys))
        for key in sorted(keys):
            yield msgpack.packb(key)
            if key in self.counters:
                yield msgpack.packb(self.counters[key])
            elif key in self.tables:
                yield from self.tables[key].own_pieces()
            else:
                yield from self._others(others)

    def _others(self, names: list[str]) -> Iterator[bytes]:
        yield _packer.pack_map_header(len(names))
        for name in names:
            yield msgpack.packb(name)
            if name in self.unknown:
                yield self.unknown[name]
            else:
                yield from self.tables[name].own_pieces()


def pack_parts(state: ReplicatedState) -> dict[str, bytes]:
    """Pack the state into the parts of a boundary snapshot. They are equal on all replicas (safety.md
    S20)."""
    parts: dict[str, bytearray] = {}
    for name, piece in state.copy().part_pieces():
        parts.setdefault(name, bytearray()).extend(piece)
    return {name: bytes(data) for name, data in parts.items()}


def unpack_parts(parts: Mapping[str, bytes], tables: Sequence[Source] = TABLES) -> ReplicatedState:
    """Inverse of `pack_parts`. The queues are empty, because the log begins at the snapshot. Raises
    ValueError if a part is invalid."""
    state = ReplicatedState(tables)
    state.load_parts(parts)
    return state


def holds_state(parts: Mapping[str, bytes]) -> bool:
    """Whether these are the parts of a broker's snapshot. Other kinds of hosts have other parts."""
    return COUNTERS in parts and TOPICS.name in parts


def queue_ends(parts: Mapping[str, bytes]) -> dict[tuple[str, int], tuple[int, int]]:
    """Read from the parts of a snapshot a map of (topic, queue id) to (next offset, first position). Raises
    ValueError if the part is invalid."""
    ends = QueueEnds()
    try:
        ends.load(msgpack.unpackb(parts.get(QUEUES.name, b"\x90"), strict_map_key=False))
    except (TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not the queues of a state: {error!r}") from error
    return {
        (topic, queue): (one.next, one.first_position)
        for topic, queues in ends.rows.items()
        for queue, one in queues.items()
    }
