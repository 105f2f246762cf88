"""Resets of consumer offsets that no consumer has followed yet (ConsumerOffsetManager.resetOffsetTable).

A reset sets offsets (`offsets.RESET_OP`) and adds a row to this table, in one batch. A consumer follows the
reset of a queue when it pulls the queue at its new offset. Until then, pulls at other offsets are redirected
to the new offset, and offset reports for the queue are ignored. Otherwise a consumer that still works on
earlier messages would undo the reset with its next report. As the row is in the log, this also holds after a
change of leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from dledger.formats.state.table import (
    MAX_QUEUES,
    Declared,
    DeclaredTable,
    Malformed,
    Name,
    Offset,
    Op,
    QueueId,
    Row,
)

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

MAX_RESET_QUEUES = MAX_QUEUES + 1
"""Largest number of queues in the reset of one topic."""
RESET_HEARD = "reset_heard"
Queues = Annotated[
    tuple[tuple[QueueId, Offset], ...], msgspec.Meta(min_length=1, max_length=MAX_RESET_QUEUES)
]
ResetKey = tuple[str, str]
"""Key of a reset: group and topic."""


class OffsetReset(Row, frozen=True):
    """A reset that is not finished: the queues of one group and topic that no consumer has followed, with
    their new offsets."""

    operation: ClassVar[str] = "offset_reset"
    group: Name
    topic: Name
    queues: Annotated[
        tuple[tuple[QueueId, Offset], ...], msgspec.Meta(min_length=1, max_length=MAX_RESET_QUEUES)
    ]

    def offset(self, queue_id: int) -> int | None:
        """Offset to which a queue was reset; None if there was no reset, or a consumer has followed it."""
        return dict(self.queues).get(queue_id)


class _Heard(msgspec.Struct, frozen=True):
    group: Name
    topic: Name
    queue: QueueId
    offset: Offset


def heard_op(group: str, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    """Make the operation that notes that a consumer pulled a queue at its new offset."""
    return {"group": group, "offset": offset, "op": RESET_HEARD, "queue": queue_id, "topic": topic}


def _heard(table: DeclaredTable[ResetKey, OffsetReset], op: Op, state: ReplicatedState) -> None:
    try:
        heard = msgspec.convert({name: op[name] for name in _Heard.__struct_fields__ if name in op}, _Heard)
    except msgspec.ValidationError as error:
        raise Malformed(f"{RESET_HEARD}: {error}") from error
    key = heard.group, heard.topic
    row = table.rows.get(key)
    if row is None or (heard.queue, heard.offset) not in row.queues:
        return  # another reset came first
    left = tuple(one for one in row.queues if one[0] != heard.queue)
    if left:
        table.put(OffsetReset(heard.group, heard.topic, left))
    else:
        table.discard(key)


RESETS = Declared[ResetKey, OffsetReset](
    "resets",
    OffsetReset,
    key=("group", "topic"),
    since=5,
    remove="reset_over",
    more={RESET_HEARD: _heard},
    of={"topic": "topic", "group": "group"},
)
