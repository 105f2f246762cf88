"""Reads and edits configuration files of `key=value` lines: the commonly used part of Java's .properties.

`#` and `!` begin comment lines. `=`, `:` or blanks separate key and value. A backslash at the end of a line
continues it. A byte order mark at the beginning is skipped. Errors name the file and the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dledger.runtime.atomic_file import read_file
from dledger.runtime.files import Files
from dledger.runtime.settings import ConfigError, Property

BYTE_ORDER_MARK = "\ufeff"


class _Line(NamedTuple):
    """A logical line: its text, and the numbers of its first line and of the line after its last one, counted
    from 0."""

    text: str
    first: int
    end: int


def read_properties(files: Files, path: str, wrong: list[str] | None = None) -> list[Property]:
    """Return the properties of a file. `wrong` has the same meaning as in `parse_properties`. Raises
    ConfigError if the file cannot be read. Blocking."""
    return parse_properties(read_text(files, path), path, wrong)


def read_text(files: Files, path: str) -> str:
    """Read a file's content. Raises ConfigError if that fails. Blocking."""
    try:
        data = read_file(files, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if data is None:
        raise ConfigError(f"{path}: no such file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8") from error


def parse_properties(text: str, name: str = "properties", wrong: list[str] | None = None) -> list[Property]:
    """Return all properties in order. `name` is the file's name, for messages. Raises ConfigError for a line
    that sets nothing. But if `wrong` is given, such lines are left out, and the errors are added to it."""
    found = []
    for line in _logical(text.removeprefix(BYTE_ORDER_MARK).splitlines()):
        try:
            found.append(_property(line.text, f"{name}, line {line.first + 1}"))
        except ConfigError as error:
            if wrong is None:
                raise
            wrong.append(str(error))
    return found


def edit_properties(text: str, changes: Mapping[str, str], name: str = "properties") -> str:
    """Return the text with these values. Lines that set them are replaced, missing ones are added at the end,
    and everything else (comments, order, ends of lines) stays. Raises ConfigError for a value that cannot be
    written in a line."""
    for key, value in changes.items():
        if value != value.strip() or value.endswith("\\") or len(value.splitlines()) > 1:
            raise ConfigError(f"{key}: {value!r} cannot be written as one line of {name}")
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    lines = text.removeprefix(mark).splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    edited: list[str] = []
    at = 0
    missing = dict(changes)
    for line in _logical([line.rstrip("\r\n") for line in lines]):
        key = _property(line.text, f"{name}, line {line.first + 1}").key
        if key in changes:
            edited += [*lines[at : line.first], f"{key}={changes[key]}{end}"]
            at = line.end
            missing.pop(key, None)
    edited += lines[at:]
    if missing and edited and not edited[-1].endswith(("\n", "\r")):
        edited[-1] += end
    return mark + "".join([*edited, *(f"{key}={value}{end}" for key, value in missing.items())])


def _logical(lines: list[str]) -> Iterator[_Line]:
    """Yield the lines that set something, each joined with the lines that continue it."""
    pending, first = "", 0
    for at, raw in enumerate(lines):
        line = raw.strip()
        if not pending:
            first = at
            if not line or line[0] in "#!":
                continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending += line[:-1]
            continue
        yield _Line(pending + line, first, at + 1)
        pending = ""
    if pending:
        yield _Line(pending, first, len(lines))


def _property(line: str, where: str) -> Property:
    for at, character in enumerate(line):
        if character in "=:":
            key, value = line[:at], line[at + 1 :]
            break
        if character in " \t":
            rest = line[at:].lstrip()
            key, value = line[:at], rest[1:] if rest[:1] in ("=", ":") else rest
            break
    else:
        key, value = line, None
    key = key.strip()
    if not key:
        raise ConfigError(f"{where}: a key is missing before {line[:40]!r}")
    if value is None:
        raise ConfigError(f"{where}: the key {key!r} has no value (expected key=value)")
    return Property(key, value.strip(), where)
