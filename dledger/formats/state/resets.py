"""Resets of consumer offsets that no consumer has heard of (ConsumerOffsetManager.resetOffsetTable).

A reset sets offsets (`offsets.RESET_OP`) and puts a row here, in one batch. Until a consumer pulls a queue at
its new offset, pulls of it from elsewhere are told to go there, and what is reported of it does not count:
a consumer that is still at the messages before would undo the reset with its next report. Being in the log,
that holds over a switch of leader as well.
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
"""Queues of one topic."""
RESET_HEARD = "reset_heard"
Queues = Annotated[
    tuple[tuple[QueueId, Offset], ...], msgspec.Meta(min_length=1, max_length=MAX_RESET_QUEUES)
]
ResetKey = tuple[str, str]
"""Group and topic."""


class OffsetReset(Row, frozen=True):
    """Of one group in one topic: queues whose reset no consumer has followed, with their new offsets."""

    operation: ClassVar[str] = "offset_reset"
    group: Name
    topic: Name
    queues: Annotated[
        tuple[tuple[QueueId, Offset], ...], msgspec.Meta(min_length=1, max_length=MAX_RESET_QUEUES)
    ]

    def offset(self, queue_id: int) -> int | None:
        """Where a queue is to go on; None when its reset was heard, or there was none."""
        return dict(self.queues).get(queue_id)


class _Heard(msgspec.Struct, frozen=True):
    group: Name
    topic: Name
    queue: QueueId
    offset: Offset


def heard_op(group: str, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    """A consumer went to the new offset of a queue."""
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
