"""What the state will be when everything that a leader appended is applied. For one leadership (rule 6).

A leader decides by what it appended, not only by what is applied: two creations of one topic in a row are one
creation and one change. `Pending` plays each appended operation on a layer above the applied tables; what is
applied meanwhile falls out of the layer. Nothing here is kept when leadership ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any, cast

from dledger.formats.state.deletions import forgotten_by
from dledger.formats.state.machine import ReplicatedState
from dledger.formats.state.table import SKIPPED, Declared, DeclaredTable, K, Op, R, named

_GONE = object()


class Pending:
    """Tables of a state with what is appended but not applied."""

    def __init__(self, state: ReplicatedState) -> None:
        self._state = state
        self._by_op: dict[str, Declared[Any, Any]] = {
            op: source for source in state.sources if isinstance(source, Declared) for op in source.operations
        }
        self._tables: dict[str, DeclaredTable[Any, Any]] = {}

    def __getitem__(self, declared: Declared[K, R]) -> DeclaredTable[K, R]:
        """A declared table, to be read."""
        table = self._tables.get(declared.name)
        if table is None:
            layer: Layer[K, R] = Layer(self._state[declared].rows)
            table = self._tables[declared.name] = DeclaredTable(declared, layer)
        return table

    def at_most(self, declared: Declared[K, R]) -> int:
        """No fewer rows than the table will have, in constant time: what is changed counts as added."""
        return cast("Layer[K, R]", self[declared].rows).at_most

    def appended(self, index: int, op: Op) -> None:
        """Entry `index` holds this operation. Of tables with containers of their own nothing is noted."""
        declared = self._by_op.get(op["op"])
        if declared is None:
            return
        table = self[declared]
        cast("Layer[Any, Any]", table.rows).index = index
        with suppress(*SKIPPED):  # it is in the log, and will be skipped there as well
            table.apply(op, self._state)
            gone = forgotten_by(op)
            if gone is not None:
                self._forget(index, *gone)

    def keys_of(self, declared: Declared[K, R], kind: str, name: str) -> list[K]:
        """Keys of the rows that are a part of this topic or group."""
        layer = cast("Layer[K, R]", self[declared].rows)
        place = declared.key.index(declared.of[kind])
        keys = dict.fromkeys(self._state[declared].keys_of(kind, name))
        keys.update(dict.fromkeys(key for key in layer.changed if named(key, place) == name))
        return [key for key in keys if key in layer]

    def _forget(self, index: int, kind: str, name: str) -> None:
        for source in self._state.sources:
            if isinstance(source, Declared) and kind in source.of:
                table = self[source]
                cast("Layer[Any, Any]", table.rows).index = index
                for key in self.keys_of(source, kind, name):
                    table.discard(key)

    def applied(self, index: int) -> None:
        """The state holds everything up to this entry."""
        for table in self._tables.values():
            cast("Layer[Any, Any]", table.rows).settle(index)


class Layer(MutableMapping[K, R]):
    """Rows above those of a table: what differs, until it is applied there."""

    def __init__(self, below: MutableMapping[K, R]) -> None:
        self._below = below
        self._changed: dict[K, object] = {}
        self._latest: dict[K, int] = {}
        """Index of the entry that changed a key last."""
        self._order: deque[tuple[int, K]] = deque()
        self.index = -1
        """Of the entry that is played now."""

    def settle(self, index: int) -> None:
        """Forget changes by entries up to this one: they are below."""
        order = self._order
        while order and order[0][0] <= index:
            at, key = order.popleft()
            if self._latest.get(key) == at:
                del self._latest[key], self._changed[key]

    @property
    def changed(self) -> Iterable[K]:
        """Keys of what differs from the rows below."""
        return self._changed

    @property
    def at_most(self) -> int:
        """No fewer than there are."""
        return len(self._below) + len(self._changed)

    def _change(self, key: K, value: object) -> None:
        self._changed[key] = value
        self._latest[key] = self.index
        self._order.append((self.index, key))

    def __getitem__(self, key: K) -> R:
        value = self._changed.get(key, self)
        if value is self:
            return self._below[key]
        if value is _GONE:
            raise KeyError(key)
        return cast(R, value)

    def __setitem__(self, key: K, row: R) -> None:
        self._change(key, row)

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._change(key, _GONE)

    def __contains__(self, key: object) -> bool:
        value = self._changed.get(cast(K, key), self)
        return key in self._below if value is self else value is not _GONE

    def __iter__(self) -> Iterator[K]:
        for key in self._below:
            if self._changed.get(key) is not _GONE:
                yield key
        for key, value in self._changed.items():
            if value is not _GONE and key not in self._below:
                yield key

    def __len__(self) -> int:
        """In time of what is pending, not of the table."""
        count = len(self._below)
        for key, value in self._changed.items():
            count += (value is not _GONE) - (key in self._below)
        return count
