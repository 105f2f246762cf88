"""Configuration files: `key=value` lines with RocketMQ's property names, into frozen dataclasses.

Java .properties in what people use of it: `#` and `!` comments, `=` or `:` or blanks between key and
value, a backslash at the end of a line continues it. Errors name the file, the line and the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


class ConfigError(Exception):
    """A configuration that cannot be used; the text says where and why."""


class Property(typing.NamedTuple):
    """One line: its value and where it stands (for messages)."""

    key: str
    value: str
    where: str


class DataclassInstance(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


C = TypeVar("C", bound=DataclassInstance)


def parse_properties(text: str, name: str = "properties") -> list[Property]:
    """All properties in order. `name` is the file's, for messages. ConfigError for a line without a key."""
    properties = []
    pending = ""
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending:
            start = number
            if not line or line[0] in "#!":
                continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending += line[:-1]
            continue
        line, pending = pending + line, ""
        properties.append(_parse_line(line, f"{name}, line {start}"))
    if pending:
        properties.append(_parse_line(pending, f"{name}, line {start}"))
    return properties


def _parse_line(line: str, where: str) -> Property:
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
        raise ConfigError(f"{where}: the key {key!r} has no value (key=value is expected)")
    return Property(key, value.strip(), where)


def load_config(
    type_: type[C],
    properties: Iterable[Property],
    *,
    aliases: Mapping[str, str] | None = None,
    ignored: Iterable[str] = (),
) -> C:
    """A frozen dataclass whose field names are the property names.

    Fields are str, int, float, bool or one of these | None. `aliases` maps further names to field names.
    ConfigError for an unknown key (with the nearest known one), a key that occurs twice, a value of the
    wrong type, a missing required key, and for a ValueError that the dataclass itself raises; `ignored`
    keys of RocketMQ are accepted without effect.
    """
    hints = typing.get_type_hints(type_)
    fields = {field.name: field for field in dataclasses.fields(type_)}
    names = dict(aliases or {})
    skipped = sorted(ignored)
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    for item in properties:
        name = names.get(item.key, item.key)
        if name not in fields:
            if item.key in skipped:
                continue
            raise ConfigError(
                f"{item.where}: unknown key {item.key!r}{_suggest(item.key, [*fields, *names])}"
            )
        if name in where:
            raise ConfigError(f"{item.where}: the key {item.key!r} was already set at {where[name]}")
        where[name] = item.where
        try:
            values[name] = parse_value(item.value, hints[name])
        except ValueError as error:
            raise ConfigError(f"{item.where}: the key {item.key!r}: {error}") from error
    for field in fields.values():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise ConfigError(f"the key {field.name!r} is missing")
    try:
        return type_(**values)
    except ValueError as error:
        raise ConfigError(_locate(str(error), where)) from error


def parse_value(text: str, type_: Any) -> Any:
    """A value of this type from its text; ValueError says what is expected."""
    if isinstance(type_, types.UnionType) or typing.get_origin(type_) is typing.Union:
        (type_,) = [option for option in typing.get_args(type_) if option is not type(None)]
    if type_ is bool:
        lowered = text.lower()
        if lowered in TRUE:
            return True
        if lowered in FALSE:
            return False
        raise ValueError(f"true or false is expected, not {text!r}")
    if type_ is int:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"a whole number is expected, not {text!r}") from None
    if type_ is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"a number is expected, not {text!r}") from None
    if type_ is str:
        return text
    raise TypeError(f"configuration fields of type {type_} are not supported")


def format_config(config: DataclassInstance) -> str:
    """The effective configuration as `key=value` lines in field order (`-p`)."""
    lines = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool):
            value = "true" if value else "false"
        lines.append(f"{field.name}={'' if value is None else value}\n")
    return "".join(lines)


def _suggest(key: str, known: list[str]) -> str:
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), list(lowered), 1, 0.7)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def _locate(message: str, where: Mapping[str, str]) -> str:
    """Put the place of the key that a dataclass's own check names in front of its message."""
    named = [name for name in where if name in message]
    return f"{where[max(named, key=len)]}: {message}" if named else message
