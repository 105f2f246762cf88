"""Typed bodies: JSON bodies as columns of a table.

The type is a JSON Schema, which is fixed when the table is made. It is given as a file, derived from a
Python type (a dataclass, a TypedDict or a msgspec.Struct), or inferred from the oldest messages. A body that
does not fit is kept as it is, with the reason in a column of its own; it stops nothing. Fields that the
schema does not name are in the body only.

What a schema can say: objects with `properties`, arrays, strings (also with the formats date-time and date),
integers of 64 bits, numbers, booleans, each of them also null; `$ref` to a definition in the same schema.
Anything else becomes a string with its JSON text.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from dledger.lake.tables import TableError
from dledger.runtime.atomic_file import read_file
from dledger.runtime.remote_files import files_for

VALUE, ERROR = "value", "value_error"
"""Names of the column of typed values, a struct, and of the column that says why a body has none."""
SAMPLE_ROWS = 10_000
"""Largest number of bodies from which a schema is inferred."""
MAX_DEPTH = 32
"""Largest depth of a schema. What is nested deeper becomes JSON text."""
MAX_FIELDS = 2_000
"""Largest number of fields of a schema, over all levels. A schema with more is refused."""
_TIME = pa.timestamp("us", tz="UTC")
_INTEGER = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class _Kind:
    """How values of one part of a schema are read from JSON, and their type in the table. `fields` are those
    of a struct, `item` is the kind of a list's items."""

    read: Any
    arrow: pa.DataType
    fields: tuple[tuple[str, _Kind], ...] | None = None
    item: _Kind | None = None
    is_text_of_json: bool = False


_TEXT_OF_JSON = _Kind(msgspec.Raw, pa.string(), is_text_of_json=True)
_PLAIN = {
    "string": _Kind(str, pa.string()),
    "integer": _Kind(_INTEGER, pa.int64()),
    "number": _Kind(float, pa.float64()),
    "boolean": _Kind(bool, pa.bool_()),
}
_FORMATS = {
    "date-time": _Kind(datetime.datetime, _TIME),
    "date": _Kind(datetime.date, pa.date32()),
}


