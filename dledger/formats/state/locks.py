"""Who consumes a queue in order (RebalanceLockManager, here in the log).

A lock has no time in it: clocks of two leaders may differ, and the state reads none. How long its owner was
not heard of is counted by each leader for itself, from the opening of its term on
(`dledger.broker.clients.queue_locks`); that it is over is said here by an operation, as everything else is.
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
"""Queues of one operation."""
LOCK_BATCH, UNLOCK_BATCH = "locks", "unlocks"

LockKey = tuple[str, str, int]
"""Group, topic, queue id."""


class QueueLock(Row, frozen=True):
    """One queue of one consumer group, and the client that may consume it."""

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
    """One operation for several queues of one owner: LOCK_BATCH gives them to it, whoever had them;
    UNLOCK_BATCH takes those that are still its own."""
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
