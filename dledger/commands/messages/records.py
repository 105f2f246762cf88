"""Records of an input: lines, JSON lines or rows of CSV, each of which becomes a message. Pure.

A record is read completely before it is sent, and errors name the number of its line. `Splitter` splits
the bytes of an input into lines, and `Reader` makes records from lines.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

LINES, JSON, CSV = "lines", "json", "csv"
FORMATS = (LINES, JSON, CSV)
ENDINGS = {".json": JSON, ".jsonl": JSON, ".ndjson": JSON, ".csv": CSV, ".tsv": CSV}
"""Maps the ending of a file's name to the format of its records; a file with another ending holds plain
lines."""
MAX_RECORD_BYTES = 16 * 1024 * 1024
"""Limit, in bytes, of one record. A longer record is refused, because no message could hold its body."""
PARTS = ("body", "key", "tag", "ordering-key")
"""The parts of a message that a column of CSV or a field of JSON can supply."""
WHOLE = "*"
"""Given in place of a column's name: the whole record, as a JSON object, is used for this part."""
_NAMES = {
    "body": "body",
    "key": "key",
    "keys": "key",
    "tag": "tag",
    "tags": "tag",
    "orderingKey": "ordering-key",
    "ordering_key": "ordering-key",
}
"""Maps the name of a column or field to the part of a message that it supplies, unless `--field` says
otherwise."""
_BASE64, _PROPERTIES = "bodyBase64", "properties"
_PLACE = ("topic", "brokerName", "queueId", "queueOffset", "msgId", "storeTimestamp")
"""Fields that `consume` prints and `produce` ignores, because a sent message gets new values for them."""


class BadRecord(Exception):
    """Raised when a record cannot be sent. `line` is the number of the record's first line, counted from
    1; the text says what is wrong."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True)
class Record:
    """The parts of one message."""

    line: int
    """Number of the record's first line, counted from 1."""
    body: bytes
    keys: tuple[str, ...] = ()
    tag: str | None = None
    ordering_key: str | None = None
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Layout:
    """How the records of an input are read: the settings for a `Reader`."""

    format: str = LINES
    fields: Mapping[str, str] | None = None
    """Maps a part of a message to the column or field that supplies it, if that has another name than the
    part."""
    key_separator: str = ""
    """In the format of plain lines: the text between the key and the body."""
    delimiter: str = ","
    """The character between the columns of CSV."""
    ignore_other: bool = False
    """Ignore columns and fields that are not part of a message."""
    skip_empty: bool = False
    """Skip empty lines."""


def format_of(path: str) -> str:
    """Return the format of a file, which follows from the ending of its name."""
    return ENDINGS.get(os.path.splitext(path)[1].lower(), LINES)


class Splitter:
    """Splits the bytes of an input into lines, without their line ends."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._line = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Return the lines that are complete now, with their numbers. Raises BadRecord if a line is too
        long."""
        self._rest += data
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in whole:
            self._line += 1
            yield self._line, line.removesuffix(b"\r")
        if len(self._rest) > MAX_RECORD_BYTES:
            raise BadRecord(self._line + 1, f"the record is longer than {MAX_RECORD_BYTES} bytes")

    def end(self) -> Iterator[tuple[int, bytes]]:
        """Return the last line, if it does not end with a line feed."""
        if self._rest:
            yield self._line + 1, bytes(self._rest).removesuffix(b"\r")
            self._rest.clear()


