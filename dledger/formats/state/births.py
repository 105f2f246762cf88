"""Data to recognise late requests: births of topics and groups, a version of users, epochs of locks.

A request may arrive late, from a broker that was stopped or over a network that was cut. Meanwhile its topic,
group or lock may have ended, and a new one may have the same name. With these rows a broker recognises that.
A deletion names the life of its topic, a change of users names the version on which it is based, and the
unlocking of a queue names the epoch of its lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from dledger.formats.state.locks import MAX_LOCK_BATCH, LockKey
from dledger.formats.state.table import (
    Declared,
    DeclaredTable,
    Name,
    Offset,
    Op,
    QueueId,
    Row,
    read_fields,
)

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

_SINCE = 8
LOCK_EPOCHS_OP, LOCK_EPOCHS_OVER = "lock_epochs", "lock_epochs_over"
USERS_KEY = "users"
"""Name of the only row of `USER_VERSIONS`."""


class Birth(Row, frozen=True):
    """The position of the log at which a topic or group was made (`formats.life`)."""

    name: Name
    at: Offset


class TopicBirth(Birth, frozen=True):
    """The birth of a topic."""

    operation: ClassVar[str] = "topic_birth"


class GroupBirth(Birth, frozen=True):
    """The birth of a consumer group."""

    operation: ClassVar[str] = "group_birth"


class UserVersion(Row, frozen=True):
    """Number of changes of users and their policies so far."""

    operation: ClassVar[str] = "user_version"
    name: Name
    changes: Offset


class LockEpoch(Row, frozen=True):
    """The epoch of the lock of one queue. The owner of the lock increases this number each time that it locks
    the queue."""

    operation: ClassVar[str] = "lock_epoch"
    group: Name
    topic: Name
    queue: QueueId
    epoch: Offset


class _Epochs(msgspec.Struct, frozen=True):
    group: Name
    queues: Annotated[list[tuple[Name, QueueId, Offset]], msgspec.Meta(max_length=MAX_LOCK_BATCH)]


def lock_epochs_op(group: str, epochs: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Make one operation that sets the epochs of several queues, given as (topic, queue id, epoch)."""
    return {"group": group, "op": LOCK_EPOCHS_OP, "queues": [list(one) for one in epochs]}


def lock_epochs_over_op(group: str, queues: list[tuple[str, int]]) -> dict[str, Any]:
    """Make the operation that removes the epochs of locks which have ended."""
    return {"group": group, "op": LOCK_EPOCHS_OVER, "queues": [[*one, 0] for one in queues]}


def _put(table: DeclaredTable[LockKey, LockEpoch], op: Op, state: ReplicatedState) -> None:
    batch = read_fields(op, _Epochs)
    for topic, queue, epoch in batch.queues:
        table.put(LockEpoch(batch.group, topic, queue, epoch))


def _remove(table: DeclaredTable[LockKey, LockEpoch], op: Op, state: ReplicatedState) -> None:
    batch = read_fields(op, _Epochs)
    for topic, queue, _ in batch.queues:
        table.discard((batch.group, topic, queue))


TOPIC_BIRTHS = Declared[str, TopicBirth](
    "topic_births", TopicBirth, key=("name",), since=_SINCE, topic_field="name", of={"topic": "name"}
)
GROUP_BIRTHS = Declared[str, GroupBirth](
    "group_births", GroupBirth, key=("name",), since=_SINCE, of={"group": "name", "config": "name"}
)
USER_VERSIONS = Declared[str, UserVersion]("user_versions", UserVersion, key=("name",), since=_SINCE)
LOCK_EPOCHS = Declared[LockKey, LockEpoch](
    "lock_epochs",
    LockEpoch,
    key=("group", "topic", "queue"),
    since=_SINCE,
    more={LOCK_EPOCHS_OP: _put, LOCK_EPOCHS_OVER: _remove},
    queue_field="queue",
    of={"topic": "topic", "group": "group"},
)
