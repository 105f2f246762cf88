"""JSON as fastjson 1.2 writes it: strict JSON, except that keys of maps may be other values than text.

`{"offsetTable":{"T@CG":{0:5,1:7}}}` has numbers as keys, `{{"brokerName":"a","queueId":0,"topic":"T"}:9}` has
objects. `loads` reads all of these forms. `dumps` writes sorted keys and no nulls, as Java does, and quotes
all keys (every tested client reads quoted keys). `dumps_object_map` writes the one form that strict JSON
cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dledger.remoting.commands import DECODE_ERRORS
from dledger.remoting.errors import BadBody

MAX_DEPTH = 64
"""Largest depth of nested values in a body; a deeper body is refused."""

MAX_ODD = 4 * 1024
"""Limit, in bytes, of a body that needs the slow parser below, which takes 2 microseconds a byte; a longer
one is refused."""
MAX_UNQUOTED = 48 * 1024
"""Limit, in bytes, of a body that is first changed so that all keys are quoted. This takes up to 0.2
microseconds a byte."""

_ENCODER = msgspec.json.Encoder(order="sorted")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_UNQUOTED = re.compile(
    rb'"(?:[^"\\]+|\\.)*+"?|([A-Za-z_$][A-Za-z0-9_$]*+|-?\d++(?:\.\d+)?+(?:[eE][-+]?\d+)?+)([ \t\r\n]*+:)?+',
    re.DOTALL,
)
"""Matches a text, which stays as it is, or a word or number (group 1), which is a key if a colon (group 2)
follows. Each byte is looked at once, whatever the body is, because the expression never backtracks."""
_NAMED = {"true": True, "false": False, "null": None}


def loads(data: bytes, *, large: bool = False) -> Any:
    """Return a body as Python values. A key that is a number becomes its text; a key that is an object
    becomes its `dumps` text. Raises BadBody if the body is not JSON, not even as fastjson understands it.

    A body from outside must not block the loop. So long bodies that are not strict JSON are refused, unless
    `large` says that the body is the answer to a request of ours.
    """
    try:
        return msgspec.json.decode(data)
    except DECODE_ERRORS:
        pass
    if large or len(data) <= MAX_UNQUOTED:
        try:
            return msgspec.json.decode(_UNQUOTED.sub(_quote, data))
        except DECODE_ERRORS:
            pass
    if len(data) > MAX_ODD and not large:
        raise BadBody(
            "the body is not JSON with strings or numbers as keys; in other forms it may have "
            f"{MAX_ODD} bytes at most, and it has {len(data)}"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8: {error}") from error
    parser = _Parser(text)
    value = parser.value(0)
    parser.skip_space()
    if parser.at != len(text):
        raise parser.error("the end of the body")
    return value


def _quote(match: re.Match[bytes]) -> bytes:
    return match[0] if match[2] is None else b'"%b"%b' % (match[1], match[2])


def dumps(value: object) -> bytes:
    """Encode as sorted strict JSON without nulls (map keys that are numbers are quoted)."""
    return _ENCODER.encode(without_nulls(msgspec.to_builtins(value, str_keys=True)))


def dumps_relaxed(value: object) -> bytes:
    """Encode as fastjson does when strict JSON was not requested: keys that are numbers are not quoted, as in
    `{"brokerAddrs":{0:"10.0.0.1:10911"}}`."""
    return _relaxed(without_nulls(msgspec.to_builtins(value)))


def _relaxed(value: Any) -> bytes:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (isinstance(key, str), key))
        items = (
            b"%b:%b" % (_ENCODER.encode(key), _relaxed(value[key])) for key in keys
        )  # a number: its digits
        return b"{" + b",".join(items) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_relaxed, value)) + b"]"
    return _ENCODER.encode(value)


def dumps_plain(value: object) -> bytes:
    """Encode as `dumps` does, several times as fast. The value must not contain None, and its keys must be
    texts."""
    return _ENCODER.encode(value)


def dumps_object_map(name: str, items: Iterable[tuple[object, object]], **others: object) -> bytes:
    """Encode `{"name":{{key object}:value,...}, others}`. Bodies of requests 202, 208, 220, 221 and 307 have
    such maps."""
    entries = b",".join(dumps(key) + b":" + dumps(value) for key, value in items)
    fields = {key: dumps(value) for key, value in others.items() if value is not None}
    fields[name] = b"{" + entries + b"}"
    return b"{" + b",".join(b'"%b":%b' % (key.encode(), fields[key]) for key in sorted(fields)) + b"}"


def without_nulls(value: Any) -> Any:
    """Return the value without fields that are None, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [without_nulls(item) for item in value]
    return value


class _Parser:
    """Parses fastjson's relaxed form of JSON, by recursive descent. Used only if a body is not strict
    JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def error(self, expected: str) -> BadBody:
        found = self.text[self.at : self.at + 12]
        return BadBody(f"the body is not JSON: {expected} is expected at character {self.at}, not {found!r}")

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        if match is not None:
            self.at = match.end()

    def peek(self) -> str:
        self.skip_space()
        return self.text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.skip_space()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BadBody(f"the body is nested more than {MAX_DEPTH} deep")
        if self.take("{"):
            return self.object(depth)
        if self.take("["):
            return self.array(depth)
        text = self.match(_STRING) or self.match(_NUMBER)
        if text is not None:
            return self.scalar(text)
        start = self.at
        name = self.match(_NAME)
        if name in _NAMED:
            return _NAMED[name]
        self.at = start
        raise self.error("a value")

    def scalar(self, text: str) -> Any:
        try:
            return msgspec.json.decode(text)
        except DECODE_ERRORS as error:
            raise BadBody(f"the body is not JSON: {error}") from error

    def object(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not self.take("}"):
            key = self.key(depth)
            if not self.take(":"):
                raise self.error("':'")
            result[key] = self.value(depth + 1)
            if not self.take(",") and self.peek() != "}":
                raise self.error("',' or '}'")
        return result

    def array(self, depth: int) -> list[Any]:
        result = []
        while not self.take("]"):
            result.append(self.value(depth + 1))
            if not self.take(",") and self.peek() != "]":
                raise self.error("',' or ']'")
        return result

    def key(self, depth: int) -> str:
        if self.peek() in ("{", "["):
            return dumps(self.value(depth + 1)).decode()
        text = self.match(_STRING)
        if text is not None:
            return str(self.scalar(text))
        name = self.match(_NUMBER) or self.match(_NAME)
        if name is None:
            raise self.error("a key")
        return name
