"""Locks of queues that a client consumes in order (RebalanceLockManager, stored in the log).

A lock has no time in it, because clocks of two leaders may differ, and the state reads no clock. Each leader
measures, from the opening of its term on, how long the owner of a lock has been silent
(`dledger.broker.clients.queue_locks`). A lock ends by an operation in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from dledger.formats.state.table import (
    Declared,
    DeclaredTable,
    Name,
    Op,
    QueueId,
    Row,
    read_fields,
)

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

MAX_LOCK_BATCH = 1024
"""Largest number of queues in one operation."""
LOCK_BATCH, UNLOCK_BATCH = "locks", "unlocks"

LockKey = tuple[str, str, int]
"""Key of a lock: group, topic, queue id."""


class QueueLock(Row, frozen=True):
    """A lock: one queue of one consumer group, and the client that may consume it."""

    operation: ClassVar[str] = "lock"
    group: Name
    topic: Name
    queue: QueueId
    client: Name


class _Batch(msgspec.Struct, frozen=True):
    group: Name
    client: Name
    queues: Annotated[list[tuple[Name, QueueId]], msgspec.Meta(max_length=MAX_LOCK_BATCH)]


def batch_op(op: str, group: str, client: str, queues: list[tuple[str, int]]) -> dict[str, Any]:
    """Make one operation for several queues of one owner. LOCK_BATCH gives the queues to this client, even
    those that another client had; UNLOCK_BATCH releases the queues that this client still has."""
    return {"client": client, "group": group, "op": op, "queues": [list(queue) for queue in queues]}


def _lock(table: DeclaredTable[LockKey, QueueLock], op: Op, state: ReplicatedState) -> None:
    batch = read_fields(op, _Batch)
    for topic, queue in batch.queues:
        table.put(QueueLock(batch.group, topic, queue, batch.client))


def _unlock(table: DeclaredTable[LockKey, QueueLock], op: Op, state: ReplicatedState) -> None:
    batch = read_fields(op, _Batch)
    for topic, queue in batch.queues:
        key = batch.group, topic, queue
        row = table.rows.get(key)
        if row is not None and row.client == batch.client:
            table.discard(key)


LOCKS = Declared[LockKey, QueueLock](
    "locks",
    QueueLock,
    key=("group", "topic", "queue"),
    since=3,
    more={LOCK_BATCH: _lock, UNLOCK_BATCH: _unlock},
    queue_field="queue",
    of={"topic": "topic", "group": "group"},
)
