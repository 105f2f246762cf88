"""Messages in transit: the text of properties, compression, send headers, and records as brokers store
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from dledger._fast import FAST
from dledger.client.compression import CorruptBody, NotInstalled, decompress
from dledger.client.errors import InvalidMessage, LibraryMissing
from dledger.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    check_flag,
    check_tags,
    comes_later,
    joined_keys,
)
from dledger.client.namespaces import without_namespace
from dledger.formats import record as records
from dledger.formats.message_ids import encode_message_id, host_text
from dledger.formats.properties import (
    DELAY,
    IDEMPOTENT,
    KEYS,
    MAX_PROPERTIES_SIZE,
    RESEND,
    RETRY_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)

DEFAULT_TOPIC = "TBW102"
"""Name of a topic from which brokers take the route and the number of queues for a new topic that is created
because a producer sends to it."""
RETRY_PREFIX = "%RETRY%"
RESEND_TEXT = f"{RESEND}\x011\x02"

MAX_DELAY_LEVEL = 64
"""Largest delay level that may be given. Brokers have 18 levels, or as many as their `messageDelayLevel`
lists, and treat a higher one as their highest."""
MAX_DELAY = timedelta(days=100 * 365)
"""Largest delay that may be given: the delivery time must still be a valid date. Brokers accept only a few
days (`timerMaxDelaySec`)."""
_RESERVED = frozenset(
    (DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TAGS, KEYS, UNIQ_KEY, WAIT, RESEND)
)
_TEXT = msgspec.json.Encoder()
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def properties_text(message: Message, unique_id: str) -> str:
    """Encode the properties of a message with its unique id. Raises InvalidMessage if they cannot be
    encoded."""
    text = f"{UNIQ_KEY}\x01{unique_id}\x02{WAIT}\x01true\x02"
    flag = message.flag
    if type(flag) is not int or flag:
        check_flag(flag)
    waits = comes_later(message)
    if message.tags is None and message.keys is None and message.properties is None and not waits:
        return text
    named = _waiting(message) if waits else {}
    if message.tags:
        check_tags(message.tags)  # a message may have been changed after it was made
        named[TAGS] = message.tags
    if message.keys:
        named[KEYS] = joined_keys(message.keys)
    properties = message.properties or {}
    if not isinstance(properties, Mapping):
        raise InvalidMessage(f"properties={properties!r}: give a dictionary of texts")
    for name, value in properties.items():
        if name in _RESERVED or (name == IDEMPOTENT and type(message) is Message):  # not one with an id
            fields = "tags=, keys=, delay_level=, delay= or deliver_at="
            raise InvalidMessage(f"the property {name!r} is reserved by RocketMQ: use {fields}, or rename it")
        if not name:
            raise InvalidMessage("a property has an empty name")
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(
                f"the property {name!r} is {type(value).__name__}: give names and values as text"
            )
        named[name] = value
    try:
        text += encode_properties(named)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"properties must be text without \\x01 and \\x02: {error}") from error
    if size > MAX_PROPERTIES_SIZE - len(RESEND_TEXT):
        raise InvalidMessage(f"the properties have {size} bytes; the limit is {MAX_PROPERTIES_SIZE - 16}")
    return text


def _waiting(message: Message) -> dict[str, str]:
    """A dict with the one property that holds the delay or the delivery time of a message; empty if it has
    none. Raises InvalidMessage."""
    level, delay, deliver_at = message.delay_level, message.delay, message.deliver_at
    if bool(level) + (delay is not None) + (deliver_at is not None) > 1:
        raise InvalidMessage("give only one of delay_level, delay and deliver_at")
    if delay is not None:
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= MAX_DELAY:
            raise InvalidMessage(f"delay={delay!r}: give a timedelta from 0 to {MAX_DELAY.days} days")
        return {TIMER_DELAY_MS: str(-(-delay // _MILLISECOND))}
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime) or deliver_at.tzinfo is None:
            raise InvalidMessage(f"deliver_at={deliver_at!r}: give a datetime with a time zone")
        return {TIMER_DELIVER_MS: str(-(-(deliver_at - _EPOCH) // _MILLISECOND))}
    if type(level) is not int or not 0 < level <= MAX_DELAY_LEVEL:
        raise InvalidMessage(f"delay_level={level!r}: give 0 to {MAX_DELAY_LEVEL}")
    return {DELAY: str(level)}


def decompressed(body: bytes, sys_flag: int) -> tuple[bytes, int]:
    """Decompress a body, and return it with the flags, from which those of the compression are removed. A
    damaged body is returned unchanged with all its flags, so that the application can see the damage. Raises
    LibraryMissing if the body is intact but the library for it is not installed."""
    if sys_flag & records.COMPRESSED:
        try:
            plain = decompress(body, sys_flag)
        except CorruptBody:
            return body, sys_flag
        except NotInstalled as error:
            raise LibraryMissing(str(error)) from error
        return plain, sys_flag & ~(records.COMPRESSED | records.COMPRESSION_TYPE_MASK)
    return body, sys_flag


@dataclass(frozen=True, slots=True)
class SendHeader:
    """The encoded part of a send header that is the same for all messages of one producer to one queue.

    Fields have the one-letter names of SendMessageRequestHeaderV2. Numbers are sent as text, because the
    signature of a request is computed from their text. The fields that differ from message to message come
    last.
    """

    prefix: bytes

    @staticmethod
    def of(group: str, queue: MessageQueue, default_queues: int) -> SendHeader:
        """Encode the fields that do not change."""
        fixed = {
            "a": group,
            "b": queue.topic,
            "c": DEFAULT_TOPIC,
            "d": str(default_queues),
            "e": str(queue.queue_id),
            "j": "0",
            "k": "false",
            "n": queue.broker_name,
        }
        return SendHeader(_TEXT.encode(fixed)[:-1])

    def encode(
        self, properties: str, sys_flag: int, flag: int, born_ms: int, batch: bool = False
    ) -> msgspec.Raw:
        """Encode all fields as JSON, the form that `remoting` takes as a header."""
        return msgspec.Raw(
            b'%b,"f":"%d","g":"%d","h":"%d","m":"%b","i":%b}'
            % (
                self.prefix,
                sys_flag,
                born_ms,
                flag,
                b"true" if batch else b"false",
                _TEXT.encode(properties),
            )
        )


def received_all(data: bytes, broker_name: str, namespace: str = "") -> list[ReceivedMessage]:
    """Decode the messages in the body of an answer, which holds one record after the other. Each message is
    made as by `received`. Raises CorruptRecord or LibraryMissing."""
    messages: list[ReceivedMessage] = []
    at, end = 0, len(data)
    while at < end:
        if FAST is not None and not namespace:
            at = FAST.read_messages(data, at, broker_name, ReceivedMessage, MessageQueue, messages)
            if at == end:
                break
        record = records.decode_record(data, at)
        messages.append(received(record, broker_name, namespace))
        at += record.size
    return messages


def received(record: records.Record, broker_name: str, namespace: str = "") -> ReceivedMessage:
    """Make a message from a record of a pull answer. A damaged compressed body stays unchanged."""
    sys_flag, body = record.sys_flag, record.body
    if sys_flag & records.COMPRESSED:
        body, sys_flag = decompressed(body, sys_flag)
    properties = decode_properties(record.properties)
    offset_id = encode_message_id(record.store_host, record.physical_offset)
    topic = record.topic
    if topic.startswith(RETRY_PREFIX):
        topic = properties.get(RETRY_TOPIC, topic)
    if namespace:
        topic = without_namespace(topic, namespace)
    return ReceivedMessage(
        topic,
        body,
        MessageQueue(record.topic, broker_name, record.queue_id),
        record.queue_offset,
        properties.get(UNIQ_KEY, offset_id),
        offset_id,
        properties,
        record.flag,
        record.reconsume_times,
        record.born_timestamp,
        record.store_timestamp,
        host_text(record.born_host),
        host_text(record.store_host),
        record.physical_offset,
        sys_flag,
    )
