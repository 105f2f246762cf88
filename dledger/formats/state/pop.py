"""Pop consumption: messages that were given to consumers and are not acknowledged (PopCheckPoint,
ConsumerOrderInfo), and how the consumers of a topic and group must ask for messages
(MessageRequestModeManager).

A pop moves the group's offset behind the messages that it takes, and adds a checkpoint in the same batch of
the log. From then on the messages belong to the group's checkpoints, and to nothing else. An acknowledgement
removes them from there. When the invisible time is over, the leader copies the remaining ones to the group's
retry topic, in one batch with their removal. So no change of leader loses a message, or revives it twice.
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
"""Messages of one checkpoint at most (PopMessageRequestHeader.maxMsgNums)."""
MAX_INVISIBLE_MS = 7 * 24 * 3600 * 1000
"""Longest time in ms for which a message may be invisible."""
MAX_ATTEMPT = 255
"""Characters of an attempt id at most."""
POP, POP_DONE, POP_ORDER, POP_ORDER_END = "pop", "pop_done", "pop_order", "pop_order_end"
_SINCE = 4

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Milliseconds since the epoch."""
Invisible = Annotated[int, msgspec.Meta(ge=0, le=MAX_INVISIBLE_MS)]
Offsets = Annotated[tuple[Offset, ...], msgspec.Meta(min_length=1, max_length=MAX_POP_MESSAGES)]

CheckpointKey = tuple[str, str, int, int, int]
"""Key of a checkpoint, which is in its handles: group, topic, queue id, start, time."""
OrderKey = tuple[str, str, int]
"""Key of an order row: group, topic, queue id."""


class PopCheckpoint(Row, frozen=True):
    """Messages of one queue that a pop took. `offsets` are those that are not acknowledged yet.

    `start`: queue offset at which the pop began. `time`, `invisible`: when, and for how long, in ms.
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
        """The key, which is also in its handles."""
        return (self.group, self.topic, self.queue, self.start, self.time)


class PopDone(msgspec.Struct, frozen=True):
    """Operation: these messages of a checkpoint were acknowledged, or copied to the retry topic."""

    group: Name
    topic: Name
    queue: QueueId
    start: Offset
    time: Time
    offsets: Offsets


class PopOrder(Row, frozen=True):
    """Messages given to one consumer of a group that pops in order; the queue's next messages wait for it.

    `offsets`: all messages of the pop. `counts`: how many times each had been given to a consumer before.
    `acked`: the acknowledged ones. The group's offset is that of the first message that is not acknowledged.
    `visible`: [offset, time in ms] of the messages whose invisible time was changed.
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
        """The key: one queue of a group."""
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
    """Make the operation that removes messages from a checkpoint, and with the last one the checkpoint
    itself."""
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
