"""Messages that get their unique id before they are sent, so that all copies of them have the same id."""

from __future__ import annotations

from dledger.client.message import Message


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
