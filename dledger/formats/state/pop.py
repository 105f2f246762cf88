"""Pop consumption: messages that were given to consumers and are not acknowledged (PopCheckPoint,
ConsumerOrderInfo), and how the consumers of a topic and group must ask for messages
(MessageRequestModeManager).

A pop moves the group's offset behind the messages that it takes, and adds a checkpoint with them in the same
batch of the log. From then on only the checkpoint knows these messages. An acknowledgement removes messages
from the checkpoint. When the invisible time is over, the leader copies the remaining ones to the group's
retry topic, and removes them from the checkpoint in the same batch. So a change of leader loses no message,
and revives none twice.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from dledger.formats.state.table import (
    Declared,
    DeclaredTable,
    Int32,
    Name,
    Offset,
    Op,
    QueueId,
    Row,
    read_fields,
)

MAX_POP_MESSAGES = 32
"""Largest number of messages in one checkpoint (PopMessageRequestHeader.maxMsgNums)."""
MAX_INVISIBLE_MS = 7 * 24 * 3600 * 1000
"""Longest time in ms for which a message may be invisible."""
MAX_ATTEMPT = 255
"""Limit, in characters, of an attempt id."""
POP, POP_DONE, POP_ORDER, POP_ORDER_END = "pop", "pop_done", "pop_order", "pop_order_end"
_SINCE = 4

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A time in milliseconds since the epoch."""
Invisible = Annotated[int, msgspec.Meta(ge=0, le=MAX_INVISIBLE_MS)]
Offsets = Annotated[tuple[Offset, ...], msgspec.Meta(min_length=1, max_length=MAX_POP_MESSAGES)]

CheckpointKey = tuple[str, str, int, int, int]
"""Key of a checkpoint: group, topic, queue id, start, time. The handles of its messages hold the last
three."""
OrderKey = tuple[str, str, int]
"""Key of a `PopOrder`: group, topic, queue id."""


class PopCheckpoint(Row, frozen=True):
    """A checkpoint: messages of one queue that a pop took. `offsets` are those that are not acknowledged yet.

    `start` is the queue offset at which the pop began. `time` says when the pop happened, and `invisible` how
    long the messages stay invisible; both are in ms.
    """

    operation: ClassVar[str] = POP
    group: Name
    topic: Name
    queue: QueueId
    start: Offset
    time: Time
    invisible: Invisible
    offsets: Offsets

    @property
    def key(self) -> CheckpointKey:
        """Key of the checkpoint in its table."""
        return (self.group, self.topic, self.queue, self.start, self.time)


class PopDone(msgspec.Struct, frozen=True):
    """An operation. It removes messages from a checkpoint, because they were acknowledged or copied to the
    retry topic."""

    group: Name
    topic: Name
    queue: QueueId
    start: Offset
    time: Time
    offsets: Offsets


class PopOrder(Row, frozen=True):
    """Messages that one consumer of a group got by a pop in order. The next messages of the queue are
    delivered only after them.

    `offsets` has all messages of the pop. `counts` has for each of them how many times it was given to a
    consumer before. `acked` has the acknowledged ones. The group's offset is that of the first message that
    is not acknowledged. `visible` has [offset, time in ms at which it becomes visible] for messages whose
    invisible time was changed.
    """

    operation: ClassVar[str] = POP_ORDER
    group: Name
    topic: Name
    queue: QueueId
    time: Time
    invisible: Invisible
    attempt: Annotated[str, msgspec.Meta(max_length=MAX_ATTEMPT)]
    offsets: Offsets
    counts: Annotated[tuple[Int32, ...], msgspec.Meta(min_length=1, max_length=MAX_POP_MESSAGES)]
    acked: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_POP_MESSAGES)] = ()
    visible: Annotated[tuple[tuple[Offset, Time], ...], msgspec.Meta(max_length=MAX_POP_MESSAGES)] = ()

    @property
    def key(self) -> OrderKey:
        """Key of the row in its table: one queue of a group."""
        return (self.group, self.topic, self.queue)


class RequestMode(Row, frozen=True):
    """How consumers of a group ask for messages of a topic: PULL or POP. `share` is the number of further
    consumers that pop each queue; with 0 or less all consumers of the group pop all queues."""

    operation: ClassVar[str] = "request_mode"
    topic: Name
    group: Name
    mode: Annotated[str, msgspec.Meta(pattern=r"\A(PULL|POP)\Z")]
    share: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0


def done_op(key: CheckpointKey, offsets: tuple[int, ...]) -> dict[str, Any]:
    """Make the operation that removes messages from a checkpoint. The checkpoint itself is removed with its
    last message."""
    group, topic, queue, start, time = key
    return {
        "group": group,
        "offsets": list(offsets),
        "op": POP_DONE,
        "queue": queue,
        "start": start,
        "time": time,
        "topic": topic,
    }


def _done(table: DeclaredTable[CheckpointKey, PopCheckpoint], op: Op, state: object) -> None:
    done = read_fields(op, PopDone)
    row = table.rows.get((done.group, done.topic, done.queue, done.start, done.time))
    if row is None:
        return
    left = tuple(offset for offset in row.offsets if offset not in done.offsets)
    if left:
        table.put(msgspec.structs.replace(row, offsets=left))
    else:
        table.discard(row.key)


POPS = Declared[CheckpointKey, PopCheckpoint](
    "pops",
    PopCheckpoint,
    key=("group", "topic", "queue", "start", "time"),
    since=_SINCE,
    more={POP_DONE: _done},
    of={"topic": "topic", "group": "group"},
)
POP_ORDERS = Declared[OrderKey, PopOrder](
    "pop_orders",
    PopOrder,
    key=("group", "topic", "queue"),
    since=_SINCE,
    remove=POP_ORDER_END,
    of={"topic": "topic", "group": "group"},
)
REQUEST_MODES = Declared[tuple[str, str], RequestMode](
    "request_modes",
    RequestMode,
    key=("topic", "group"),
    since=_SINCE,
    of={"topic": "topic", "group": "group"},
)
