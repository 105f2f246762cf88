"""Bounds of queues (safety.md S14). They are changed by messages, not by operations. The table has a compact
container, as there may be 400,000 queues."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger.formats.state.table import Malformed, Op, StateRow, packed_array

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

_FIELDS = 4
"""Number of values that a copy has for each queue: id, next, min, first_position."""


@dataclass(slots=True)
class QueueBounds:
    """Offsets of one queue. The messages in [min, next) exist here.

    `first_position` is the physical offset of message 0 of the queue, -1 as long as there is none. `min` may
    differ between replicas, because each replica's retention decides where its log begins. `min` is the value
    of `next` at that point of the log.
    """

    next: int = 0
    min: int = 0
    first_position: int = -1


class QueueEnds:
    """The table of queues. Maps topic -> queue id -> bounds.

    Code that changes bounds must call `touch`, because a copy of the state packs only the topics touched
    since the last copy.
    """

    name = "queues"
    since = 1
    operations: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, QueueBounds]] = {}
        self._packed: dict[str, array[int]] = {}
        """Maps topic -> packed bounds of its queues, as of the last copy."""
        self._touched: dict[str, None] = {}

    @property
    def empty(self) -> bool:
        """Whether no queue was ever used."""
        return not self.rows

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Return the bounds of a queue; they are created on first use. Code that keeps the result must call
        `touch` with each change of it."""
        self._touched[topic] = None
        queues = self.rows.setdefault(topic, {})
        bounds = queues.get(queue_id)
        if bounds is None:
            bounds = queues[queue_id] = QueueBounds()
        return bounds

    def touch(self, topic: str) -> None:
        """Note that bounds of queues of this topic were changed."""
        if topic in self.rows:
            self._touched[topic] = None

    def forget(self, kind: str, name: str) -> None:
        """See `Table`. Afterwards the next message of the topic is the first of its queue."""
        if kind == "topic":
            self.rows.pop(name, None)
            self._packed.pop(name, None)
            self._touched.pop(name, None)

    def apply(self, op: Op, state: ReplicatedState) -> None:
        """Queues have no operations, so this always raises Malformed."""
        raise Malformed(f"{op['op']}: queues change by messages")

    def load(self, value: Any) -> None:
        """See `Table`. All queues are without messages (`min` is `next`), because the log begins at the
        snapshot."""
        self.rows = {
            topic: {queue: QueueBounds(following, following, first) for queue, following, first in rows}
            for topic, rows in value
        }
        self._pack_all()

    def load_own(self, value: Any) -> None:
        """See `Table`. Also reads `min`, which is this replica's own."""
        self.rows = {topic: {queue: QueueBounds(*bounds) for queue, *bounds in rows} for topic, rows in value}
        self._pack_all()

    def _pack_all(self) -> None:
        """Pack all topics after loading, so that the first copy is fast, too. Loading happens in a worker."""
        self._packed = {}
        self._touched = dict.fromkeys(self.rows)
        self.copy()

    def copy(self) -> QueueCopy:
        """See `Table`. Takes well under a microsecond for each queue of a topic touched since the last copy,
        and almost nothing for the others."""
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
        """See `Table`. `offset` is the offset of the next message."""
        for topic, queues in sorted(self.rows.items()):
            for queue_id, bounds in sorted(queues.items()):
                yield StateRow("queue", topic, topic, queue_id, bounds.next)


@dataclass(frozen=True)
class QueueCopy:
    """Bounds of queues at the time of the copy."""

    rows: dict[str, array[int]]

    def pieces(self) -> Iterator[bytes]:
        """See `TableCopy`. The value is `[[topic, [[queue id, next, first position], ...]], ...]`. Queues
        that never had a message are left out, because they are created on first use."""
        names = [topic for topic in sorted(self.rows) if any(self.rows[topic][1::_FIELDS])]
        return packed_array(
            len(names),
            (
                (topic, [(queue, end, first) for queue, end, _, first in _quads(self.rows[topic]) if end])
                for topic in names
            ),
        )

    def own_pieces(self) -> Iterator[bytes]:
        """See `TableCopy`. The value has all queues, with `min`."""
        names = sorted(self.rows)
        return packed_array(len(names), ((topic, _quads(self.rows[topic])) for topic in names))


def _quads(numbers: array[int]) -> list[tuple[int, ...]]:
    return sorted(zip(*(numbers[place::_FIELDS] for place in range(_FIELDS)), strict=True))
