"""The judge's own replay of a broker's log. It has the broker's tables (see `oracle`) and the messages of
each queue.

It uses no code of `dledger/broker/` or `formats.state`, because its results are compared with theirs. Entries
are applied in log order, so this module also checks two rules of that order: queue offsets have no gaps, and
store time never goes back (safety.md S12, S14, S15).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar
from zlib import decompress

import msgpack

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.newer import Notes
from dledger.chaos.scenarios.oracle import Oracle, Queue, oracles
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.message_ids import tags_code
from dledger.formats.properties import FIRST_POP_TIME, REAL_TOPIC, TAGS, decode_properties
from dledger.formats.record import COMPRESSED, Record, decode_record

Kept = TypeVar("Kept")

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
"""The topic in which messages with a delay level wait. Queue n has the messages of level n + 1."""
HALF, DISCARD = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
"""The topic in which half messages wait, and the topic to which half messages go whose transaction was never
ended."""
TIMERS = "rmq_sys_wheel_timer"
"""The topic in which timer messages wait. It also has the messages that recall them."""
UNREAD = (SCHEDULE, HALF, DISCARD, TIMERS)
"""The topics that no consumer reads."""
RESEND = "__RESEND"
"""Property that marks a message as a repetition: an earlier attempt may have been stored."""


class Stored(NamedTuple):
    """One message in the log. Its queue offset is its place in the list of messages of its queue."""

    value: bytes
    entry: int
    """Index of the log entry that holds the message."""
    position: int
    """Physical offset of the record (not of its entry)."""
    size: int
    tags_code: int
    store_ms: int
    resent: bool
    delivered: bool = False
    """Whether the message first waited in another queue until its time."""
    copied: bool = False
    """Whether the message is a copy of one that was popped and not acknowledged."""
    ended: bool = False
    """Whether the message was a half message before. It was then committed, discarded, or stored again for a
    check."""

    due_ms: int = 0
    """When a timer message is due, in ms; 0 for other messages."""
    recalls: str = ""
    """Unique key of the timer message that this message recalls."""
    key: str = ""
    """Unique key of this message."""
    rolled: bool = False
    """Whether the message is a timer message that was put into the log again because it waits for a long
    time."""

    @property
    def unit(self) -> bytes:
        """The unit of the ConsumeQueue for this message (20 bytes)."""
        return UNIT.pack(self.position, self.size, self.tags_code)


class BrokerReplay:
    """The state of a broker after the entries up to `index`, as the judge computes it."""

    def __init__(self) -> None:
        self.index: int = -1
        self._tables: tuple[Oracle, ...] = (*oracles(), Notes())
        self.ends: dict[Queue, int] = {}
        """Next offset of each queue that ever had a message."""
        self.first_positions: dict[Queue, int] = {}
        self.messages: dict[Queue, list[Stored]] = {}
        """Maps a queue to its messages that were applied to this replay. They are complete if the replay
        began with the first entry."""
        self.deleted: dict[Queue, list[list[Stored]]] = {}
        """Maps a queue to the messages of deleted topics. There is one list for each earlier topic of that
        name."""
        self._position = 0
        """Log position of the last entry that was applied."""
        self.last_store_ms: int = 0

    def table(self, kind: type[Kept]) -> Kept:
        """The oracle of the given class. Each oracle stands for one table."""
        (found,) = (table for table in self._tables if isinstance(table, kind))
        return found

    @classmethod
    def from_parts(cls, parts: Mapping[str, bytes], index: int) -> BrokerReplay:
        """Make a replay that begins with a boundary snapshot of a broker."""
        values = {name: msgpack.unpackb(data, strict_map_key=False) for name, data in parts.items()}
        found = cls()
        found.index = index
        counters = values["counters"]
        for table in found._tables:
            if table.part in values:  # a missing part is empty
                table.load(values[table.part], counters)
        for topic, rows in values["queues"]:
            for queue, end, first in rows:
                found.ends[topic, queue], found.first_positions[topic, queue] = end, first
        found.last_store_ms = counters["last_store_time_ms"]
        if counters["skipped"]:
            raise InvariantViolated(f"operations were skipped up to entry {index}: nobody sent such")
        return found

    def encode(self) -> bytes:
        """The state as bytes. Equal states give equal bytes."""
        queues: dict[str, list[list[int]]] = {}
        for topic, queue in sorted(self.ends):
            row = [queue, self.ends[topic, queue], self.first_positions[topic, queue]]
            queues.setdefault(topic, []).append(row)
        value: dict[str, Any] = {
            "index": self.index,
            "queues": queues,
            "last_store_ms": self.last_store_ms,
        }
        for table in self._tables:
            value |= table.encode()
        return json.dumps(value, sort_keys=True).encode()

    def apply(self, header: EntryHeader, record: bytes) -> None:
        """Apply one entry. Raises InvariantViolated if a message does not continue its queue, if store time
        goes back, or if an operation is unknown."""
        self.index, self._position = header.index, header.pos
        if header.kind == Kind.MESSAGE:
            self._message(header, record)
        elif header.kind == Kind.SYSTEM:
            self._operation(msgpack.unpackb(decode_record(record).body, strict_map_key=False))

    def _message(self, header: EntryHeader, data: bytes) -> None:
        self._stored(header, decode_record(data))

    def _stored(self, header: EntryHeader, record: Record) -> None:
        queue = (record.topic, record.queue_id)
        position = header.pos + HEADER_SIZE
        if record.physical_offset != position:
            raise InvariantViolated(
                f"entry {header.index} is at {position} and says {record.physical_offset}"
            )
        end = self.ends.get(queue, 0)
        # The offsets of a queue have no gaps, and each is given once.
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
                _code(record.topic, properties),
                record.store_timestamp,
                RESEND in properties,
                (REAL_TOPIC in properties or "TIMER_OUT_MS" in properties) and record.topic not in UNREAD,
                FIRST_POP_TIME in properties,
                record.prepared_transaction_offset > 0,
                int(properties.get("TIMER_OUT_MS", 0)),
                properties.get("TIMER_DEL_UNIQKEY", ""),
                properties.get("UNIQ_KEY", ""),
                "TIMER_ROLL_TIMES" in properties,
            )
        )

    def _forget(self, op: dict[str, Any]) -> None:
        """Apply a deletion: remove everything of the topic, group or user. A later topic of the same name
        begins empty."""
        if op["op"] not in ("topic_delete", "group_delete", "user_delete"):
            return
        kind = op["op"].removesuffix("_delete")
        if op["op"] == "group_delete" and op["keep_offsets"]:
            kind = "config"
        for table in self._tables:
            table.forget(kind, op["name"])
        if kind != "topic":
            return
        if op["at"] > self._position:
            raise InvariantViolated(f"a deletion says that the log is its topic's up to behind it: {op}")
        for queue in [queue for queue in self.ends if queue[0] == op["name"]]:
            del self.ends[queue], self.first_positions[queue]
            self.deleted.setdefault(queue, []).append(self.messages.pop(queue, []))

    def _operation(self, op: dict[str, Any]) -> None:
        for table in self._tables:
            if op["op"] in table.operations:
                table.apply(op, self.ends)
                self._forget(op)
                return
        raise InvariantViolated(f"an operation that nobody knows: {op}")


def _code(topic: str, properties: Mapping[str, str]) -> int:
    """Third field of a message's unit in the ConsumeQueue. For a timer message it is twice the time at which
    the message is due, plus 1 for a recall. For other messages it is the hash of the tag."""
    if topic == TIMERS:
        return 2 * int(properties["TIMER_OUT_MS"]) + ("TIMER_DEL_UNIQKEY" in properties)
    return tags_code(properties.get(TAGS))
