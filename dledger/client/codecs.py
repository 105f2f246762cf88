"""Typed bodies: values instead of bytes, checked against a type at both ends."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from dledger.client.errors import ClientError, InvalidMessage
from dledger.client.listeners import Listener, Result
from dledger.client.message import Message, ReceivedMessage

T = TypeVar("T")


class UnreadableBody(ClientError):
    """A body that does not fit the type of its codec. The error text says where. Reading the body again does
    not help, so the application should return the message or set it aside."""


class BodyFormat(Protocol):
    """A format of bodies, which an application can pass to `Codec` instead of "json" or "msgpack"."""

    def encode(self, value: Any) -> bytes:
        """Encode a value; raises TypeError or ValueError if it cannot be written."""

    def decode(self, body: bytes, kind: Any) -> Any:
        """Decode a value of this type; raises ValueError if the body holds something else."""


class _Json:
    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, body: bytes, kind: Any) -> Any:
        return msgspec.json.decode(body, type=kind)


class _Msgpack:
    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, body: bytes, kind: Any) -> Any:
        return msgspec.msgpack.decode(body, type=kind)


FORMATS: Mapping[str, BodyFormat] = {"json": _Json(), "msgpack": _Msgpack()}


class Codec(Generic[T]):
    """Writes and reads bodies of one type: a dataclass, a TypedDict, a `msgspec.Struct`, `dict[str, int]`.

    >>> codec = Codec(dict[str, int])
    >>> codec.message("stock", {"apples": 3}, keys="apples").body
    b'{"apples":3}'

    Fields that the type does not have are ignored when a body is read, so writers may add fields. A field
    that is missing or has another type raises UnreadableBody.
    """

    def __init__(self, kind: type[T], body_format: BodyFormat | str = "json") -> None:
        self.kind = kind
        if isinstance(body_format, str):
            found = FORMATS.get(body_format)
            if found is None:
                raise ClientError(
                    f"body_format={body_format!r}: give one of {', '.join(FORMATS)}, or an object"
                )
            body_format = found
        self._format = body_format

    def encode(self, value: T) -> bytes:
        """Encode a value as a body. Raises InvalidMessage if it cannot be written, or could not be read
        again."""
        try:
            body = self._format.encode(value)
            self._format.decode(body, self.kind)
        except (TypeError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise InvalidMessage(f"the body does not fit the codec {self._name}: {error}") from error
        return body

    def decode(self, body: bytes) -> T:
        """Decode the value of a body. Raises UnreadableBody if it does not fit the type."""
        try:
            value: T = self._format.decode(body, self.kind)
        except ValueError as error:
            raise UnreadableBody(f"the body does not fit the codec {self._name}: {error}") from error
        return value

    def message(
        self,
        topic: str,
        value: T,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Message:
        """Make a message whose body is this value. Raises InvalidMessage as `encode` does."""
        return Message(topic, self.encode(value), tags, keys, properties)

    def read(self, message: ReceivedMessage) -> T:
        """Decode the value of a message. Raises UnreadableBody, which names the message, if the body does not
        fit the type."""
        try:
            return self.decode(message.body)
        except UnreadableBody as error:
            raise UnreadableBody(f"{message.message_id} of {message.topic}: {error}") from error

    @overload
    def listener(self, handle: Callable[[T, ReceivedMessage], Awaitable[Result]]) -> Listener: ...
    @overload
    def listener(self, handle: Callable[[T, ReceivedMessage], Result]) -> Listener: ...
    def listener(self, handle: Callable[[T, ReceivedMessage], Any]) -> Listener:
        """A listener for a push consumer that calls `handle(value, message)`. When a body cannot be read, the
        listener fails for that message."""
        if inspect.iscoroutinefunction(handle):

            @functools.wraps(handle)
            async def on_loop(message: ReceivedMessage) -> Result:
                result: Result = await handle(self.read(message), message)
                return result

            return on_loop

        @functools.wraps(handle)
        def in_thread(message: ReceivedMessage) -> Any:
            return handle(self.read(message), message)

        return in_thread

    @property
    def _name(self) -> str:
        return getattr(self.kind, "__name__", None) or str(self.kind)
