"""What all tables of the replicated state have in common, and `Declared`, the kind of table that needs no
code of its own.

A table is a part of the state: rows, the operations that change them, and the bytes that hold them in a
snapshot. Most are `Declared`: a row type, its key, and the names of the operations that put and remove a row.
Everything else follows from that declaration: replay, snapshots, the leader's view of pending operations,
audit, Spark's view.

Rows are immutable, so a copy of a table is a copy of references.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

import msgpack
import msgspec

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

MAX_QUEUES = 1024
"""Largest number of queues of one topic, for reading and for writing. It limits the memory that one operation
can make a broker use."""
MAX_INT = 0x7FFFFFFF
"""Largest flag word or retry count. It is that of a signed 32-bit number, as in Java."""
MAX_NAME = 255
"""Limit, in characters, of the name of a topic or group."""
MAX_OFFSET = 1 << 62
"""Largest offset in a queue or in the log."""
PIECE = 16 * 1024
"""Size, in bytes, from which on a piece of a packed table ends. A piece takes about half a millisecond of
work."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
QueueCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_QUEUES)]
QueueId = Annotated[int, msgspec.Meta(ge=0, le=MAX_QUEUES)]
Int32 = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]

Op = Mapping[str, Any]
"""An operation: the unpacked body of a SYSTEM entry. `op` names it."""
K = TypeVar("K")
R = TypeVar("R", bound="Row")

_RUN = 1024
"""Largest number of rows that are sorted in one step."""
_packer = msgpack.Packer()


SKIPPED = (ValueError, TypeError, KeyError, AttributeError)
"""Errors that make an operation malformed. It changes nothing and is skipped in the same way on every node
(safety.md S13)."""


class Malformed(ValueError):
    """Raised for an operation that every replica skips (safety.md S13). Nothing was changed."""


S = TypeVar("S", bound=msgspec.Struct)


def read_fields(op: Op, kind: type[S], fields: Iterable[str] | None = None) -> S:
    """Read the fields of an operation into a struct of this kind. Raises Malformed if they do not fit. Fields
    that the struct does not know are left out. If the struct renames some fields, `fields` has their names in
    the operation."""
    names = kind.__struct_fields__ if fields is None else fields
    known = {name: op[name] for name in names if name in op}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise Malformed(f"{op.get('op')}: {error}") from error


class Row(msgspec.Struct, frozen=True):
    """A row of a declared table. The bounds of its fields are checked when an operation is read, and never
    later."""

    operation: ClassVar[str]
    """Name of the operation that puts the row; also its name in views."""
    secret: ClassVar[frozenset[str]] = frozenset()
    """Fields that views leave out."""

    def op(self) -> dict[str, Any]:
        """The operation that creates or replaces this row. Snapshots contain this operation, too."""
        fields = {"op": self.operation, **msgspec.to_builtins(self)}
        return {name: fields[name] for name in sorted(fields)}


class StateRow(NamedTuple):
    """One item of the state, for views and tools. Columns that do not apply are None."""

    kind: str
    name: str
    topic: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    data: Op | None = None
    """Further fields of the item."""


class TableCopy(Protocol):
    """A table as it was at one moment."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the table's part of a snapshot, one piece at a time. It is one canonical msgpack value. Equal
        tables have equal bytes."""

    def own_pieces(self) -> Iterator[bytes]:
        """Yield the table's part of this replica's own state file. It also has the data that only this
        replica has."""


class Source(Protocol):
    """An entry of the registry, from which a table is made."""

    @property
    def name(self) -> str:
        """Name of the table's part in snapshots."""

    @property
    def since(self) -> int:
        """State version of the programs that know the table (`registry.state_version`)."""

    def make(self) -> Table:
        """Make an empty table."""


class Table(Protocol):
    """A part of the replicated state. Only operations and messages change it, in the same way on every
    replica."""

    @property
    def name(self) -> str:
        """Name of the table's part in snapshots."""

    @property
    def since(self) -> int:
        """State version of the programs that know the table."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations that change the table."""

    @property
    def empty(self) -> bool:
        """Whether the table has no rows. The part of an empty table is not written, except for tables of
        version 1."""

    def apply(self, op: Op, state: ReplicatedState) -> None:
        """Apply one operation. Raises Malformed before it changes anything."""

    def load(self, value: Any) -> None:
        """Inverse of `TableCopy.pieces`, for the unpacked value. Raises ValueError, KeyError or TypeError for
        an invalid value."""

    def load_own(self, value: Any) -> None:
        """Inverse of `TableCopy.own_pieces`, for the unpacked value."""

    def forget(self, kind: str, name: str) -> None:
        """Remove everything that belongs to a deleted topic, group or user (`kind`) of this name. For kind
        "config" only a group's configuration is removed."""

    def copy(self) -> TableCopy:
        """Copy the table. Fast, because nothing is sorted."""

    def rows_of_view(self) -> Iterator[StateRow]:
        """Yield the rows in the order of their keys."""


