"""Encoding of peer frames: `u32 rest | u16 header size | msgpack header | payload`, big-endian.

The header of a message is an array: type number, then its fields in order (payload left out). New fields
are added at the end: an older node ignores what it does not know, a newer one fills in the default. The
hello and the client protocol use maps (type 0 and 64 up). The payload of an Append is raw entry bytes,
LZ4-compressed when the header says so.
"""

from __future__ import annotations

import struct
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import lz4.block
import msgpack

from dledger.messages import (
    Append,
    Code,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Holding,
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
    VoteResult,
)

PROTOCOL_MIN = 1
PROTOCOL_MAX = 4
PROTOCOL_WITH_PROOF = 2
"""Whose hellos carry a nonce: bytes of an earlier connection are refused. The lowest spoken by default."""
PROTOCOL_WITH_PIECES = 4
"""Large frames may come in pieces, with others between them (`dledger.peers.outbox`)."""

PREFIX = struct.Struct(">IH")
MAX_HEADER = 0xFFFF
"""Bytes: its size is written in 16 bits."""
HELLO = 0
PIECE = 61
"""A part of a frame: `[size of the whole frame, where this part begins in it]`, the part as payload."""
PROOF = 62
"""The nonce of the accepting side's hello, sent back: what follows is no replay."""
ERROR = 63
CLIENT_REQUEST = 64
CLIENT_RESPONSE = 65
MAX_BODY = 4 * 1024 * 1024
"""Bytes of one body that a client appends."""

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
_NAMES = {type_: tuple(f.name for f in fields(type_) if f.name != "data") for type_ in _NUMBERS}
_REQUIRED = {
    type_: sum(1 for f in fields(type_) if f.name != "data" and f.default is MISSING) for type_ in _NUMBERS
}
_FIELDS_IN_1: dict[type[Any], int] = {VoteRequest: 6, Heartbeat: 2, HeartbeatResponse: 2, TimeoutNow: 2}
"""How many fields a message had in version 1, where it has more now."""
_ENUMS: dict[type[Any], tuple[int, type[Any]]] = {
    VoteResponse: (3, VoteResult),
    HeartbeatResponse: (1, Code),
    PushResponse: (1, Code),
    InstallResponse: (1, Code),
    RepairResponse: (3, Holding),
    ReadIndexResponse: (1, Code),
}

_TEXT_FIELDS = ("candidate", "leader", "node", "digest")
"""All other fields are numbers."""
_WITH_PAYLOAD = (Append, InstallSnapshot, RepairResponse)
"""Their field `data` is the payload of the frame."""
COMPRESS_ABOVE = 4096
"""Bytes of payload below which LZ4 is not worth a try."""
_MAX_PAYLOAD = 64 * 1024 * 1024
_NUMBER_LIMIT = 1 << 63
"""Terms, indexes and offsets are signed 64-bit numbers on disk."""


class WireError(Exception):
    """A frame that is not of this protocol: the connection is closed."""


class Frame(NamedTuple):
    """A decoded frame: type number, header (list or map), payload."""

    number: int
    header: Any
    payload: memoryview


def encode_frame(number: int, header: object, payload_size: int = 0) -> bytes:
    """Prefix and header; `payload_size` bytes must follow on the connection. ValueError: it does not fit.

    Whoever puts text of others into a header must bound it.
    """
    packed: bytes = msgpack.packb([number, header], use_bin_type=True)
    if len(packed) > MAX_HEADER:
        raise ValueError(f"frame {number}: a header of {len(packed)} bytes, at most {MAX_HEADER}")
    return PREFIX.pack(2 + len(packed) + payload_size, len(packed)) + packed


def encode_message(
    message: Message, *, compress: bool = False, version: int = PROTOCOL_MAX
) -> list[bytes | memoryview]:
    """Parts to write one after another, with the fields that `version` of the protocol knows."""
    type_ = type(message)
    names = _NAMES[type_]
    if version < 2 and type_ in _FIELDS_IN_1:
        names = names[: _FIELDS_IN_1[type_]]
    values: list[Any] = [getattr(message, name) for name in names]
    if type_ not in _WITH_PAYLOAD:
        return [encode_frame(_NUMBERS[type_], values)]
    payload = message.data  # type: ignore[union-attr]
    if compress and len(payload) >= COMPRESS_ABOVE:
        raw_size = len(payload)
        payload = lz4.block.compress(payload, store_size=False)
        values.append(raw_size)
    return [encode_frame(_NUMBERS[type_], values, len(payload)), payload]


def decode_message(frame: Frame) -> Message:
    """The message of a frame; WireError when fields are missing or of the wrong type."""
    type_ = _TYPES.get(frame.number)
    if type_ is None:
        raise WireError(f"unknown message type {frame.number}")
    values = frame.header
    names = _NAMES[type_]
    if not isinstance(values, list) or len(values) < _REQUIRED[type_]:
        raise WireError(f"{type_.__name__}: {len(values) if isinstance(values, list) else 'no'} fields")
    arguments = dict(zip(names, values, strict=False))
    for name, value in arguments.items():
        if not isinstance(value, str if name in _TEXT_FIELDS else int):
            raise WireError(f"{type_.__name__}.{name}: {type(value).__name__} is no field type")
        if isinstance(value, int) and not -1 <= value < _NUMBER_LIMIT:
            raise WireError(f"{type_.__name__}.{name}: {value} is out of range")
    if type_ in _ENUMS:
        place, enum = _ENUMS[type_]
        try:
            arguments[names[place]] = enum(values[place])
        except ValueError as error:
            raise WireError(str(error)) from error
    if type_ in _WITH_PAYLOAD:
        arguments["data"] = _payload(frame, values, len(names))
    message: Message = type_(**arguments)
    return message


def _payload(frame: Frame, values: list[Any], plain_fields: int) -> bytes:
    if len(values) <= plain_fields:
        return bytes(frame.payload)
    raw_size = values[plain_fields]
    # LZ4 makes at most 255 bytes of one: a small frame cannot ask for much memory.
    if not isinstance(raw_size, int) or not 0 <= raw_size <= min(_MAX_PAYLOAD, 255 * len(frame.payload)):
        raise WireError(f"payload: impossible raw size {str(raw_size)[:32]}")
    try:
        data: bytes = lz4.block.decompress(frame.payload, uncompressed_size=raw_size)
    except lz4.block.LZ4BlockError as error:
        raise WireError(f"payload is not LZ4: {error}") from error
    if len(data) != raw_size:
        raise WireError("payload has another size than announced")
    return data


def frame_size(data: memoryview, limit: int) -> int | None:
    """Whole size of the frame that starts here, None when fewer than 4 bytes are there."""
    if len(data) < 4:
        return None
    size = 4 + int.from_bytes(data[:4], "big")
    if size > limit or size < PREFIX.size:
        raise WireError(f"frame of {size} bytes (limit {limit})")
    return size


def decode_frame(data: memoryview) -> Frame:
    """One whole frame; WireError when it is malformed."""
    _, header_size = PREFIX.unpack_from(data)
    end = PREFIX.size + header_size
    if end > len(data):
        raise WireError("header longer than its frame")
    try:
        unpacked = msgpack.unpackb(data[PREFIX.size : end], raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list as key of a map
        raise WireError(f"header is not msgpack: {error}") from error
    if not isinstance(unpacked, list) or len(unpacked) < 2 or not isinstance(unpacked[0], int):
        raise WireError("header is not [type, fields]")
    return Frame(unpacked[0], unpacked[1], data[end:])
