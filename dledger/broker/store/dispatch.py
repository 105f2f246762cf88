"""Applies committed entries to queues and state (ReputMessageService, CommitLogDispatcher).

A chunk is a series of consecutive entries of the log. It is processed in one pass: message entries become
units of ConsumeQueues, and SYSTEM entries change the replicated state. Queues that got messages are reported
once per chunk, so that readers are woken once for many messages. The node passes only entries that are
committed, and durable on this node. So rule S21 of safety.md holds for all derived data.
"""

from __future__ import annotations

import struct

import msgpack

from dledger._fast import FAST
from dledger.broker.store.consume_queue import ConsumeQueue, QueueTable
from dledger.errors import EXIT_CONFIG, InvariantBroken, NodeFailed
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, Kind
from dledger.formats.message_ids import java_hash
from dledger.formats.properties import TAGS, find_property
from dledger.formats.record import (
    BORN_HOST_V6,
    FIXED_SIZE,
    MAGIC_V1,
    MIN_SIZE,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    CorruptRecord,
    decode_record,
)
from dledger.formats.state import TOPIC_DELETE, ReplicatedState, UnknownOperation
from dledger.formats.timers import TIMER_TOPIC, timer_code
from dledger.host import Chunk

# Only the fields needed, as this runs for every message on every node.
_ENTRY = struct.Struct(">4xi24xI")
"""Fields of an entry's header that are needed: size and channel."""
_RECORD = struct.Struct(">4xi4xi4xq8xi8x8xq8x4x8xi")
"""Fields of a record's fixed part that are needed: magic, queue id, queue offset, sysFlag, store time and
body length."""
_TAGS = TAGS.encode()
_TAGS_NEEDLE = _TAGS + b"\x01"
_TIMER_TOPIC = TIMER_TOPIC.encode()
MAX_CACHED_TAGS = 4096
"""Largest number of tag texts whose hash code is cached. At this limit the cache is emptied."""