class TypedBodies:
    """Reads bodies by one schema, given as JSON. Raises TableError for a schema that is no object's."""

    def __init__(self, schema: str) -> None:
        whole = json.loads(schema)
        self._count = 0
        self._kind = self._of(whole, whole, 0)
        if not self._kind.fields:
            raise TableError("the schema of bodies must be that of a JSON object with properties")
        self._decoder = msgspec.json.Decoder(self._kind.read)

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that are added to a table."""
        return [pa.field(VALUE, self._kind.arrow), pa.field(ERROR, pa.string())]

    def appended(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of their bodies behind the others."""
        bodies = (body for chunk in rows.column("body").chunks for body in chunk.to_pylist())
        for field, column in zip(self.fields, self.columns(bodies), strict=True):
            rows = rows.append_column(field, column)
        return rows

    def columns(self, bodies: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Return the columns of these bodies."""
        values: list[Any] = []
        errors: list[str | None] = []
        decode = self._decoder.decode
        for body in bodies:
            try:
                values.append(decode(b"" if body is None else body))
                errors.append(None)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                values.append(None)
                errors.append(str(error)[:200])
        try:
            return _array(values, self._kind), pa.array(errors, pa.string())
        except (OverflowError, ValueError, pa.ArrowException):  # a value that JSON has, and the table cannot
            for number, value in enumerate(values):
                try:
                    _array([value], self._kind)
                except (OverflowError, ValueError, pa.ArrowException) as error:
                    values[number], errors[number] = None, str(error)[:200]
            return _array(values, self._kind), pa.array(errors, pa.string())

    def _of(self, part: object, whole: Schema, depth: int) -> _Kind:
        schema = _resolved(part, whole)
        kinds = schema.get("type")
        names = [name for name in (kinds if isinstance(kinds, list) else [kinds]) if name != "null"]
        if len(names) != 1 or depth >= MAX_DEPTH:
            return _TEXT_OF_JSON
        name = names[0]
        if name == "string" and schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        if name in _PLAIN:
            return _PLAIN[name]
        if name == "array" and isinstance(schema.get("items"), Mapping):
            item = self._of(schema["items"], whole, depth + 1)
            return _Kind(list[item.read | None], pa.list_(item.arrow), item=item)  # type: ignore[name-defined]
        if name == "object" and schema.get("properties"):
            return self._struct(schema, whole, depth)
        return _TEXT_OF_JSON

    def _struct(self, schema: Schema, whole: Schema, depth: int) -> _Kind:
        found = [(name, self._of(part, whole, depth + 1)) for name, part in schema["properties"].items()]
        self._count += len(found)
        if self._count > MAX_FIELDS:
            raise TableError(f"the schema of bodies has more than {MAX_FIELDS} fields")
        needed = frozenset(schema.get("required", ()))
        members: list[Any] = []
        renamed = {}
        for number, (name, kind) in enumerate(found):
            renamed[f"f{number}"] = name
            optional = kind.read if kind.is_text_of_json else kind.read | None
            members.append(
                (f"f{number}", optional, ...) if name in needed else (f"f{number}", optional, None)
            )
        members.sort(key=lambda member: member[2] is None)
        fields = [member[:2] if member[2] is ... else member for member in members]
        read = msgspec.defstruct("Body", fields, rename=renamed, kw_only=True)
        return _Kind(
            read, pa.struct([pa.field(name, kind.arrow) for name, kind in found]), fields=tuple(found)
        )

    def described(self) -> str:
        """Return the columns of a body with their types, as `shop string, cents int64`."""
        return ", ".join(f"{field.name} {field.type}" for field in self._kind.arrow)


def unfit(rows: pa.Table) -> int:
    """Return how many of these rows have a body that does not fit the schema; 0 if bodies are not typed."""
    if ERROR not in rows.column_names:
        return 0
    fitting = int(rows.column(ERROR).null_count)
    return int(rows.num_rows) - fitting


def _resolved(schema: Any, whole: Schema) -> Schema:
    """Follow `$ref`, and take the only alternative of `anyOf` that is not null. Empty for what is no object,
    such as `true`."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" in schema:
            target: Any = whole
            for part in str(schema["$ref"]).removeprefix("#/").split("/"):
                target = target.get(part) if isinstance(target, Mapping) else None
            schema = target
        elif "anyOf" in schema:
            others = [one for one in schema["anyOf"] if one != {"type": "null"}]
            if len(others) != 1:
                return {}
            schema = others[0]
        else:
            break
    return schema if isinstance(schema, Mapping) else {}


def _array(values: Sequence[Any], kind: _Kind) -> pa.Array:
    """Return values as an array. Structs and lists are built from arrays of their parts."""
    if kind.fields is not None:
        missing = pa.array([value is None for value in values], pa.bool_())
        parts = [
            _array([None if value is None else getattr(value, f"f{number}") for value in values], part)
            for number, (_, part) in enumerate(kind.fields)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind.arrow), mask=missing)
    if kind.item is not None:
        ends, items, total = [0], [], 0
        for value in values:
            if value is not None:
                items += value
                total += len(value)
            ends.append(total)
        nulls = pa.array([value is None for value in values], pa.bool_())
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), _array(items, kind.item), kind.arrow, mask=nulls
        )
    if kind.is_text_of_json:
        return pa.array([None if value is None else _json_text(value) for value in values], pa.string())
    if kind.arrow == _TIME:
        return pa.array([_in_utc(value) for value in values], _TIME)
    return pa.array(values, kind.arrow)


def _json_text(value: msgspec.Raw) -> str | None:
    text = bytes(value).decode(errors="replace")
    return None if text == "null" else text


def _in_utc(value: datetime.datetime | None) -> datetime.datetime | None:
    """Return a time in UTC; one without a zone is taken for UTC. Raises OverflowError if that is outside of
    the years 1 to 9999."""
    if value is None:
        return None
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


