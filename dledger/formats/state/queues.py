"""Ends of queues (safety.md S14): changed by messages, not by operations. Compact, as there may be
400,000."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger.formats.state.table import Malformed, Op, StateRow, packed_array

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

_FIELDS = 4
"""Numbers of a queue in a copy: id, next, min, first_position."""


@dataclass(slots=True)
class QueueBounds:
    """Offsets of one queue: messages [min, next) exist here. `first_position` is the physical offset of
    message 0 of the queue, -1 before there is one. `min` is this replica's own: it is the `next` of the state
    that was true where the log begins, which each replica's retention decides for itself."""

    next: int = 0
    min: int = 0
    first_position: int = -1


class QueueEnds:
    """topic -> queue id -> bounds.

    Whoever changes bounds says so (`touch`): a copy of the state packs anew what was touched since the last
    one."""

    name = "queues"
    since = 1
    operations: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, QueueBounds]] = {}
        self._packed: dict[str, array[int]] = {}
        """Topics as they were when they were copied last."""
        self._touched: dict[str, None] = {}

    @property
    def empty(self) -> bool:
        """No queue was ever used."""
        return not self.rows

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Bounds of a queue, made on first use. Whoever keeps them calls `touch` with each change."""
        self._touched[topic] = None
        queues = self.rows.setdefault(topic, {})
        bounds = queues.get(queue_id)
        if bounds is None:
            bounds = queues[queue_id] = QueueBounds()
        return bounds

    def touch(self, topic: str) -> None:
        """Bounds of queues of this topic were changed."""
        if topic in self.rows:
            self._touched[topic] = None

    def forget(self, kind: str, name: str) -> None:
        """See `Table`: the next message of the topic is the first of its queue."""
        if kind == "topic":
            self.rows.pop(name, None)
            self._packed.pop(name, None)
            self._touched.pop(name, None)

    def apply(self, op: Op, state: ReplicatedState) -> None:
        """There are no operations."""
        raise Malformed(f"{op['op']}: queues change by messages")

    def load(self, value: Any) -> None:
        """See `Table`: as a log that begins there knows it, so the queues are empty."""
        self.rows = {
            topic: {queue: QueueBounds(following, following, first) for queue, following, first in rows}
            for topic, rows in value
        }
        self._pack_all()

    def load_own(self, value: Any) -> None:
        """See `Table`: with `min`, as it is here."""
        self.rows = {topic: {queue: QueueBounds(*bounds) for queue, *bounds in rows} for topic, rows in value}
        self._pack_all()

    def _pack_all(self) -> None:
        """Where it was loaded, which is in a worker: so that the first copy is quick, too."""
        self._packed = {}
        self._touched = dict.fromkeys(self.rows)
        self.copy()

    def copy(self) -> QueueCopy:
        """See `Table`: well under a microsecond for each queue of a topic that was touched since the last
        copy, and next to nothing for the others."""
        for topic in self._touched:
            self._packed[topic] = array(
                "q",
                [
                    number
                    for queue, one in self.rows[topic].items()
                    for number in (queue, one.next, one.min, one.first_position)
                ],
            )
        self._touched = {}
        return QueueCopy(self._packed.copy())

    def rows_of_view(self) -> Iterator[StateRow]:
        """See `Table`. `offset` is that of the next message."""
        for topic, queues in sorted(self.rows.items()):
            for queue_id, bounds in sorted(queues.items()):
                yield StateRow("queue", topic, topic, queue_id, bounds.next)


@dataclass(frozen=True)
class QueueCopy:
    """Bounds of queues as they were."""

    rows: dict[str, array[int]]

    def pieces(self) -> Iterator[bytes]:
        """See `TableCopy`: `[[topic, [[queue id, next, first position], ...]], ...]`, of queues with a
        message: what a log that begins here has to know of them."""
        names = [topic for topic in sorted(self.rows) if any(self.rows[topic][1::_FIELDS])]
        return packed_array(
            len(names),
            (
                (topic, [(queue, end, first) for queue, end, _, first in _quads(self.rows[topic]) if end])
                for topic in names
            ),
        )

    def own_pieces(self) -> Iterator[bytes]:
        """See `TableCopy`: all queues, with `min`."""
        names = sorted(self.rows)
        return packed_array(len(names), ((topic, _quads(self.rows[topic])) for topic in names))


def _quads(numbers: array[int]) -> list[tuple[int, ...]]:
    return sorted(zip(*(numbers[place::_FIELDS] for place in range(_FIELDS)), strict=True))
