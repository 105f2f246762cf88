"""What every table of the replicated state has in common, and the kind of table that is only declared.

A table is a part of the state: rows, the operations that change them, and the bytes that hold them in a
snapshot. Most are `Declared`: a row type, its key, and the names of the operations that put and remove a row.
What else there is follows from that, in one place each: replay, snapshots, the view of what is pending on a
leader, audit, Spark's view.

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
"""Queues of one topic, reading or writing: a bound on what one operation can make us hold."""
MAX_INT = 0x7FFFFFFF
"""Largest flag word or retry count: a signed 32-bit number, as Java's."""
MAX_NAME = 255
"""Characters of a topic or group name."""
MAX_OFFSET = 1 << 62
"""Of a queue, or in the log."""
PIECE = 16 * 1024
"""Bytes after which a piece of a packed table ends: about half a millisecond of work."""

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
"""Rows that are sorted at once."""
_packer = msgpack.Packer()


SKIPPED = (ValueError, TypeError, KeyError, AttributeError)
"""What an operation raises that changes nothing, and is skipped alike everywhere (safety.md S13)."""


class Malformed(ValueError):
    """An operation that every replica skips (safety.md S13). Nothing was changed."""


S = TypeVar("S", bound=msgspec.Struct)


def read_fields(op: Op, kind: type[S], fields: Iterable[str] | None = None) -> S:
    """Read the fields of an operation into a struct of this kind. Fields that the struct does not know are
    left out. `fields`: their names as they are written, where the struct renames some. Malformed."""
    names = kind.__struct_fields__ if fields is None else fields
    known = {name: op[name] for name in names if name in op}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise Malformed(f"{op.get('op')}: {error}") from error


class Row(msgspec.Struct, frozen=True):
    """A row of a declared table. Bounds of its fields are checked where an operation is read, never later."""

    operation: ClassVar[str]
    """Name of the operation that puts it; also what it is called in views."""
    secret: ClassVar[frozenset[str]] = frozenset()
    """Fields that views leave out."""

    def op(self) -> dict[str, Any]:
        """The operation that creates or replaces this row; so it stands in snapshots, too."""
        fields = {"op": self.operation, **msgspec.to_builtins(self)}
        return {name: fields[name] for name in sorted(fields)}


class StateRow(NamedTuple):
    """One thing of the state, for views and tools. What does not apply is None."""

    kind: str
    name: str
    topic: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    data: Op | None = None
    """Further fields."""


class TableCopy(Protocol):
    """A table as it was at one moment."""

    def pieces(self) -> Iterator[bytes]:
        """The part of a snapshot: one canonical msgpack value, a piece at a time. Equal tables, equal
        bytes."""

    def own_pieces(self) -> Iterator[bytes]:
        """The same for this replica's own state file, with what only it knows."""


class Source(Protocol):
    """What a table is made from: an entry of the registry."""

    @property
    def name(self) -> str:
        """Of the part in snapshots."""

    @property
    def since(self) -> int:
        """State version of the programs that know it (`registry.state_version`)."""

    def make(self) -> Table:
        """An empty one."""


class Table(Protocol):
    """A part of the replicated state. Changed by operations alone, alike on every replica."""

    @property
    def name(self) -> str:
        """Of the part in snapshots."""

    @property
    def since(self) -> int:
        """State version of the programs that know it."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations that change it."""

    @property
    def empty(self) -> bool:
        """Nothing is in it. An empty part is not written, but for those of version 1."""

    def apply(self, op: Op, state: ReplicatedState) -> None:
        """One operation. Malformed before anything is changed."""

    def load(self, value: Any) -> None:
        """Inverse of `TableCopy.pieces`, unpacked; ValueError, KeyError or TypeError when it is none."""

    def load_own(self, value: Any) -> None:
        """Inverse of `TableCopy.own_pieces`."""

    def forget(self, kind: str, name: str) -> None:
        """The topic, the group or the user (`kind`) of this name is deleted: nothing of it stays. Of kind
        "config" a group's configuration goes, and nothing else."""

    def copy(self) -> TableCopy:
        """Quick, and nothing of it is sorted."""

    def rows_of_view(self) -> Iterator[StateRow]:
        """In order of their keys."""