Operation = Callable[["DeclaredTable[K, R]", Op, "ReplicatedState"], None]
"""Function for a further operation of a declared table. It raises Malformed before it changes anything."""


@dataclass(frozen=True, eq=False)
class Declared(Generic[K, R]):
    """A table that needs no code of its own; it is described by these fields.

    * `key`: the fields of a row that are its key. If there is one field, the key is its value, else the tuple
      of the values.
    * `remove`: name of the operation that removes a row; its fields are those of the key.
    * `more`: further operations, by name.
    * `versioned`: the number of changes is part of the state (DataVersion.counter).
    * `topic_field`, `queue_field`: fields that have columns of their own in views, if a row has them.
    * `of`: the topic, group or user to which a row belongs. Maps a kind (`Table.forget`) to the field of the
      key that holds the name. The row is removed when that topic, group or user is deleted.
    """

    name: str
    row: type[R]
    key: tuple[str, ...]
    since: int
    remove: str = ""
    more: Mapping[str, Operation[K, R]] = field(default_factory=dict)
    versioned: bool = False
    topic_field: str = "topic"
    queue_field: str = "queue"
    of: Mapping[str, str] = field(default_factory=dict)

    def make(self) -> DeclaredTable[K, R]:
        """Make an empty table."""
        return DeclaredTable(self)

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of all operations of the table."""
        return (self.row.operation, *((self.remove,) if self.remove else ()), *self.more)

    # Looked up once: msgspec evaluates the annotations each time, and there are many states.
    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of a row's fields, as operations have them."""
        return tuple(one.encode_name for one in msgspec.structs.fields(self.row))

    @cached_property
    def key_type(self) -> type[msgspec.Struct] | None:
        """Struct with the fields of the operation that removes a row; None if there is no such operation."""
        return _key_type(self) if self.remove else None

    def key_of(self, row: R) -> K:
        """The key of a row."""
        values = tuple(getattr(row, name) for name in self.key)
        return cast(K, values if len(values) > 1 else values[0])

    def removal(self, key: K) -> dict[str, Any]:
        """The operation that removes the row of this key."""
        values = key if isinstance(key, tuple) else (key,)
        fields = {"op": self.remove, **dict(zip(self.key, values, strict=True))}
        return {name: fields[name] for name in sorted(fields)}


