"""Encoding of peer frames: `u32 rest | u16 header size | msgpack header | payload`, big-endian. `rest` is the
number of bytes after it.

The header of a message is an array of the type number and the fields in order, without the payload. New
fields are added at the end. An older node ignores fields that it does not know, and a newer node fills in
defaults for fields that are missing. The hello (type 0) and the client protocol (types from 64 on) use maps.
The payload of an Append is raw entry bytes, compressed with LZ4 if the header says so.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import lz4.block
import msgpack
import msgspec

from dledger.messages import (
    Append,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    InstallResponse,
    InstallSnapshot,
    Message,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    RepairRequest,
    RepairResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from dledger.protocol import PROTOCOL_MAX

PREFIX = struct.Struct(">IH")
MAX_HEADER = 0xFFFF
"""Limit, in bytes, of a header, because its size is written in 16 bits."""
HELLO = 0
PIECE = 61
"""Number of the frame that carries a part of another frame. Its header is `[size of the whole frame, offset
of this part]`; its payload is the part."""
PROOF = 62
"""Number of the frame that returns the nonce of the accepting side's hello. It proves that what follows is no
replay."""
ERROR = 63
CLIENT_REQUEST = 64
CLIENT_RESPONSE = 65
MAX_BODY = 4 * 1024 * 1024
"""Limit, in bytes, of one body that a client may append; a larger one is refused."""

_NUMBERS: dict[type[Any], int] = {
    VoteRequest: 1,
    VoteResponse: 2,
    Heartbeat: 3,
    HeartbeatResponse: 4,
    TimeoutNow: 5,
    Compare: 6,
    Truncate: 7,
    Append: 8,
    Commit: 9,
    PushResponse: 10,
    InstallSnapshot: 11,
    InstallResponse: 12,
    RepairRequest: 13,
    RepairResponse: 14,
    ReadIndexRequest: 15,
    ReadIndexResponse: 16,
}
_TYPES = {number: type_ for type_, number in _NUMBERS.items()}
_FIELDS_IN_1: dict[type[Any], int] = {VoteRequest: 6, Heartbeat: 2, HeartbeatResponse: 2, TimeoutNow: 2}
"""Maps the type of a message to the number of fields that it had in version 1, for messages that have more
now."""
_WITH_PAYLOAD = (Append, InstallSnapshot, RepairResponse)
"""Messages whose last field, `data`, is the payload of the frame."""


def _header_of(type_: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Make the header type of a message with a payload. It has the other fields, and the original size if the
    payload is compressed."""
    fields: list[Any] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(type_)[:-1]
    ]
    fields.append(("raw_size", int | None, None))
    return msgspec.defstruct(f"{type_.__name__}Header", fields, array_like=True)


_DECODERS = {
    number: msgspec.msgpack.Decoder(_header_of(type_) if type_ in _WITH_PAYLOAD else type_)
    for number, type_ in _TYPES.items()
}
_ENCODE = msgspec.msgpack.Encoder().encode
_PAIR = 0x92
"""First byte that msgpack writes for an array of two items."""
_MAX_NUMBER = 0x7F
"""Highest number of a frame that msgpack writes as one byte."""
COMPRESS_ABOVE = 4096
"""Smallest payload, in bytes, for which LZ4 is tried."""
_MAX_PAYLOAD = 64 * 1024 * 1024


class WireError(Exception):
    """A frame does not belong to this protocol; the connection is closed."""


