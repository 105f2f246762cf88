"""What a log makes of a broker, by the judge's own hand: topics, groups, offsets, the messages of each queue.

No code of `broker/` and not that of `formats.state`: the two are compared. Entries are in log order, so what
must hold along a log is checked here: queue offsets are dense, and store time never goes back (safety.md S12,
S14, S15).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import decompress

import msgpack

from dledger.chaos.invariants import InvariantViolated
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.message_ids import tags_code
from dledger.formats.properties import TAGS, decode_properties
from dledger.formats.record import COMPRESSED, decode_record

RESEND = "__RESEND"
"""Property of a message whose first attempt may have been stored."""

Queue = tuple[str, int]
"""Topic and queue id."""


class Stored(NamedTuple):
    """One message as the log has it. Its queue offset is its place in the queue's list."""

    value: bytes
    entry: int
    """Index of its entry."""
    position: int
    """Physical offset: of the record, not of its entry."""
    size: int
    tags_code: int
    store_ms: int
    resent: bool

    @property
    def unit(self) -> bytes:
        """Its 20 bytes in the ConsumeQueue."""
        return UNIT.pack(self.position, self.size, self.tags_code)


class BrokerReplay:
    """State after the entries up to `index`."""

    def __init__(self) -> None:
        self.index = -1
        self.topics: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.offsets: dict[str, dict[Queue, int]] = {}
        self.ends: dict[Queue, int] = {}
        """Next offset of each queue that ever had a message."""
        self.first_positions: dict[Queue, int] = {}
        self.messages: dict[Queue, list[Stored]] = {}
        """Those that were applied here: all, when it began with the first entry."""
        self.topics_version = 0
        self.last_store_ms = 0

    @classmethod
    def from_parts(cls, parts: Mapping[str, bytes], index: int) -> BrokerReplay:
        """From a boundary snapshot of a broker."""
        values = {name: msgpack.unpackb(data, strict_map_key=False) for name, data in parts.items()}
        found = cls()
        found.index = index
        found.topics = {op["name"]: op for op in values["topics"]}
        found.groups = {op["name"]: op for op in values["groups"]}
        found.offsets = {
            group: {(topic, queue): at for topic, queue, at in rows} for group, rows in values["offsets"]
        }
        for topic, rows in values["queues"]:
            for queue, end, first in rows:
                found.ends[topic, queue], found.first_positions[topic, queue] = end, first
        found.topics_version = values["counters"]["topics_version"]
        found.last_store_ms = values["counters"]["last_store_time_ms"]
        if values["counters"]["skipped"]:
            raise InvariantViolated(f"operations were skipped up to entry {index}: nobody sent such")
        return found

    def encode(self) -> bytes:
        """Canonical: equal states give equal bytes."""
        queues: dict[str, list[list[int]]] = {}
        for topic, queue in sorted(self.ends):
            row = [queue, self.ends[topic, queue], self.first_positions[topic, queue]]
            queues.setdefault(topic, []).append(row)
        value = {
            "index": self.index,
            "topics": self.topics,
            "groups": self.groups,
            "offsets": {
                group: [[*queue, at] for queue, at in sorted(rows.items())]
                for group, rows in self.offsets.items()
            },
            "queues": queues,
            "topics_version": self.topics_version,
            "last_store_ms": self.last_store_ms,
        }
        return json.dumps(value, sort_keys=True).encode()

    def apply(self, header: EntryHeader, record: bytes) -> None:
        """One entry. InvariantViolated for a message that does not continue its queue."""
        self.index = header.index
        if header.kind == Kind.MESSAGE:
            self._message(header, record)
        elif header.kind == Kind.SYSTEM:
            self._operation(msgpack.unpackb(decode_record(record).body, strict_map_key=False))

    def _message(self, header: EntryHeader, data: bytes) -> None:
        record = decode_record(data)
        queue = (record.topic, record.queue_id)
        position = header.pos + HEADER_SIZE
        if record.physical_offset != position:
            raise InvariantViolated(
                f"entry {header.index} is at {position} and says {record.physical_offset}"
            )
        end = self.ends.get(queue, 0)
        # Offsets of a queue are dense and given once.
        if record.queue_offset != end:
            raise InvariantViolated(
                f"entry {header.index} has offset {record.queue_offset} of {queue}, the next one is {end}"
            )
        # Store time never goes back.
        if record.store_timestamp < self.last_store_ms:
            raise InvariantViolated(
                f"store time goes back at entry {header.index}:"
                f" {record.store_timestamp} ms after {self.last_store_ms}"
            )
        self.last_store_ms = record.store_timestamp
        self.ends[queue] = end + 1
        self.first_positions.setdefault(queue, position)
        properties = decode_properties(record.properties)
        body = decompress(record.body) if record.sys_flag & COMPRESSED else record.body
        self.messages.setdefault(queue, []).append(
            Stored(
                body,
                header.index,
                position,
                record.size,
                tags_code(properties.get(TAGS)),
                record.store_timestamp,
                RESEND in properties,
            )
        )

    def _operation(self, op: dict[str, Any]) -> None:
        name = op["op"]
        if name == "topic":
            self.topics_version += self.topics.get(op["name"]) != op
            self.topics[op["name"]] = op
        elif name == "group":
            self.groups[op["name"]] = op
        elif name in ("offsets", "reset"):
            known = self.offsets.setdefault(op["group"], {})
            for topic, queue, offset in op["offsets"]:
                # A consumer offset only rises, but for an explicit reset, and never beyond the end (S28).
                before = -1 if name == "reset" else known.get((topic, queue), -1)
                if before < offset <= self.ends.get((topic, queue), 0):
                    known[topic, queue] = offset
        else:
            raise InvariantViolated(f"an operation that nobody knows: {op}")
