"""Replicated state of a broker group: a pure function of the committed log (architecture rule 1).

`ReplicatedState.apply` is total and reads no clock (safety.md S13): an operation that is unknown or
malformed changes nothing, is counted, and is skipped alike on every replica. Operations are the msgpack
bodies of SYSTEM entries, built by the functions below; `op` names them:

| op       | fields                                                       | effect                       |
|----------|--------------------------------------------------------------|------------------------------|
| topic    | name read write perm order flags attributes                  | create or replace a topic    |
| group    | name enable broadcast retry_queues retry_max order flags     | create or replace a group    |
| offsets  | group, offsets = [[topic, queue, offset], ...]               | raise consumer offsets (S28) |
| reset    | as offsets                                                   | set them, also back (S28)    |

The lowest offset of a queue is not in here as a number of its own: it is the `next` of the state that was
true where the log begins (safety.md S14), which each replica's retention decides for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

import msgpack

MAX_QUEUES = 1024
"""Queues of one topic, reading or writing: a bound on what one operation can make us hold."""
MAX_INT = 0x7FFFFFFF
"""Largest flag word or retry count: a signed 32-bit number, as Java's."""
MAX_NAME = 255
"""Characters of a topic or group name."""


class Perm(IntFlag):
    """Permission bits of a topic (PermName)."""

    INHERIT = 1
    WRITE = 2
    READ = 4


class Malformed(ValueError):
    """An operation that apply() must skip."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic (TopicConfig). `attributes` are RocketMQ 5's, as sorted pairs."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    order: bool = False
    flags: int = 0
    attributes: tuple[tuple[str, str], ...] = ()

    def op(self) -> dict[str, Any]:
        """The operation that creates or replaces this topic."""
        return {
            "attributes": [list(pair) for pair in self.attributes],
            "flags": self.flags,
            "name": self.name,
            "op": "topic",
            "order": self.order,
            "perm": self.perm,
            "read": self.read_queues,
            "write": self.write_queues,
        }

    @staticmethod
    def from_op(op: Mapping[str, Any]) -> TopicConfig:
        """Inverse of `op`; Malformed when a field is missing or out of range."""
        return TopicConfig(
            name=_name(op.get("name")),
            read_queues=_number(op.get("read"), MAX_QUEUES),
            write_queues=_number(op.get("write"), MAX_QUEUES),
            perm=_number(op.get("perm"), 0xFF),
            order=_flag(op.get("order", False)),
            flags=_number(op.get("flags", 0), MAX_INT),
            attributes=tuple(_pair(item) for item in _list(op.get("attributes", []))),
        )


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group (SubscriptionGroupConfig)."""

    name: str
    enable: bool = True
    broadcast: bool = True
    order: bool = False
    retry_queues: int = 1
    retry_max: int = 16
    flags: int = 0

    def op(self) -> dict[str, Any]:
        """The operation that creates or replaces this group."""
        return {
            "broadcast": self.broadcast,
            "enable": self.enable,
            "flags": self.flags,
            "name": self.name,
            "op": "group",
            "order": self.order,
            "retry_max": self.retry_max,
            "retry_queues": self.retry_queues,
        }

    @staticmethod
    def from_op(op: Mapping[str, Any]) -> GroupConfig:
        """Inverse of `op`; Malformed when a field is missing or out of range."""
        return GroupConfig(
            name=_name(op.get("name")),
            enable=_flag(op.get("enable", True)),
            broadcast=_flag(op.get("broadcast", True)),
            order=_flag(op.get("order", False)),
            retry_queues=_number(op.get("retry_queues", 1), MAX_QUEUES),
            retry_max=_number(op.get("retry_max", 16), MAX_INT),
            flags=_number(op.get("flags", 0), MAX_INT),
        )


@dataclass(slots=True)
class QueueBounds:
    """Offsets of one queue (safety.md S14): messages [min, next) exist here. `first_position` is the physical
    offset of message 0 of the queue, -1 before there is one. `min` is this replica's: see the module."""

    next: int = 0
    min: int = 0
    first_position: int = -1


