"""One request and one response, independent of their encoding (RemotingCommand)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

import msgspec

from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import BadHeader, RemotingError

T = TypeVar("T", bound=msgspec.Struct)

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
FLAG_REDIRECT = 4
"""An extension of ours: if the broker is not the leader, the sender wants an answer with the leader's address
(code 14) and no forwarding of the request. Our client and brokers set it in all requests. Other clients do
not, and RocketMQ reads only bits 0 and 1."""
FLAG_FORWARDED = 8
"""An extension of ours: this request is a client's request that a broker which is not the leader forwards."""

NO_FIELDS = msgspec.Raw(b"{}")
"""extFields of a command that has no fields."""

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that are not the expected JSON."""

_TEXT_FIELDS = msgspec.json.Decoder(dict[str, str])


class SerializeType(IntEnum):
    """Encoding of a header. An answer has the same encoding as its request."""

    JSON = 0
    ROCKETMQ = 1


class Request(msgspec.Struct, eq=False, gc=False):
    """One decoded inbound command.

    `size` is the number of bytes that it adds to its connection's in-flight account. Header fields are
    decoded on demand, as a struct with `header(SendMessageHeader)` or all as text with `ext()`.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = ""
    version: int = 0
    remark: str | None = None
    ext_fields: msgspec.Raw = msgspec.field(name="extFields", default=NO_FIELDS)
    # Not in the header: set by the frame reader, under names that no peer uses (and overwritten if one does).
    serialize: SerializeType = msgspec.field(name="(serialize)", default=SerializeType.JSON)
    body: bytes = msgspec.field(name="(body)", default=b"")
    size: int = msgspec.field(name="(size)", default=0)
    by_member: bool | None = msgspec.field(name="(by member)", default=None)
    """Whether a broker of the group sent or forwarded this request; None until that was checked."""

    @property
    def oneway(self) -> bool:
        """Whether the peer expects no answer."""
        return self.flag & FLAG_ONEWAY != 0

    @property
    def is_response(self) -> bool:
        """Whether this is the answer to a request of ours."""
        return self.flag & FLAG_RESPONSE != 0

    def header(self, type_: type[T]) -> T:
        """Return the header fields as a struct of `remoting.headers`. Raises BadHeader, which names what is
        missing or wrong."""
        return decode_fields(self.ext_fields, type_, self.code)

    def ext(self) -> dict[str, str]:
        """Return all header fields as text; fields that are null are left out."""
        return fields_as_text(self.ext_fields)


class Response:
    """An answer: one that a client has received, or one that a handler of a client makes. `ext` has no null
    values."""

    __slots__ = ("_ext", "body", "code", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        remark: str | None = None,
        ext: Mapping[str, str] | msgspec.Raw | None = None,
        body: bytes = b"",
        version: int = 0,
    ) -> None:
        self.code: int = code
        self.opaque: int = opaque
        self.remark: str | None = remark
        self.body: bytes = body
        self.version: int = version
        self._ext = ext

    @property
    def ext(self) -> dict[str, str]:
        """Return all header fields as text. They are decoded at the first use."""
        value = self._ext
        if type(value) is not dict:
            value = fields_as_text(value) if isinstance(value, msgspec.Raw) else dict(value or {})
            self._ext = value
        return value

    def header(self, type_: type[T]) -> T:
        """Return the header fields as a struct of `remoting.headers`. Raises BadHeader, which names what is
        missing or wrong."""
        value = self._ext
        if isinstance(value, msgspec.Raw):
            return decode_fields(value, type_, None)
        return _convert(self.ext, type_, None)

    def checked(self, *accepted: int) -> Response:
        """Return this response if its code is 0 or one of `accepted`; otherwise raise RemotingError(code,
        remark)."""
        if self.code == 0 or self.code in accepted:
            return self
        raise RemotingError(self.code, self.remark or response_name(self.code))

    def __repr__(self) -> str:
        return (
            f"Response(code={self.code}, opaque={self.opaque}, remark={self.remark!r}, ext={self.ext}, "
            f"body of {len(self.body)} bytes)"
        )


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, or its number if it has no name."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request code {code}"


def response_name(code: int) -> str:
    """Return RocketMQ's name of a response code, or its number if it has no name."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"response code {code}"


def decode_fields(raw: msgspec.Raw, type_: type[T], code: int | None) -> T:
    """Decode typed header fields from JSON. Numbers and booleans may be given as text, and text as numbers.
    Raises BadHeader for wrong fields."""
    try:
        return msgspec.json.decode(raw, type=type_, strict=False)
    except DECODE_ERRORS:
        # Rare forms are decoded slowly: null, missing or empty fields, numbers where text is declared.
        return _convert(fields_as_text(raw), type_, code)


def fields_as_text(raw: msgspec.Raw) -> dict[str, str]:
    """Return the header fields as a dict of text. Raises BadHeader if they are not a JSON object."""
    try:
        return _TEXT_FIELDS.decode(raw)
    except DECODE_ERRORS:
        pass
    if len(raw_bytes := bytes(raw)) == 0:
        return {}
    try:
        value = msgspec.json.decode(raw_bytes)
    except DECODE_ERRORS as error:
        raise BadHeader(f"extFields are not JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadHeader("extFields are not a JSON object")
    return {name: _as_text(item) for name, item in value.items() if item is not None}


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()  # also true and false, as Java writes them


def _convert(fields: dict[str, str], type_: type[T], code: int | None) -> T:
    try:
        return msgspec.convert(fields, type_, strict=False)
    except msgspec.ValidationError as error:
        subject = "header" if code is None else f"header of {request_name(code)}"
        for field in msgspec.structs.fields(type_):
            name = field.encode_name
            label = name if name == field.name else f"{name} ({field.name})"
            if field.required and name not in fields:
                raise BadHeader(f"the {subject} lacks the field {label}", field.name) from error
            if str(error).endswith(f"`$.{name}`"):
                reason = str(error).partition(" - at ")[0]
                raise BadHeader(f"the {subject} has a wrong {label}: {reason}", field.name) from error
        raise BadHeader(f"the {subject} is wrong: {error}") from error
