"""The state as it will be when everything that a leader appended is applied. It belongs to one leadership
(architecture rule 6).

A leader decides by what it appended, not only by what is applied. For example, if two requests in a row
create the same topic, the first is a creation and the second a change. `Pending` applies each appended
operation to a layer above the applied tables. When the state has applied it, it leaves the layer. When the
leadership ends, all layers are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableMapping
from contextlib import suppress
from typing import Any, cast

from dledger.formats.state.deletions import forgotten_by
from dledger.formats.state.machine import ReplicatedState
from dledger.formats.state.table import SKIPPED, Declared, DeclaredTable, K, Op, R, named

_GONE = object()


class Pending:
    """Tables of a state as they will be with the operations that are appended but not yet applied."""

    def __init__(self, state: ReplicatedState) -> None:
        self._state = state
        self._by_op: dict[str, Declared[Any, Any]] = {
            op: source for source in state.sources if isinstance(source, Declared) for op in source.operations
        }
        self._tables: dict[str, DeclaredTable[Any, Any]] = {}

    def __getitem__(self, declared: Declared[K, R]) -> DeclaredTable[K, R]:
        """Return the table of this declaration; read only."""
        table = self._tables.get(declared.name)
        if table is None:
            below = self._state[declared]
            layer: Layer[K, R] = Layer(below.rows, below.count_of)
            table = self._tables[declared.name] = DeclaredTable(declared, layer)
        return table

    def at_most(self, declared: Declared[K, R]) -> int:
        """An upper bound of the number of rows, in constant time. Every changed row counts as added."""
        return cast("Layer[K, R]", self[declared].rows).at_most

    def appended(self, index: int, op: Op) -> None:
        """Note that entry `index` holds this operation. Operations of tables that are not declared
        (`registry.Compact`) are ignored."""
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
        """Keys of the rows that belong to this topic or group."""
        layer = cast("Layer[K, R]", self[declared].rows)
        place = declared.key.index(declared.of[kind])
        keys = self._state[declared].keys_of(kind, name)
        if layer.forgets:
            keys = [key for key in keys if key in layer]
        changed = layer.changed
        if not changed:
            return keys
        found = [key for key in keys if key not in changed]
        return found + [key for key in changed if key in layer and named(key, place) == name]

    def _forget(self, index: int, kind: str, name: str) -> None:
        for source in self._state.sources:
            if isinstance(source, Declared) and kind in source.of:
                layer = cast("Layer[Any, Any]", self[source].rows)
                layer.index = index
                layer.forget(kind, source.key.index(source.of[kind]), name)

    def applied(self, index: int) -> None:
        """Note that the state now contains every entry up to this one."""
        for table in self._tables.values():
            cast("Layer[Any, Any]", table.rows).settle(index)


class Layer(MutableMapping[K, R]):
    """The rows of a table together with changes that are not applied to the table yet. It stores only the
    changes."""

    def __init__(self, below: MutableMapping[K, R], count_of: Callable[[str, str], int]) -> None:
        """Make a layer without changes. `count_of` returns how many rows of the table below belong to a topic
        or group (kind, name)."""
        self._below = below
        self._count_of = count_of
        self._forgotten: list[tuple[int, str, int, str]] = []
        """Pending deletions: (index of the entry, kind, place of the name in a key, name). Rows below that
        belong to the name count as deleted."""
        self._changed: dict[K, object] = {}
        self._latest: dict[K, int] = {}
        """Index of the last entry that changed each key."""
        self._order: deque[tuple[int, K]] = deque()
        self.index = -1
        """Index of the entry that is being applied to the layer."""

    def settle(self, index: int) -> None:
        """Drop the changes by entries up to this one, because the rows below now have them."""
        if self._forgotten:
            self._forgotten = [one for one in self._forgotten if one[0] > index]
        order = self._order
        while order and order[0][0] <= index:
            at, key = order.popleft()
            if self._latest.get(key) == at:
                del self._latest[key], self._changed[key]

    def forget(self, kind: str, place: int, name: str) -> None:
        """Delete the rows of a topic or group. The time needed depends on the number of pending changes, not
        on the size of the table."""
        for key in [key for key, row in self._changed.items() if row is not _GONE]:
            if named(key, place) == name:
                self._change(key, _GONE)
        self._forgotten.append((self.index, kind, place, name))

    @property
    def changed(self) -> Collection[K]:
        """Keys of rows with a pending change of their own. Rows below that a pending deletion of a topic or
        group removes are not among them."""
        return self._changed.keys()

    @property
    def forgets(self) -> bool:
        """Whether a deletion of a topic or group is pending."""
        return bool(self._forgotten)

    def _below_has(self, key: object) -> bool:
        if key not in self._below:
            return False
        return not any(named(key, place) == name for _, _, place, name in self._forgotten)

    @property
    def at_most(self) -> int:
        """An upper bound of the number of rows."""
        return len(self._below) + len(self._changed)

    def _change(self, key: K, value: object) -> None:
        self._changed[key] = value
        self._latest[key] = self.index
        self._order.append((self.index, key))

    def __getitem__(self, key: K) -> R:
        value = self._changed.get(key, self)
        if value is self:
            if self._forgotten and not self._below_has(key):
                raise KeyError(key)
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
        return self._below_has(key) if value is self else value is not _GONE

    def __iter__(self) -> Iterator[K]:
        for key in self._below:
            if self._changed.get(key) is not _GONE and (not self._forgotten or key in self):
                yield key
        for key, value in self._changed.items():
            if value is not _GONE and key not in self._below:
                yield key

    def __len__(self) -> int:
        """Number of rows. The time needed depends on the number of pending changes. While several deletions
        are pending, it depends on the size of the table."""
        if len(self._forgotten) > 1:
            return sum(1 for _ in self)
        count = len(self._below)
        for _, kind, _, name in self._forgotten:
            count -= self._count_of(kind, name)
        for key, value in self._changed.items():
            count += (value is not _GONE) - self._below_has(key)
        return count