Operation = Callable[["DeclaredTable[K, R]", Op, "ReplicatedState"], None]
"""A further operation of a declared table. Raises Malformed before it changes anything."""


@dataclass(frozen=True, eq=False)
class Declared(Generic[K, R]):
    """A table that is only declared.

    `key`: the fields of a row that are its key; with one, the key is its value, else the tuple of them.
    `remove`: name of the operation that removes a row; its fields are those of the key. `more`: further
    operations. `versioned`: the number of changes is part of the state (DataVersion.counter). `topic_field`,
    `queue_field`: fields that have columns of their own in views, where a row has them. `of`: fields whose
    topic, group or user a row is a part of, kind (`Table.forget`) -> field of the key: it goes when that
    goes.
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
        """An empty one."""
        return DeclaredTable(self)

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of all of them."""
        return (self.row.operation, *((self.remove,) if self.remove else ()), *self.more)

    # Looked up once: msgspec evaluates the annotations each time, and there are many states.
    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of a row's fields, as they are written."""
        return tuple(one.encode_name for one in msgspec.structs.fields(self.row))

    @cached_property
    def key_type(self) -> type[msgspec.Struct] | None:
        """What an operation that removes a row says; None: there is none."""
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
    """Rows by their key. `rows` may be a view of others' (`pending`)."""

    def __init__(self, declaration: Declared[K, R], rows: MutableMapping[K, R] | None = None) -> None:
        self.declaration = declaration
        self.name: str = declaration.name
        self.since: int = declaration.since
        self.operations: tuple[str, ...] = declaration.operations
        self.rows: MutableMapping[K, R] = {} if rows is None else rows
        self.version: int = 0
        """Changes so far."""
        self._fields = declaration.fields
        self._key_type = declaration.key_type
        of = declaration.of if rows is None else {}  # others' rows are found by their owner
        self._of: dict[str, dict[str, dict[K, None]]] = {kind: {} for kind in of}
        """Kind -> name -> keys of the rows that go with it."""
        self._places = {kind: declaration.key.index(name) for kind, name in of.items()}
        """Place of the name in the key."""

    @property
    def empty(self) -> bool:
        """No row."""
        return not self.rows

    def put(self, row: R) -> None:
        """Create or replace a row. One that is there already is no change."""
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
        """Keys of the rows that are a part of this topic or group."""
        return list(self._of.get(kind, {}).get(name, ()))

    def forget(self, kind: str, name: str) -> None:
        """See `Table`. There may be 50,000 rows: not one after the other by `discard`."""
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
        """Rows that are gone are no part of their other owners; those of one mostly follow each other."""
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
        """How many rows are a part of this topic or group."""
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
    """The rows of a declared table."""

    declaration: Declared[K, R]
    rows: list[R]

    def pieces(self) -> Iterator[bytes]:
        """See `TableCopy`: an array of the operations that put the rows, in order of their keys."""
        key: Callable[[R], Any] = self.declaration.key_of
        runs: list[list[R]] = []
        for at in range(0, len(self.rows), _RUN):
            runs.append(sorted(self.rows[at : at + _RUN], key=key))
            if len(self.rows) > _RUN:
                yield b""  # nothing yet, but it took as long as a piece
        yield from packed_array(len(self.rows), (row.op() for row in heapq.merge(*runs, key=key)))

    own_pieces = pieces


def named(key: object, place: int) -> str:
    """The name in a key."""
    return str(key[place] if isinstance(key, tuple) else key)


def packed_array(count: int, values: Iterable[object]) -> Iterator[bytes]:
    """An array of so many values, a piece at a time."""
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
    """A row with the fields of the key alone: what an operation that removes one says."""
    types = {one.name: one.type for one in msgspec.structs.fields(declaration.row)}
    return msgspec.defstruct(
        f"{declaration.row.__name__}Key", [(name, types[name]) for name in declaration.key], frozen=True
    )
