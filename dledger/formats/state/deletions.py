"""Deletions of topics and groups (DELETE_TOPIC_IN_BROKER, DELETE_SUBSCRIPTIONGROUP).

A deletion is one operation. Everything in the state that belongs to a topic is removed with it: its row, the
ends of its queues, consumer offsets, locks, checkpoints of pops, request modes, resets (`Table.forget`). So a
topic of the same name begins at 0 when it is made again.

Messages stay in the log until retention removes them. Some are still on their way to the topic: in a delay
level, as half messages, in retry topics. A row of this table records at which position of the log the topic
was deleted. Messages below that position are not meant for a later topic of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from dledger.formats.state.auth import USER_DELETE
from dledger.formats.state.table import (
    Declared,
    DeclaredTable,
    Name,
    Offset,
    Op,
    Row,
    read_fields,
)

if TYPE_CHECKING:
    from dledger.formats.state.machine import ReplicatedState

TOPIC_DELETE, GROUP_DELETE = "topic_delete", "group_delete"


class TopicDeletion(Row, frozen=True):
    """The last deletion of a topic of this name. Messages of the log below the physical offset `at` were
    meant for the deleted topic."""

    operation: ClassVar[str] = TOPIC_DELETE
    name: Name
    at: Offset


class _GroupDeletion(msgspec.Struct, frozen=True):
    name: Name
    keep_offsets: bool = False


def was_deleted(rows: Mapping[str, TopicDeletion], topic: str, position: int) -> bool:
    """Whether a message for this topic, at physical offset `position` of the log, was meant for a topic that
    was deleted."""
    row = rows.get(topic) if rows else None
    return row is not None and position < row.at


def group_deletion(name: str, *, keep_offsets: bool = False) -> dict[str, Any]:
    """Make the operation that removes a group with its offsets and everything else that belongs to it. With
    `keep_offsets` only its configuration is removed."""
    return {"keep_offsets": keep_offsets, "name": name, "op": GROUP_DELETE}


def forgotten_by(op: Op) -> tuple[str, str] | None:
    """Return the kind ("topic", "group", "config", "user") and the name of what this applied operation
    deletes, so that all tables forget it. None if it deletes nothing."""
    if op["op"] == TOPIC_DELETE:
        return "topic", op["name"]
    if op["op"] == GROUP_DELETE:
        return ("config" if op.get("keep_offsets") else "group"), op["name"]
    if op["op"] == USER_DELETE:
        return "user", op["name"]
    return None


def _group(table: DeclaredTable[str, TopicDeletion], op: Op, state: ReplicatedState) -> None:
    read_fields(op, _GroupDeletion)


DELETIONS = Declared[str, TopicDeletion](
    "deletions",
    TopicDeletion,
    key=("name",),
    since=6,
    remove="topic_delete_over",
    more={GROUP_DELETE: _group},
)