def offsets_op(group: str, offsets: Iterable[tuple[str, int, int]], *, reset: bool = False) -> dict[str, Any]:
    """Operation that raises (or with `reset` sets) offsets of one group: (topic, queue id, offset)."""
    rows = [list(row) for row in sorted(offsets)]
    return {"group": group, "offsets": rows, "op": "reset" if reset else "offsets"}


def pack_op(op: Mapping[str, Any]) -> bytes:
    """Canonical body of a SYSTEM entry: msgpack, keys sorted, no floats (safety.md S10)."""
    packed: bytes = msgpack.packb({key: op[key] for key in sorted(op)}, use_bin_type=True)
    return packed


@dataclass
class ReplicatedState:
    """Everything that must survive a failover and is no message. Changed by `apply` alone."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """group -> (topic, queue id) -> next offset to consume."""
    queues: dict[str, dict[int, QueueBounds]] = field(default_factory=dict)
    topics_version: int = 0
    """Counts changes of `topics` (DataVersion.counter)."""
    last_store_time_ms: int = 0
    """Of the newest message applied (safety.md S15)."""
    skipped: int = 0
    """Operations that were unknown or malformed."""

    def apply(self, body: bytes | memoryview) -> str | None:
        """Apply the body of one SYSTEM entry. The name of the operation, None when it was skipped."""
        try:
            op = msgpack.unpackb(body, strict_map_key=False)
            handler = self._handlers().get(op["op"])
            if handler is not None:
                handler(op)
                return str(op["op"])
        except (Malformed, ValueError, TypeError, KeyError, msgpack.UnpackException):
            pass  # counted below; total by design (safety.md S13): every handler checks before it changes
        self.skipped += 1
        return None

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Bounds of a queue, made on first use."""
        queues = self.queues.setdefault(topic, {})
        bounds = queues.get(queue_id)
        if bounds is None:
            bounds = queues[queue_id] = QueueBounds()
        return bounds

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the next message of a queue; 0 for one that has none."""
        bounds = self.queues.get(topic, {}).get(queue_id)
        return 0 if bounds is None else bounds.next

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Next offset to consume, None when the group never said."""
        return self.offsets.get(group, {}).get((topic, queue_id))

    def _handlers(self) -> dict[str, Callable[[Mapping[str, Any]], None]]:
        return {
            "topic": self._put_topic,
            "group": self._put_group,
            "offsets": self._raise_offsets,
            "reset": self._reset_offsets,
        }

    def _put_topic(self, op: Mapping[str, Any]) -> None:
        config = TopicConfig.from_op(op)
        if self.topics.get(config.name) != config:
            self.topics[config.name] = config
            self.topics_version += 1

    def _put_group(self, op: Mapping[str, Any]) -> None:
        config = GroupConfig.from_op(op)
        self.groups[config.name] = config

    def _raise_offsets(self, op: Mapping[str, Any]) -> None:
        group = _name(op.get("group"))
        rows = [_row(item) for item in _list(op.get("offsets"))]
        known = self.offsets.setdefault(group, {})
        for topic, queue_id, offset in rows:
            key = (topic, queue_id)
            if known.get(key, -1) < offset <= self.next_offset(topic, queue_id):
                known[key] = offset

    def _reset_offsets(self, op: Mapping[str, Any]) -> None:
        group = _name(op.get("group"))
        rows = [_row(item) for item in _list(op.get("offsets"))]
        known = self.offsets.setdefault(group, {})
        for topic, queue_id, offset in rows:
            if offset <= self.next_offset(topic, queue_id):
                known[topic, queue_id] = offset


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise Malformed(f"not a name: {value!r}")
    return value


def _number(value: object, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise Malformed(f"not a number from 0 to {limit}: {value!r}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"not a boolean: {value!r}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"not a list: {value!r}")
    return value


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(item, str) for item in value):
        raise Malformed(f"not a pair of texts: {value!r}")
    return (value[0], value[1])


def _row(value: object) -> tuple[str, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise Malformed(f"not [topic, queue, offset]: {value!r}")
    return (_name(value[0]), _number(value[1], MAX_QUEUES), _number(value[2], 1 << 62))
