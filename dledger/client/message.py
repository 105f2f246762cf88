"""Values that an application sends and receives: messages, queues, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple, cast

import msgspec

from dledger.client.errors import InvalidMessage
from dledger.formats.properties import KEYS, TAGS, UNIQ_KEY

MAX_TOPIC_LENGTH = 127
"""Longest topic name in characters. The topics `%RETRY%...` and `%DLQ%...` of groups may have 255."""
MAX_GROUP_LENGTH = 120
"""Longest name of a group in characters, with its namespace. Brokers refuse longer ones
(GROUP_MAX_LENGTH)."""
MAX_TOPIC_OF_GROUP_LENGTH = 255
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
"""Default limit of a body in bytes, before compression (maxMessageSize)."""

Body = bytes | bytearray | memoryview
"""Types that a body may have."""

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|")


class MessageQueue(NamedTuple):
    """One queue of a topic. Messages of one queue have an order. Queues sort as in RocketMQ (topic, broker
    name, queue id)."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(Enum):
    """How a message was stored (SendStatus). All four values mean that the message is stored. This client
    asks brokers for OK."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(NamedTuple):
    """The acknowledgement of a message.

    `message_id` is the unique id that this client gave (UNIQ_KEY), `offset_message_id` is the id by which the
    broker finds the message, and `queue_offset` is its position in the queue. For a batch, `message_id` and
    `queue_offset` are those of the first message, and `offset_message_id` holds all ids, separated by commas.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    """The handle for `recall`, for a message that waits for its delivery time (`delay`, `deliver_at`)."""
    keys_looked_up: int = 0
    """For a batch with idempotency keys: how many of them the broker has looked up before it stored the
    batch. Only batches of Spark's sink have such keys."""


@dataclass(slots=True, init=False)
class Message:
    """A message to send.

    `body` is bytes; a bytearray or memoryview is copied. `tags` is one tag by which consumers can filter.
    `keys` is one key, or several, by which the message can be found. Raises InvalidMessage if they have
    another type. `properties` are the application's own; RocketMQ's names (TAGS, KEYS, UNIQ_KEY ...) are set
    through the other fields. `flag` is a number that the system does not interpret.

    One of three fields can postpone the delivery; at most one of them may be set. `delay_level` postpones it
    by the time that the brokers' `messageDelayLevel` has for this level: by default 1 s, 5 s, 10 s, 30 s ...
    2 h for levels 1 to 18; 0 means at once. `delay` postpones it by this time, on the broker's clock.
    `deliver_at` postpones it until this datetime, which must have a time zone. Brokers accept up to 3 days
    (`timerMaxDelaySec`), and deliver at the next whole second (`timerPrecisionMs`), never earlier.

    >>> Message("orders", b"body", tags="paid", keys=["order-1", "customer-7"]).keys
    'order-1 customer-7'
    """

    topic: str
    body: bytes
    tags: str | None
    keys: str | None
    properties: Mapping[str, str] | None
    flag: int
    delay_level: int
    delay: timedelta | None
    deliver_at: datetime | None

    def __init__(
        self,
        topic: str,
        body: Body,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        self.topic = topic
        self.body = body if type(body) is bytes else _as_bytes(body)
        if tags is not None:
            check_new_tags(tags)
        self.tags = tags
        self.keys = keys if keys is None or type(keys) is str else joined_keys(keys)
        self.properties = properties
        self.flag = flag
        self.delay_level = delay_level
        self.delay = delay
        self.deliver_at = deliver_at


QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""A function that is called with the sorted queues of the topic and the message, and returns one of the
queues (MessageQueueSelector). It runs on the client's loop and must be short. Failover does not change its
choice."""
QueueChoice = MessageQueue | QueueSelector
"""A queue, or the function that chooses it."""


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message as a consumer receives it; the body is decompressed.

    Times are in ms since the epoch, hosts are "ip:port". `message_id` is the sender's unique id (UNIQ_KEY),
    or the offset message id when the sender gave none.
    """

    # A struct: to make a frozen dataclass with so many fields takes longer than to decode them.

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    properties: Mapping[str, str]
    flag: int
    reconsume_times: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    physical_offset: int
    sys_flag: int

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _SHOWN)
        return f"{type(self).__name__}({shown})"

    @property
    def tags(self) -> str | None:
        """The tag of the message; None if it has none."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys of the message; empty if it has none."""
        return self.properties.get(KEYS, "").split()

    @property
    def unique_key(self) -> str | None:
        """The sender's unique id; None if the sender gave none."""
        return self.properties.get(UNIQ_KEY)


_SHOWN = tuple(name for name in ReceivedMessage.__struct_fields__ if name not in ("properties", "sys_flag"))


def comes_later(message: Message) -> bool:
    """Whether the message has a delay or a delivery time. Such a message cannot be part of a batch or of a
    transaction."""
    return bool(message.delay_level) or message.delay is not None or message.deliver_at is not None


def check_topic(topic: str) -> None:
    """Raise InvalidMessage unless this is a legal topic name (`^[%|a-zA-Z0-9_-]+$`, at most 127
    characters)."""
    longer = isinstance(topic, str) and topic.startswith("%")
    _check_name("topic", topic, MAX_TOPIC_OF_GROUP_LENGTH if longer else MAX_TOPIC_LENGTH)