class Reader:
    """Makes records from lines, in the way that a `Layout` describes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._fields = dict(layout.fields or {})
        self._columns: list[str] = []
        self._quoted: list[bytes] = []
        self._quoted_bytes = 0
        self._marks = 0
        self._began = 0
        if layout.format == CSV:
            csv.field_size_limit(MAX_RECORD_BYTES)

    def take(self, number: int, line: bytes) -> Record | None:
        """Return the record that ends with this line. Returns None if the record continues, or the line
        holds no record. Raises BadRecord."""
        if self._layout.format == CSV:
            return self._csv(number, line)
        if not line.strip() and self._layout.skip_empty:
            return None
        if self._layout.format == JSON:
            return self._json(number, line)
        return self._line(number, line)

    def end(self) -> None:
        """Raise BadRecord if the last record is not complete."""
        if self._quoted:
            raise BadRecord(self._began, "a quotation mark is opened here and not closed")

    # Lines

    def _line(self, number: int, line: bytes) -> Record:
        separator = self._layout.key_separator
        if not separator:
            return _checked(Record(number, line))
        key, found, body = line.partition(separator.encode())
        if not found:
            raise BadRecord(number, f"the line has no {separator!r} between key and body")
        return _checked(Record(number, body, (_text(number, key),) if key else ()))

    # JSON lines

    def _json(self, number: int, line: bytes) -> Record:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise BadRecord(number, f"not JSON: {error}") from error
        except RecursionError as error:
            raise BadRecord(number, "not JSON: nested too deeply") from error
        if not isinstance(value, dict):
            raise BadRecord(number, f'not a JSON object such as {{"body": "text"}}: {line[:40]!r}')
        return self._record(number, value)

    # CSV

    def _csv(self, number: int, line: bytes) -> Record | None:
        if not self._quoted:
            self._began = number
            if not line.strip() and (self._layout.skip_empty or not self._columns):
                return None
        self._quoted.append(line)
        self._quoted_bytes += len(line)
        self._marks += line.count(b'"')
        if self._marks % 2:  # a quoted cell goes on in the next line
            if self._quoted_bytes > MAX_RECORD_BYTES:
                text = (
                    f"the record is longer than {MAX_RECORD_BYTES} bytes: check that every "
                    "quotation mark is closed"
                )
                raise BadRecord(self._began, text)
            return None
        whole = b"\n".join(self._quoted)
        self._quoted, self._quoted_bytes, self._marks = [], 0, 0
        text = _text(self._began, whole)
        try:
            cells = next(csv.reader([text], delimiter=self._layout.delimiter, strict=True), [])
        except csv.Error as error:
            raise BadRecord(self._began, f"not CSV: {error}") from error
        if not self._columns:
            self._header([cell.lstrip("\ufeff").strip() for cell in cells])
            return None
        if len(cells) != len(self._columns):
            raise BadRecord(
                self._began, f"the row has {len(cells)} columns, and the header has {len(self._columns)}"
            )
        return self._record(self._began, dict(zip(self._columns, cells, strict=True)))

    def _header(self, columns: list[str]) -> None:
        twice = sorted({one for one in columns if columns.count(one) > 1})
        if twice:
            raise BadRecord(self._began, f"the header names {', '.join(twice)} twice")
        self._columns = columns
        missing = [one for one in self._fields.values() if one != WHOLE and one not in columns]
        if missing:
            raise BadRecord(
                self._began, f"there is no column {missing[0]!r}; the columns are {', '.join(columns)}"
            )
        self._known(self._began, columns)

    # Both

    def _known(self, number: int, names: Sequence[str]) -> None:
        """Raise BadRecord if columns or fields would be ignored without notice."""
        if self._layout.ignore_other or WHOLE in self._fields.values():
            return
        taken = {*_NAMES, *self._fields.values(), _BASE64, _PROPERTIES, *_PLACE}
        for name in names:
            if name not in taken:
                near = get_close_matches(name, [*_NAMES, _BASE64, _PROPERTIES], 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise BadRecord(
                    number,
                    f"{name!r} is not a part of a message: {hint}--field body={name} makes it the "
                    f"body, --field body={WHOLE} the whole record, and --ignore-other leaves it out",
                )

    def _record(self, number: int, values: Mapping[str, object]) -> Record:
        if self._layout.format == JSON:
            self._known(number, list(values))
        parts: dict[str, object] = {}
        for name, value in values.items():
            part = _NAMES.get(name)
            if part is not None and part not in self._fields:
                parts[part] = value
        for part, name in self._fields.items():
            if name == WHOLE:
                parts[part] = dict(values)
            elif name in values:
                parts[part] = values[name]
            else:
                raise BadRecord(
                    number, f"there is no field {name!r}; the fields are {', '.join(values) or 'none'}"
                )
        if _BASE64 in values and "body" not in parts:
            body = _from_base64(number, values[_BASE64])
        elif "body" in parts:
            body = _as_body(number, parts["body"])
        else:
            there = ", ".join(values) or "no fields"
            raise BadRecord(
                number, f"there is no body; the fields are {there}. Name it with --field body=NAME"
            )
        ordering_key = parts.get("ordering-key")
        return _checked(
            Record(
                number,
                body,
                _as_keys(number, parts.get("key")),
                _as_text(number, "tag", parts.get("tag")),
                _as_text(number, "ordering key", ordering_key),
                _as_properties(number, values.get(_PROPERTIES)),
            )
        )


def _checked(record: Record) -> Record:
    if not record.body:
        raise BadRecord(record.line, "the body is empty, and brokers refuse messages without a body")
    return record


def _text(number: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(number, f"not UTF-8: {error.reason} at byte {error.start}") from error


def _as_body(number: int, value: object) -> bytes:
    if value is None:
        return b""
    text = value
    if not isinstance(text, str):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _encoded(number, "body", text)


def _encoded(number: int, what: str, text: str) -> bytes:
    """Encode a text in UTF-8. Raises BadRecord for half of a character (a surrogate), which JSON can
    express and UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(number, f"the {what} has a character that UTF-8 cannot encode") from error


def _from_base64(number: int, value: object) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise BadRecord(number, f"{_BASE64}: {error}") from error


def _as_keys(number: int, value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(text for one in values if (text := _as_text(number, "key", one)) is not None)


def _as_text(number: int, what: str, value: object) -> str | None:
    """Return a text, or a number as text; None for null and for an empty text."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadRecord(number, f"the {what} is not a text: {json.dumps(value)[:40]}")
    text = str(value)
    _encoded(number, what, text)
    return text


def _as_properties(number: int, value: object) -> Mapping[str, str] | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):  # a cell of CSV that `consume` wrote
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise BadRecord(number, 'the properties are not a JSON object such as {"name": "value"}')
    found = {name: _as_text(number, f"property {name!r}", one) for name, one in value.items()}
    return {name: one for name, one in found.items() if one is not None} or None