class Dispatcher:
    """Applies chunks of the log to a replicated state and its queues."""

    def __init__(self, state: ReplicatedState, queues: QueueTable) -> None:
        self._state = state
        self._queues = queues
        self._tag_codes: dict[bytes, int] = {}
        self.applied_index: int = -1
        self.applied_end: int = 0
        """Log offset just after the last applied entry. Nothing at or above it is visible to clients."""
        self.messages: int = 0
        """Number of messages that this object has applied to queues."""
        self.malformed: int = 0
        """Number of entries of kind MESSAGE without a valid message record. Every node skips them (safety.md
        S13)."""
        self.system_ops: list[str] = []
        """Names of the operations applied in the last chunk."""
        self.deleted: list[str] = []
        """Topics that were deleted in the last chunk."""

    def apply(self, chunk: Chunk) -> list[ConsumeQueue]:
        """Apply one chunk. Returns the queues that got messages, without duplicates, in order of their first
        message. Raises InvariantBroken if the queue offset of a message is not the next one of its queue
        (safety.md S13). Raises NodeFailed if only a newer program knows an operation."""
        if chunk.first_index <= self.applied_index:
            raise InvariantBroken(f"entry {chunk.first_index} applied twice (at {self.applied_index})")
        data = bytes(chunk.data)  # one copy; cheaper than many small slices of a view
        touched: dict[ConsumeQueue, None] = {}
        self.system_ops.clear()
        self.deleted.clear()
        at = 0
        pos = chunk.pos
        number, count = 0, chunk.count
        while number < count:
            if FAST is not None:  # plain messages, up to the first other entry
                done, at, self._state.last_store_time_ms = FAST.dispatch(
                    data,
                    at,
                    count - number,
                    pos,
                    self._queues.by_raw_topic,
                    self._tag_codes,
                    _TIMER_TOPIC,
                    self._state.last_store_time_ms,
                    touched,
                )
                self.messages += done
                number += done
                if number == count:
                    break
            size, channel = _ENTRY.unpack_from(data, at)
            kind = channel >> 24 & KIND_MASK
            if kind == Kind.MESSAGE:
                queue = self._message(data, at, size, pos + at + HEADER_SIZE)
                if queue is not None:
                    touched[queue] = None
            elif kind == Kind.SYSTEM:
                self._system(data, at, size, chunk.first_index + number)
            at += size
            number += 1
        for queue in touched:
            self._state.touch(queue.topic)
        self.applied_index = chunk.first_index + chunk.count - 1
        self.applied_end = pos + at
        return list(touched)

    def _message(self, data: bytes, at: int, size: int, position: int) -> ConsumeQueue | None:
        if size < HEADER_SIZE + MIN_SIZE:
            self.malformed += 1
            return None
        magic, queue_id, queue_offset, sys_flag, store_time, body_size = _RECORD.unpack_from(
            data, at + HEADER_SIZE
        )
        if magic != MAGIC_V1 or sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
            return self._wide_message(data, at, size, position)
        topic_at = at + HEADER_SIZE + FIXED_SIZE + body_size
        end = at + size
        if body_size < 0 or topic_at >= end:
            self.malformed += 1
            return None
        properties_at = topic_at + 3 + data[topic_at]
        raw_topic = data[topic_at + 1 : properties_at - 2]
        if store_time > self._state.last_store_time_ms:
            self._state.last_store_time_ms = store_time
        transaction = sys_flag & TRANSACTION_MASK
        if transaction and transaction != TRANSACTION_COMMIT:
            return None  # half messages and rollbacks take no place in a queue
        queues = self._queues.by_raw_topic.get(raw_topic)
        queue = None if queues is None else queues.get(queue_id)
        if queue is None:
            if properties_at > end or not _is_text(raw_topic) or queue_id < 0:
                self.malformed += 1
                return None
            queue = self._queues.create(raw_topic, queue_id)
        found = data.find(_TAGS_NEEDLE, properties_at, end)
        if raw_topic == _TIMER_TOPIC:
            code = timer_code(data[properties_at:end])
        elif found < 0:
            code = 0
        elif data[found - 1] == 2 or found == properties_at:
            stop = data.find(b"\x02", found, end)
            code = self._tags_code(data[found + 5 : stop if stop > 0 else end])
        else:  # found inside another property: search for the property itself
            code = self._tags_code(find_property(data[properties_at:end], _TAGS))
        bounds = queue.bounds
        if bounds.next != queue_offset:
            raise InvariantBroken(_gap(queue, queue_offset, position))
        if queue_offset == 0:
            bounds.first_position = position
        queue.tail += UNIT.pack(position, size - HEADER_SIZE, code)
        bounds.next = queue_offset + 1
        self.messages += 1
        return queue

    def _wide_message(self, data: bytes, at: int, size: int, position: int) -> ConsumeQueue | None:
        """Apply a record in a form that brokers of this project do not write: version 2, or with IPv6 hosts.
        Such records come from a store of Apache RocketMQ."""
        try:
            record = decode_record(data[at + HEADER_SIZE : at + size], with_body=False)
        except CorruptRecord:
            self.malformed += 1
            return None
        if record.queue_id < 0:
            self.malformed += 1
            return None
        self._state.last_store_time_ms = max(self._state.last_store_time_ms, record.store_timestamp)
        if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return None
        queue = self._queues.create(record.topic.encode(), record.queue_id)
        if queue.bounds.next != record.queue_offset:
            raise InvariantBroken(_gap(queue, record.queue_offset, position))
        properties = record.properties.encode()
        if record.topic == TIMER_TOPIC:
            code = timer_code(properties)
        else:
            code = self._tags_code(find_property(properties, _TAGS))
        queue.append(position, size - HEADER_SIZE, code)
        self.messages += 1
        return queue

    def _system(self, data: bytes, at: int, size: int, index: int) -> None:
        body_at = at + HEADER_SIZE + FIXED_SIZE
        if body_at > at + size:
            self.malformed += 1
            return
        body_size = _RECORD.unpack_from(data, at + HEADER_SIZE)[5]
        body = data[body_at : body_at + max(body_size, 0)]
        try:
            op = self._state.apply(body)
        except UnknownOperation as error:
            raise NodeFailed(
                f"entry {index}: {error}, as this version of the program is older than the one that "
                "wrote it: start this node with the version that the other members run",
                EXIT_CONFIG,
            ) from error
        if op is not None:
            self.system_ops.append(op)
            if op == TOPIC_DELETE:
                topic = msgpack.unpackb(body)["name"]
                self._queues.drop(topic)
                self.deleted.append(topic)

    def _tags_code(self, tags: bytes | None) -> int:
        if not tags:
            return 0
        code = self._tag_codes.get(tags)
        if code is None:
            if len(self._tag_codes) >= MAX_CACHED_TAGS:
                self._tag_codes.clear()
            code = self._tag_codes[tags] = java_hash(tags.decode(errors="replace"))
        return code


def _is_text(raw: bytes) -> bool:
    try:
        return bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _gap(queue: ConsumeQueue, got: int, position: int) -> str:
    return (
        f"queue {queue.topic}@{queue.queue_id}: message at {position} has offset {got}, "
        f"expected {queue.bounds.next} (safety.md S13)"
    )