def check_group(group: str) -> None:
    """Raise InvalidMessage unless this is a legal name of a group."""
    _check_name("group", group, MAX_GROUP_LENGTH)


def _check_name(kind: str, name: str, longest: int) -> None:
    if not isinstance(name, str):
        raise InvalidMessage(f"the {kind} name {name!r} is {type(name).__name__}: give text")
    if not name:
        raise InvalidMessage(f"the {kind} name is empty: give the name of a {kind}")
    if len(name) > longest:
        raise InvalidMessage(
            f"the {kind} name has {len(name)} characters; the limit of the brokers is {longest}"
        )
    wrong = sorted(set(name) - _NAME_CHARACTERS)
    if wrong:
        raise InvalidMessage(
            f"the {kind} name {name!r} holds {wrong[0]!r}: use letters, digits and any of _ - % |"
        )


def check_flag(flag: object) -> None:
    """Raise InvalidMessage unless the flag is a whole number of 32 bits."""
    if not isinstance(flag, int) or not -(1 << 31) <= flag < 1 << 31:
        raise InvalidMessage(f"flag={flag!r}: give a whole number of 32 bits")


def check_ordering_key(key: object) -> None:
    """Raise InvalidMessage unless the key is None, or a text that can be encoded."""
    if key is None:
        return
    if not isinstance(key, str):
        raise InvalidMessage(f"ordering_key={key!r} is {type(key).__name__}: give text, as str(customer)")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"ordering_key={key!r} cannot be encoded: {error}") from error


def check_body(body: bytes, max_size: int) -> None:
    """Raise InvalidMessage unless the body is non-empty bytes within the limit."""
    if type(body) is not bytes:
        raise InvalidMessage(f"the body is {type(body).__name__}: give bytes, for example text.encode()")
    if not body:
        raise InvalidMessage("the body is empty, and brokers refuse messages without a body")
    if len(body) > max_size:
        raise InvalidMessage(
            f"the body has {len(body)} bytes; the limit is {max_size} (max_message_size): split it or "
            "store it elsewhere"
        )


def _as_bytes(body: object) -> bytes:
    """The body as bytes. An object that is not bytes-like is returned as it is; `check_body` refuses it when
    it is sent."""
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else cast(bytes, body)


def check_tags(tags: object) -> None:
    """Raise InvalidMessage unless this is one tag, given as text."""
    if not isinstance(tags, str):
        raise InvalidMessage(
            f"tags={tags!r} is {type(tags).__name__}: a message has one tag, given as text "
            "(tags='paid'); for further words to find it by, use keys="
        )


def check_new_tags(tags: object) -> None:
    """Raise InvalidMessage unless this is one tag that a subscription can name: it has no `||` and no blanks
    around it, and is not `*`.

    A copy of an existing message is not checked in this way, because its `tags` are set after the copy was
    made.
    """
    check_tags(tags)
    assert isinstance(tags, str)
    if tags.isalnum():
        return
    if tags in ("", "*") or "||" in tags or tags != tags.strip() or not tags.isprintable():
        raise InvalidMessage(
            f"tags={tags!r}: no subscription can select this tag. Give a tag without || and control "
            "characters, which is not '*' and has no blanks at its ends, or leave tags= out"
        )


def joined_keys(keys: object) -> str:
    """Join keys into the text that is sent, in which blanks separate them. `keys` is that text itself, or a
    sequence of keys.

    Raises InvalidMessage for anything else, and for a key of a sequence that is empty or contains blanks.
    Such a key would be stored as several keys, and a query for it would find nothing.
    """
    if isinstance(keys, str):
        return keys
    given = list(keys) if isinstance(keys, Iterable) else []
    texts = [key for key in given if isinstance(key, str)]
    if not isinstance(keys, Iterable) or len(texts) < len(given):
        raise InvalidMessage(f"keys={keys!r}: give a text, or a sequence of texts")
    for key in texts:
        if key.split() != [key]:
            raise InvalidMessage(
                f"keys={keys!r}: the key {key!r} is empty or has blanks. Keys are separated by "
                "blanks, so no query would find it: replace the blanks, or give each word as its own "
                "key"
            )
    return " ".join(texts)


def batch_of(messages: object) -> list[Message]:
    """The messages of a batch as a list. They may be given as any iterable; raises InvalidMessage for
    anything else."""
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"send_batch({type(messages).__name__}): give a list of Messages")
    return list(messages)


def as_message(
    message: object,
    body: Body | QueueChoice | None,
    queue: QueueChoice | None,
    tags: str | None,
    keys: str | Sequence[str] | None,
    properties: Mapping[str, str] | None,
) -> tuple[Message, QueueChoice | None]:
    """Interpret the arguments of `send`: either a message, perhaps followed by its queue, or a topic and a
    body. Returns the message and its queue."""
    if isinstance(message, Message):
        if queue is None and (isinstance(body, MessageQueue) or callable(body)):
            body, queue = None, body
        if body is not None or tags or keys or properties:
            raise InvalidMessage(
                "a Message has its own body, tags, keys and properties: give them in Message(topic, "
                "body, ...)"
            )
        return message, queue
    if not isinstance(message, str) or not isinstance(body, Body):
        raise InvalidMessage(
            f"send({type(message).__name__}, {type(body).__name__}): give a Message, or a topic and a body"
        )
    return Message(message, body, tags, keys, properties), queue
