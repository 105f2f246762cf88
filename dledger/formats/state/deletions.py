"""Deletions of topics and groups (DELETE_TOPIC_IN_BROKER, DELETE_SUBSCRIPTIONGROUP).

A deletion is one operation. Whatever the state holds of a topic goes with it: its row, the ends of its
queues, consumer offsets, locks, checkpoints of pops, request modes, resets (`Table.forget`). So a topic of
that name begins at 0 when it is made again.

Messages stay in the log until retention takes them, and some are on their way to the topic: in a delay
level, as half messages, in retry topics. A row says up to where the log is of the topic that is gone: what
was meant for it below that place is not meant for one of the same name that was made later.
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
    """The last deletion of a topic of this name: the log below `at`, a physical offset, knows the old one."""

    operation: ClassVar[str] = TOPIC_DELETE
    name: Name
    at: Offset


class _GroupDeletion(msgspec.Struct, frozen=True):
    name: Name
    keep_offsets: bool = False


def was_deleted(rows: Mapping[str, TopicDeletion], topic: str, position: int) -> bool:
    """Whether what was meant for this topic, at a physical offset of the log, was meant for one that was
    deleted."""
    row = rows.get(topic) if rows else None
    return row is not None and position < row.at


def group_deletion(name: str, *, keep_offsets: bool = False) -> dict[str, Any]:
    """The operation that removes a group with its offsets, and whatever else the state has of it; or with
    `keep_offsets` its configuration alone."""
    return {"keep_offsets": keep_offsets, "name": name, "op": GROUP_DELETE}


def forgotten_by(op: Op) -> tuple[str, str] | None:
    """What all tables forget by an operation that was applied: its kind ("topic", "group", "config", "user")
    and its name."""
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
