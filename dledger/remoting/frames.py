"""Encodes commands to bytes and decodes them, in both serializations. Pure: no I/O, no clock.

``` length (4)   = 4 + header + body H (4)        = serialization type in the high byte (0 JSON, 1 ROCKETMQ),
length of the header below header, body ```

Responses are always written with extFields (the Java client reads them in send responses) whose values are
text (the Go client drops frames with numbers, the C++ client reads them as 0). Servers give their language as
JAVA: the recorded C++, Go and Node clients have seen only that, and nothing depends on it. Our client gives
PYTHON, which is in Java's enum.

Binary headers have 16 bits for the code. Java writes a larger code modulo 65536, so 200050 is sent as 3442.
This module maps it back to 200050.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

import msgspec

from dledger.remoting.codes import VERSION, LanguageCode, RequestCode
from dledger.remoting.commands import (
    DECODE_ERRORS,
    FLAG_RESPONSE,
    NO_FIELDS,
    Request,
    SerializeType,
    fields_as_text,
)
from dledger.remoting.errors import FrameError
from dledger.remoting.limits import MAX_FRAME_SIZE, MAX_REQUEST_HEADER

HEAD = struct.Struct(">II")
HEAD_SIZE = 8
MAX_HEADER_SIZE = 0xFFFFFF
"""Limit, in bytes, of a header: its length field has 24 bits."""
MAX_REMARK = 4096
"""Limit, in characters, of the remark of an answer; the rest is cut off. A remark may quote the request,
which may fill a whole frame."""

CLIENT_LANGUAGE = LanguageCode.PYTHON
SERVER_LANGUAGE = LanguageCode.JAVA

_LENGTH = struct.Struct(">I")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BINARY = struct.Struct(">hBhiii")
"""The fields code, language, version, opaque, flag and length of the remark."""

_HEADER_DECODER = msgspec.json.Decoder(Request, strict=False)
_ENCODER = msgspec.json.Encoder()
_LANGUAGES = {language.value: language.name for language in LanguageCode}
_JSON_LANGUAGES = {language: language.name.encode() for language in LanguageCode}
_JSON = SerializeType.JSON
_WIDE_CODES = {code & 0xFFFF: code.value for code in RequestCode if code > 0x7FFF}

JSON_TAIL: bytes = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
"""End of the JSON header of an answer, as Java writes it. It is complete because the Rust client accepts only
headers with all of these fields."""
Fields = msgspec.Struct | Mapping[str, str] | None
"""Header fields of an outgoing command: a struct of `remoting.headers`, or a map of names to texts."""


# --- encoding -----------------------------------------------------------------------------------------


def encode_response_json(
    opaque: int,
    code: int,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    body_size: int = 0,
) -> bytes:
    """Encode a response frame without its body, that is its lengths and its JSON header. The caller must send
    `body_size` bytes after it. Raises ValueError if the header is too large for its length field."""
    header = b'{"code":%d,"extFields":%b,"flag":1,"language":"JAVA","opaque":%d%b%b' % (
        code,
        b"{}" if not ext else _encode_json(ext),
        opaque,
        b"" if remark is None else b',"remark":' + _encode_json(remark[:MAX_REMARK]),
        JSON_TAIL,
    )
    size = _checked_size(header)
    return HEAD.pack(4 + size + body_size, size) + header


def encode_response_binary(
    opaque: int,
    code: int,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    body_size: int = 0,
) -> bytes:
    """Encode a response frame without its body, in the ROCKETMQ serialization."""
    remark = remark and remark[:MAX_REMARK]
    header = encode_binary_header(code, SERVER_LANGUAGE, opaque, FLAG_RESPONSE, remark, ext or {})
    size = _checked_size(header)
    return HEAD.pack(4 + size + body_size, SerializeType.ROCKETMQ << 24 | size) + header


def _checked_size(header: bytes) -> int:
    """Return the size of a header. Raises ValueError if it does not fit into its 24 bits; it would change the
    serialization type before it."""
    if len(header) > MAX_HEADER_SIZE:
        raise ValueError(f"the header has {len(header)} bytes; the limit is {MAX_HEADER_SIZE}")
    return len(header)


def encode_response(
    request: Request,
    code: int,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    body_size: int = 0,
) -> bytes:
    """Encode a response frame without its body, in the serialization of the request."""
    if request.serialize is _JSON:
        return encode_response_json(request.opaque, code, ext, remark, body_size)
    return encode_response_binary(request.opaque, code, ext, remark, body_size)


def encode_request(
    code: int,
    opaque: int,
    fields: Fields = None,
    body_size: int = 0,
    flag: int = 0,
    serialize: SerializeType = SerializeType.JSON,
    language: LanguageCode = CLIENT_LANGUAGE,
    version: int = VERSION,
) -> bytes:
    """Encode a request frame without its body. In JSON the numbers of a struct are written as numbers. All
    servers accept this (ali-ons and the C++ client send numbers, too), and it is fastest."""
    if serialize is SerializeType.ROCKETMQ:
        header = encode_binary_header(code, language, opaque, flag, None, fields_of(fields))
        return HEAD.pack(4 + len(header) + body_size, SerializeType.ROCKETMQ << 24 | len(header)) + header
    header = (
        b'{"code":%d,"extFields":%b,"flag":%d,"language":"%b","opaque":%d'
        b',"serializeTypeCurrentRPC":"JSON","version":%d}'
    ) % (
        code,
        b"{}" if fields is None else _encode_json(fields),
        flag,
        _JSON_LANGUAGES[language],
        opaque,
        version,
    )
    size = len(header)
    return HEAD.pack(4 + size + body_size, size) + header


def fields_of(fields: Fields) -> dict[str, str]:
    """Return header fields as texts, by their names on the wire; fields that are None are left out."""
    if fields is None:
        return {}
    if isinstance(fields, msgspec.Raw):
        return fields_as_text(fields)
    items: Mapping[str, object]
    items = msgspec.to_builtins(fields) if isinstance(fields, msgspec.Struct) else fields
    result = {}
    for name, value in items.items():
        if isinstance(value, bool):
            result[name] = "true" if value else "false"
        elif value is not None:
            result[name] = str(value)
    return result


def encode_binary_header(
    code: int, language: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str]
) -> bytes:
    """Encode a ROCKETMQ header. Raises ValueError if a name, a value or a number does not fit its field."""
    raw_remark = (remark or "").encode("utf-8", "replace")
    parts = []
    for name, value in ext.items():
        raw_name, raw_value = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(raw_name) > 0x7FFF:
            raise ValueError(f"the name of a header field has {len(raw_name)} bytes; the limit is {0x7FFF}")
        parts += [_SHORT.pack(len(raw_name)), raw_name, _INT.pack(len(raw_value)), raw_value]
    raw_ext = b"".join(parts)
    short_code = code & 0xFFFF
    try:
        fixed = _BINARY.pack(
            short_code - 0x10000 if short_code > 0x7FFF else short_code,
            language,
            VERSION,
            opaque,
            flag,
            len(raw_remark),
        )
    except struct.error as error:
        raise ValueError(f"number out of range in a binary header: {error}") from error
    return b"".join((fixed, raw_remark, _INT.pack(len(raw_ext)), raw_ext))


def _encode_json(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
        return _ENCODER.encode(_without_surrogates(msgspec.to_builtins(value)))


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    return value


# --- decoding -----------------------------------------------------------------------------------------


def decode_header(serialize: int, header: bytes) -> Request:
    """Decode a request or response from its header; the body is not set. Raises FrameError if the header is
    malformed."""
    if serialize == 0:
        try:
            return _HEADER_DECODER.decode(header)
        except DECODE_ERRORS:
            return _decode_lenient(header)
    if serialize == 1:
        return _decode_binary(header)
    raise FrameError("unknown serialization", f"type {serialize}; known are 0 (JSON) and 1 (ROCKETMQ)")


def _decode_lenient(header: bytes) -> Request:
    """Decode JSON whose envelope has numbers as text, text as numbers, or nulls, or whose texts are not valid
    Unicode (half of a surrogate pair, or bytes that are not UTF-8).

    In such texts U+FFFD replaces what is wrong, as a Java client writes it. Raising an error instead would
    close the connection, with all requests that are in flight on it."""
    header = _LONE_SURROGATE.sub(_replaced, header.decode(errors="replace").encode())
    try:
        value = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        request = Request(_whole(value["code"]))
        request.opaque = _whole(value.get("opaque"))
        request.flag = _whole(value.get("flag"))
        request.version = _whole(value.get("version"))
        request.language = _text(value.get("language")) or ""
        request.remark = _text(value.get("remark"))
        request.ext_fields = value.get("extFields", NO_FIELDS)
    except KeyError as error:
        raise FrameError("bad JSON header", f"the field {error.args[0]} is missing") from error
    except (*DECODE_ERRORS, ValueError, TypeError, OverflowError) as error:
        raise FrameError("bad JSON header", str(error)) from error
    return request


_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
"""Matches an escape in JSON; group 1 is half of a surrogate pair without the other half."""


def _replaced(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else b"\\ufffd"


def _whole(raw: msgspec.Raw | None) -> int:
    value = None if raw is None else msgspec.json.decode(raw)
    if value is None:
        return 0
    if isinstance(value, (int, float, str)):
        return int(value)
    raise TypeError(f"expected a number, not {type(value).__name__}")


def _text(raw: msgspec.Raw | None) -> str | None:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if value is None or isinstance(value, str) else str(value)


def _decode_binary(header: bytes) -> Request:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY.unpack_from(header)
        at = _BINARY.size
        remark = _slice(header, at, remark_size).decode(errors="replace")
        at += remark_size
        (ext_size,) = _INT.unpack_from(header, at)
        ext = _decode_binary_fields(_slice(header, at + 4, ext_size))
    except struct.error as error:
        raise FrameError("bad binary header", str(error)) from error
    if not flag & FLAG_RESPONSE:
        code = _WIDE_CODES.get(code & 0xFFFF, code)
    return Request(
        code,
        opaque,
        flag,
        _LANGUAGES.get(language, "OTHER"),
        version,
        remark or None,
        msgspec.Raw(_ENCODER.encode(ext)) if ext else NO_FIELDS,
        SerializeType.ROCKETMQ,
    )


def _decode_binary_fields(data: bytes) -> dict[str, str]:
    fields = {}
    at = 0
    while at < len(data):
        (name_size,) = _SHORT.unpack_from(data, at)
        name = _slice(data, at + 2, name_size).decode(errors="replace")
        at += 2 + name_size
        (value_size,) = _INT.unpack_from(data, at)
        if value_size:  # a value without bytes stands for null
            fields[name] = _slice(data, at + 4, value_size).decode(errors="replace")
        at += 4 + value_size
    return fields


def _slice(data: bytes, start: int, size: int) -> bytes:
    if size < 0 or start + size > len(data):
        raise struct.error(f"{size} bytes at {start} of {len(data)}")
    return data[start : start + size]


class FrameReader:
    """Splits a byte stream into commands.

    The caller reads the bytes into `buffer()` and reports them with `received`. The buffer starts small and
    doubles when reads fill it (up to `max_buffer_size`). Beyond that it grows only for a frame that needs
    more, and never faster than the bytes of this frame arrive. So a peer that announces 16 MiB and sends
    nothing costs no memory. After a FrameError (in `error`) nothing more is decoded.
    """

    __slots__ = ("_buffer", "_buffer_size", "_end", "_max_buffer_size", "_max_frame_size", "_view", "error")

    def __init__(
        self,
        max_frame_size: int = MAX_FRAME_SIZE,
        buffer_size: int = 64 * 1024,
        max_buffer_size: int = 256 * 1024,
    ) -> None:
        self._max_frame_size = max_frame_size
        self._buffer_size = buffer_size
        self._max_buffer_size = max_buffer_size
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._end = 0  # bytes of the incomplete frame at the front of the buffer
        self.error: FrameError | None = None

    @property
    def pending(self) -> int:
        """Number of bytes of a frame that is still incomplete."""
        return self._end

    @property
    def capacity(self) -> int:
        """Size of the buffer in bytes."""
        return len(self._buffer)

    def buffer(self) -> memoryview:
        """Return the memory into which the next bytes are to be read; valid until the next call of any
        method."""
        if not self._buffer:
            self._resize(self._buffer_size)
        return self._view[self._end :]

    def shrink(self) -> None:
        """Release memory between frames; the next `buffer` allocates it again."""
        if self._end == 0:
            self._resize(0)

    def received(self, count: int, take: Callable[[bytearray, int], int] | None = None) -> list[Request]:
        """Return all commands that the `count` new bytes complete. Check `error` afterwards.

        First `take` is called. It gets the buffer and the position at which the data ends, handles as many
        whole frames as it can from the front, and returns where it stopped. It must not keep any part of the
        buffer. The remaining frames are decoded here.
        """
        commands: list[Request] = []
        if self.error is not None:
            return commands
        buffer, view = self._buffer, self._view
        end = self._end + count
        at = 0 if take is None else take(buffer, end)
        try:
            while end - at >= HEAD_SIZE:
                length, word = HEAD.unpack_from(buffer, at)
                if length > self._max_frame_size or length < 4:
                    raise self._bad_length(length)
                stop = at + 4 + length
                if stop > end:
                    break
                body_at = at + HEAD_SIZE + (word & 0xFFFFFF)
                if body_at > stop:
                    raise FrameError(
                        "bad header length", f"header of {word & 0xFFFFFF} bytes, frame of {length}"
                    )
                if body_at - at - HEAD_SIZE > MAX_REQUEST_HEADER:
                    raise FrameError(
                        "header too large", f"{word & 0xFFFFFF} bytes: at most {MAX_REQUEST_HEADER}"
                    )
                command = decode_header(word >> 24, bytes(view[at + HEAD_SIZE : body_at]))
                command.body = bytes(view[body_at:stop]) if stop > body_at else b""
                command.serialize = _SERIALIZE_TYPES[word >> 24]
                command.size = length
                command.by_member = None
                commands.append(command)
                at = stop
            self._keep(at, end)
        except FrameError as error:
            self.error = error
            self._end = 0
            self._resize(0)
        return commands

    def _keep(self, at: int, end: int) -> None:
        """Move the incomplete frame to the front of the buffer, and make room after it."""
        rest = end - at
        capacity = len(self._buffer)
        self._end = rest
        if rest == 0:
            if capacity > self._max_buffer_size:
                self._resize(self._buffer_size)
            elif end == capacity < self._max_buffer_size:  # the peer sends more than fits: read more at once
                self._resize(min(2 * capacity, self._max_buffer_size))
            return
        needed = HEAD_SIZE
        if rest >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > self._max_frame_size or length < 4:
                raise self._bad_length(length)
            needed = 4 + length
        if needed > capacity and rest == capacity:
            self._resize(min(needed, 2 * capacity), rest)
        elif capacity > self._max_buffer_size and needed <= self._buffer_size:
            self._resize(self._buffer_size, rest, at)
        elif end == capacity < self._max_buffer_size:
            self._resize(min(2 * capacity, self._max_buffer_size), rest, at)
        elif at:
            self._view[:rest] = self._view[at:end]

    def _resize(self, size: int, keep: int = 0, at: int = 0) -> None:
        fresh = bytearray(size)
        if keep:
            fresh[:keep] = self._view[at : at + keep]
        self._buffer = fresh
        self._view = memoryview(fresh)

    def _bad_length(self, length: int) -> FrameError:
        if length < 4:
            return FrameError("bad frame length", f"{length} bytes cannot hold a header length")
        return FrameError("frame too large", f"{length} bytes: at most {self._max_frame_size}")


_SERIALIZE_TYPES = (SerializeType.JSON, SerializeType.ROCKETMQ)