class Frame(NamedTuple):
    """A frame whose header is not decoded yet: its type number, the packed rest of the header, and the
    payload."""

    number: int
    packed: memoryview
    payload: memoryview

    def header(self) -> Any:
        """Decode the rest of the header after the number: a list, a map or a text. Raises WireError if it is
        malformed."""
        try:
            return msgpack.unpackb(self.packed, raw=False, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list as key of a map
            raise WireError(f"header is not msgpack: {error}") from error


def encode_frame(number: int, header: object, payload_size: int = 0) -> bytes:
    """Encode prefix and header. The caller must send `payload_size` bytes after them. Raises ValueError if
    the header or the payload is too large. A caller that puts received text into a header must limit its
    length.
    """
    if not 0 <= number <= _MAX_NUMBER:
        raise ValueError(f"frame {number}: numbers go to {_MAX_NUMBER}")
    packed: bytes = msgpack.packb([number, header], use_bin_type=True)
    if len(packed) > MAX_HEADER:
        raise ValueError(f"frame {number}: the header has {len(packed)} bytes; the limit is {MAX_HEADER}")
    return PREFIX.pack(2 + len(packed) + payload_size, len(packed)) + packed


def encode_message(
    message: Message, *, compress: bool = False, version: int = PROTOCOL_MAX
) -> list[bytes | memoryview]:
    """Encode as parts that are to be written one after another, with the fields that version `version` of the
    protocol knows."""
    type_ = type(message)
    number = _NUMBERS[type_]
    if type_ not in _WITH_PAYLOAD:
        values: object = message
        if version < 2 and type_ in _FIELDS_IN_1:
            values = msgspec.structs.astuple(message)[: _FIELDS_IN_1[type_]]
        return [_frame_of(number, values, 0)]
    *fields, payload = msgspec.structs.astuple(message)
    if compress and len(payload) >= COMPRESS_ABOVE:
        fields.append(len(payload))
        payload = lz4.block.compress(payload, store_size=False)
    return [_frame_of(number, fields, len(payload)), payload]


def _frame_of(number: int, values: object, payload_size: int) -> bytes:
    packed = _ENCODE(values)
    size = 2 + len(packed)
    return PREFIX.pack(2 + size + payload_size, size) + bytes((_PAIR, number)) + packed


def decode_message(frame: Frame) -> Message:
    """Decode the message of a frame. Raises WireError if fields are missing, of the wrong type or out of
    range."""
    number, packed, payload = frame
    decoder = _DECODERS.get(number)
    if decoder is None:
        raise WireError(f"unknown message type {number}")
    try:
        message: Any = decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"{_TYPES[number].__name__}: {error}") from error
    type_ = _TYPES[number]
    if type_ in _WITH_PAYLOAD:
        *fields, raw_size = msgspec.structs.astuple(message)
        message = type_(*fields, bytes(payload) if raw_size is None else _unpacked(payload, raw_size))
    return message  # type: ignore[no-any-return]


def _unpacked(payload: memoryview, raw_size: int) -> bytes:
    # LZ4 makes at most 255 bytes out of one byte, so a small frame cannot need much memory.
    if not 0 <= raw_size <= min(_MAX_PAYLOAD, 255 * len(payload)):
        raise WireError(f"the payload announces an impossible size {str(raw_size)[:32]}")
    try:
        data: bytes = lz4.block.decompress(payload, uncompressed_size=raw_size)
    except lz4.block.LZ4BlockError as error:
        raise WireError(f"payload is not LZ4: {error}") from error
    if len(data) != raw_size:
        raise WireError("the payload has another size than announced")
    return data


def frame_size(data: memoryview, limit: int) -> int | None:
    """Return the whole size of the frame that begins with this data. None if fewer than 4 bytes have
    arrived."""
    if len(data) < 4:
        return None
    size = 4 + int.from_bytes(data[:4], "big")
    if size > limit or size < PREFIX.size:
        raise WireError(f"frame of {size} bytes (limit {limit})")
    return size


def decode_frame(data: memoryview) -> Frame:
    """Decode one whole frame. Raises WireError if it is malformed."""
    _, header_size = PREFIX.unpack_from(data)
    end = PREFIX.size + header_size
    if end > len(data):
        raise WireError("header longer than its frame")
    at = PREFIX.size
    if header_size < 3 or data[at] != _PAIR or data[at + 1] > _MAX_NUMBER:
        raise WireError("header is not [type, fields]")
    return Frame(data[at + 1], data[at + 2 : end], data[end:])
