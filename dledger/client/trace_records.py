"""The records of message trace as RocketMQ writes and reads them (TraceDataEncoder). Pure.

Fields are separated by \\x01 and records end with \\x02. A missing text is written as `null`, as in Java,
because readers in Java lose empty fields at the end of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP = "_INNER_TRACE_PRODUCER"
FIELD = "\x01"
RECORD = "\x02"
NOTHING = "null"

NORMAL_MSG, TRANS_MSG_HALF, TRANS_MSG_COMMIT, DELAY_MSG, ORDER_MSG = range(5)
"""Kinds of messages (MessageType)."""


@dataclass(frozen=True, slots=True)
class Pub:
    """A message was sent, or could not be sent. Times are in ms since the epoch; `cost_ms` is the time that
    the send took."""

    time_ms: int
    region_id: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_length: int
    cost_ms: int
    message_type: int
    offset_message_id: str
    success: bool

    def fields(self) -> tuple[object, ...]:
        """The fields in the order in which they are sent."""
        return (
            "Pub", self.time_ms, self.region_id, self.group, self.topic, self.message_id, self.tags,
            self.keys, self.store_host, self.body_length, self.cost_ms, self.message_type,
            self.offset_message_id, _boolean(self.success),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubBefore:
    """The record that a listener is about to be called with a message. `request_id` identifies the call."""

    time_ms: int
    region_id: str
    group: str
    topic: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str

    def fields(self) -> tuple[object, ...]:
        """The fields in the order in which they are sent, without the topic."""
        return (
            "SubBefore", self.time_ms, self.region_id, self.group, self.request_id, self.message_id,
            self.retry_times, self.keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubAfter:
    """The record that a listener has returned. `code` is the number of a ConsumeReturnType."""

    time_ms: int
    group: str
    topic: str
    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str
    code: int

    def fields(self) -> tuple[object, ...]:
        """The fields in the order in which they are sent, without the topic."""
        return (
            "SubAfter", self.request_id, self.message_id, self.cost_ms, _boolean(self.success), self.keys,
            self.code, self.time_ms, self.group,
        )  # fmt: skip


TraceRecord = Pub | SubBefore | SubAfter


def encode(record: TraceRecord) -> str:
    """The text of one record."""
    texts = (str(value) or NOTHING for value in record.fields())
    return FIELD.join(text.replace(FIELD, "?").replace(RECORD, "?") for text in texts) + RECORD


def keys_of(record: TraceRecord) -> list[str]:
    """The keys by which a record is found: the message id, and the keys of the message."""
    return [record.message_id, *record.keys.split()]


def decode(text: str) -> Iterator[list[str]]:
    """Decode a text with several records. Yields the fields of each record; the first field is its kind."""
    for record in text.split(RECORD):
        if record:
            yield record.split(FIELD)


def _boolean(value: bool) -> str:
    return "true" if value else "false"
