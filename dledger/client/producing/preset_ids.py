"""Messages that get their unique id before they are sent, so that all copies of them have the same id."""

from __future__ import annotations

import hashlib

from dledger.client.message import Message
from dledger.formats.message_ids import encode_unique_id


class MessageWithId(Message):
    """A message that already has a unique id."""

    __slots__ = ("again", "unique_id")
    unique_id: str
    again: bool
    """Whether a broker may have stored the message already. If so, it is marked as a copy for the broker."""


def with_unique_id(message: Message, unique_id: str, again: bool = False) -> MessageWithId:
    """Copy a message and give the copy this unique id."""
    named = MessageWithId(
        message.topic,
        message.body,
        None,
        message.keys,
        message.properties,
        message.flag,
        message.delay_level,
        message.delay,
        message.deliver_at,
    )
    named.tags = message.tags  # as it is: it may be a copy of another client's message
    named.unique_id, named.again = unique_id, again
    return named


def unique_id_of(name: str) -> str:
    """Return the unique id (UNIQ_KEY) of a message that an application names itself. Equal names have equal
    ids, in every process.

    The id has RocketMQ's layout, 32 upper-case hex digits, of which 24 are a SHA-256 of the name. The other
    8 are the field of the time. They are 0, the beginning of a month: tools read the time from the id and
    search for the message from then on.
    """
    digest = hashlib.sha256(name.encode()).digest()
    pid, salt, counter = (int.from_bytes(part, "big") for part in (digest[4:6], digest[6:10], digest[10:12]))
    return encode_unique_id(digest[:4], pid, salt, 0, counter)