def schema_of(given: str) -> str:
    """Return the JSON Schema that `given` names: a file, or a Python type as MODULE:TYPE. Raises
    TableError."""
    module, colon, name = given.partition(":")
    try:
        if colon and module.replace(".", "").isidentifier() and name.isidentifier():
            with _current_directory_on_path():
                found = _schema_of_type(msgspec.inspect.type_info(getattr(import_module(module), name)), 0)
        else:
            content = read_file(files_for(given), given)
            if content is None:
                raise TableError(f"schema {given}: there is no such file")
            found = json.loads(content)
    except OSError as error:
        raise TableError(f"schema {given}: {error.strerror}") from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TableError(f"schema {given}: {error}") from error
    text = json.dumps(found)
    TypedBodies(text)
    return text


@contextmanager
def _current_directory_on_path() -> Iterator[None]:
    """Let modules of the current directory be imported, as with `python -m`."""
    here = os.path.abspath(".")
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with suppress(ValueError):  # the module may have changed the path itself
            sys.path.remove(here)


def _schema_of_type(found: Any, depth: int) -> dict[str, Any]:
    kinds = msgspec.inspect
    for kind, schema in (
        (kinds.IntType, {"type": "integer"}),
        (kinds.FloatType, {"type": "number"}),
        (kinds.BoolType, {"type": "boolean"}),
        (kinds.StrType, {"type": "string"}),
        (kinds.DateTimeType, {"type": "string", "format": "date-time"}),
        (kinds.DateType, {"type": "string", "format": "date"}),
    ):
        if isinstance(found, kind):
            return schema
    if isinstance(found, kinds.UnionType):
        others = [one for one in found.types if not isinstance(one, kinds.NoneType)]
        return _schema_of_type(others[0], depth) if len(others) == 1 else {}
    if isinstance(found, kinds.ListType | kinds.SetType | kinds.FrozenSetType | kinds.VarTupleType):
        return {"type": "array", "items": _schema_of_type(found.item_type, depth + 1)}
    if isinstance(found, kinds.StructType | kinds.DataclassType | kinds.TypedDictType) and depth < MAX_DEPTH:
        return {
            "type": "object",
            "properties": {one.encode_name: _schema_of_type(one.type, depth + 1) for one in found.fields},
            "required": [one.encode_name for one in found.fields if one.required],
        }
    return {}


def inferred(bodies: Iterable[bytes]) -> str:
    """Return a JSON Schema that fits these bodies, as far as they are JSON objects. Raises TableError if none
    is."""
    merged: dict[str, Any] = {}
    for body in bodies:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            merged = _merged(merged, _schema_of_value(value, 0))
    if not merged.get("properties"):
        raise TableError(
            "no body of the oldest messages is a JSON object: give a schema, or leave bodies untyped"
        )
    return json.dumps(_settled(merged))


def _schema_of_value(value: object, depth: int) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"} if -(1 << 63) <= value < 1 << 63 else {"type": "any"}
    if isinstance(value, float):
        return {"type": "number"}
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, list):
        items: dict[str, Any] = {}
        for item in value:
            items = _merged(items, _schema_of_value(item, depth + 1))
        return {"type": "array", "items": items}
    assert isinstance(value, dict)
    if depth >= MAX_DEPTH:
        return {"type": "any"}
    return {
        "type": "object",
        "properties": {name: _schema_of_value(part, depth + 1) for name, part in value.items()},
    }


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that fits the values of both. The empty one is that of null."""
    if not one or not other:
        return one or other
    kinds = {one["type"], other["type"]}
    if kinds == {"integer", "number"}:
        return {"type": "number"}
    if len(kinds) > 1:
        return {"type": "any"}
    if "items" in one:
        return {"type": "array", "items": _merged(one["items"], other["items"])}
    if "properties" in one:
        names = dict.fromkeys([*one["properties"], *other["properties"]])
        return {
            "type": "object",
            "properties": {
                name: _merged(one["properties"].get(name, {}), other["properties"].get(name, {}))
                for name in names
            },
        }
    return one


def _settled(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace what is not known: a field that was always null, or had values of several types, becomes JSON
    text."""
    if schema.get("type") in (None, "any"):
        return {}
    found = dict(schema)
    if "items" in found:
        found["items"] = _settled(found["items"])
    if "properties" in found:
        found["properties"] = {name: _settled(part) for name, part in found["properties"].items()}
    return found