class DeclaredTable(Generic[K, R]):
    """A declared table: its rows by their key. `rows` may be a view of another table's rows (`pending`)."""

    def __init__(self, declaration: Declared[K, R], rows: MutableMapping[K, R] | None = None) -> None:
        self.declaration = declaration
        self.name: str = declaration.name
        self.since: int = declaration.since
        self.operations: tuple[str, ...] = declaration.operations
        self.rows: MutableMapping[K, R] = {} if rows is None else rows
        self.version: int = 0
        """Number of changes so far."""
        self._fields = declaration.fields
        self._key_type = declaration.key_type
        of = declaration.of if rows is None else {}  # rows of another table are looked up there
        self._of: dict[str, dict[str, dict[K, None]]] = {kind: {} for kind in of}
        """Maps kind -> name -> keys of the rows that are removed with the topic, group or user of this
        name."""
        self._places = {kind: declaration.key.index(name) for kind, name in of.items()}
        """Maps kind -> place of the name in the key."""

    @property
    def empty(self) -> bool:
        """Whether the table has no rows."""
        return not self.rows

    def put(self, row: R) -> None:
        """Create or replace a row. Putting an equal row again does not count as a change."""
        key = self.declaration.key_of(row)
        known = self.rows.get(key)
        if known != row:
            self.rows[key] = row
            self.version += 1
            if known is None and self._of:
                self._belongs(key)

    def discard(self, key: K) -> None:
        """Remove the row of a key, if there is one."""
        if key in self.rows:
            del self.rows[key]
            self.version += 1
            for kind, place in self._places.items():
                name = named(key, place)
                keys = self._of[kind].get(name, {})
                keys.pop(key, None)
                if not keys:
                    self._of[kind].pop(name, None)

    def keys_of(self, kind: str, name: str) -> list[K]:
        """Keys of the rows that belong to this topic or group."""
        return list(self._of.get(kind, {}).get(name, ()))

    def forget(self, kind: str, name: str) -> None:
        """See `Table`. There may be 50,000 rows, so they are not removed one by one with `discard`."""
        keys = self._of.get(kind, {}).pop(name, {})
        if not keys:
            return
        self.version += len(keys)
        rows = self.rows
        for key in keys:
            del rows[key]
        for other, place in self._places.items():
            if other != kind:
                self._leave(self._of[other], place, keys)

    def _leave(self, owners: dict[str, dict[K, None]], place: int, keys: dict[K, None]) -> None:
        """Remove deleted rows from the lists of their other owners. Rows of one owner mostly follow each
        other in `keys`."""
        owner = ""
        of_owner: dict[K, None] = {}
        for key in keys:
            found = key[place] if isinstance(key, tuple) else key
            if found != owner:
                owner, of_owner = str(found), owners[str(found)]
            del of_owner[key]
            if not of_owner:  # that was its last
                del owners[owner]

    def count_of(self, kind: str, name: str) -> int:
        """Number of rows that belong to this topic or group."""
        return len(self._of.get(kind, {}).get(name, ()))

    def _belongs(self, key: K) -> None:
        for kind, place in self._places.items():
            self._of[kind].setdefault(named(key, place), {})[key] = None

    def apply(self, op: Op, state: ReplicatedState) -> None:
        """See `Table`."""
        name = op["op"]
        if name == self.declaration.row.operation:
            self.put(self._row(op))
        elif name == self.declaration.remove:
            self.discard(self._key(op))
        else:
            self.declaration.more[name](self, op, state)

    def load(self, value: Any) -> None:
        """See `Table`."""
        rows = map(self._row, value)
        self.rows = {self.declaration.key_of(row): row for row in rows}
        self._of = {kind: {} for kind in self._of}
        if self._of:
            for key in self.rows:
                self._belongs(key)

    load_own = load

    def copy(self) -> DeclaredCopy[K, R]:
        """See `Table`."""
        return DeclaredCopy(self.declaration, list(self.rows.values()))

    def rows_of_view(self) -> Iterator[StateRow]:
        """See `Table`. The name of a row is the first field of its key."""
        declared = self.declaration
        kind, hidden = declared.row.operation, {"op", *declared.row.secret}
        for _, row in sorted(self.rows.items()):
            topic, queue = getattr(row, declared.topic_field, None), getattr(row, declared.queue_field, None)
            data = {name: value for name, value in row.op().items() if name not in hidden}
            yield StateRow(kind, str(getattr(row, declared.key[0])), topic, queue, None, data)

    def _row(self, op: Op) -> R:
        return read_fields(op, self.declaration.row, self._fields)

    def _key(self, op: Op) -> K:
        assert self._key_type is not None
        return self.declaration.key_of(cast(R, read_fields(op, self._key_type, self.declaration.key)))


@dataclass(frozen=True, eq=False)
class DeclaredCopy(Generic[K, R]):
    """The rows of a declared table at the time of the copy."""

    declaration: Declared[K, R]
    rows: list[R]

    def pieces(self) -> Iterator[bytes]:
        """See `TableCopy`. The value is an array of the operations that put the rows, in order of their
        keys."""
        key: Callable[[R], Any] = self.declaration.key_of
        runs: list[list[R]] = []
        for at in range(0, len(self.rows), _RUN):
            runs.append(sorted(self.rows[at : at + _RUN], key=key))
            if len(self.rows) > _RUN:
                yield b""  # no bytes yet, but the sorting took as long as a piece
        yield from packed_array(len(self.rows), (row.op() for row in heapq.merge(*runs, key=key)))

    own_pieces = pieces


def named(key: object, place: int) -> str:
    """The name at a place of a key. A key that is no tuple is the name itself."""
    return str(key[place] if isinstance(key, tuple) else key)


def packed_array(count: int, values: Iterable[object]) -> Iterator[bytes]:
    """Pack an array of `count` values, one piece at a time."""
    yield _packer.pack_array_header(count)
    piece = bytearray()
    for value in values:
        piece += msgpack.packb(value)
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _key_type(declaration: Declared[Any, Any]) -> type[msgspec.Struct]:
    """Make a struct with the fields of the key only, for the operation that removes a row."""
    types = {one.name: one.type for one in msgspec.structs.fields(declaration.row)}
    return msgspec.defstruct(
        f"{declaration.row.__name__}Key", [(name, types[name]) for name in declaration.key], frozen=True
    )
