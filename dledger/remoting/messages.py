"""The body of 320 SEND_BATCH_MESSAGE: messages without queue and offsets (MessageDecoder.encodeMessages).

Each message has: size (4), magic (4, zero), body CRC (4, zero), flag (4), body size (4), body, properties
size (2), properties. The broker makes a full record of each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dledger.formats.properties import MAX_PROPERTIES_SIZE, encode_properties
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import BadBody

_HEAD = struct.Struct(">iiiii")
_HEAD_SIZE = 20
_SHORT = struct.Struct(">h")
MIN_SIZE = _HEAD_SIZE + 2
MAX_BATCH_MESSAGES = 65536
"""Largest number of messages in one batch; a batch with more is refused."""


class BatchMessage(NamedTuple):
    """One message of a batch; `properties` is the encoded text (formats.properties) in UTF-8."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """Encode the body. Raises ValueError if properties are longer than their length field allows."""
    parts = []
    for flag, body, properties in messages:
        if len(properties) > MAX_PROPERTIES_SIZE:
            raise ValueError(
                f"the properties have {len(properties)} bytes; the limit is {MAX_PROPERTIES_SIZE}"
            )
        size = MIN_SIZE + len(body) + len(properties)
        parts += [
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _SHORT.pack(len(properties)),
            properties,
        ]
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchMessage]:
    """Decode what `encode_batch` encodes. Raises BadBody (code 13 MESSAGE_ILLEGAL) if the lengths do not add
    up."""
    messages: list[BatchMessage] = []
    at, end = 0, len(data)
    unpack, short = _HEAD.unpack_from, _SHORT.unpack_from
    try:
        while at < end:
            size, _, _, flag, body_size = unpack(data, at)
            body_end = at + _HEAD_SIZE + body_size
            (properties_size,) = short(data, body_end)
            stop = body_end + 2 + properties_size
            if body_size < 0 or properties_size < 0 or stop != at + size or stop > end:
                raise _illegal(f"message {len(messages)} of the batch has lengths that do not add up")
            messages.append(BatchMessage(flag, data[at + _HEAD_SIZE : body_end], data[body_end + 2 : stop]))
            at = stop
    except struct.error as error:
        raise _illegal(f"message {len(messages)} of the batch is cut off") from error
    if len(messages) > MAX_BATCH_MESSAGES:
        raise _illegal(f"the batch has {len(messages)} messages; the limit is {MAX_BATCH_MESSAGES}")
    return messages


def batch_message(body: bytes, properties: Mapping[str, str], flag: int = 0) -> BatchMessage:
    """Make a message of a batch from properties that are given as a mapping."""
    return BatchMessage(flag, body, encode_properties(properties).encode())


def _illegal(remark: str) -> BadBody:
    return BadBody(remark, ResponseCode.MESSAGE_ILLEGAL)
