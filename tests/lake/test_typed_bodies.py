"""JSON bodies as columns: what a schema says, what does not fit, what is inferred."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import msgspec
import pyarrow as pa

from dledger.lake.table_audit import audit_table
from dledger.lake.tables import About, TableError
from dledger.lake.typed import MAX_FIELDS, TypedBodies, inferred, schema_of
from tests.audit.store_builder import Log, write_store
from tests.command_line import run
from tests.lake.lake_kit import Group, make_topic, rows_of

TIME = {"type": "string", "format": "date-time"}


def at(hour: int) -> datetime:
    return datetime(2026, 2, 3, hour, 5, 6, tzinfo=UTC)


def of(properties: dict[str, Any], *required: str) -> TypedBodies:
    return TypedBodies(json.dumps({"type": "object", "properties": properties, "required": list(required)}))


@pytest.mark.parametrize(
    ("part", "text", "value"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "-9223372036854775808", -(1 << 63)),
        ({"type": "number"}, "5", 5.0),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "string"}, '"\\u00e9"', "é"),
        ({"type": "string"}, "null", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string", "format": "date"}, '"2026-02-03"', date(2026, 2, 3)),
        (TIME, '"2026-02-03T04:05:06Z"', at(4)),
        (TIME, '"2026-02-03T05:05:06+01:00"', at(4)),
        (TIME, '"2026-02-03T04:05:06"', at(4)),
        ({"type": "string", "format": "email"}, '"a@b"', "a@b"),
        ({"type": "array", "items": {"type": "integer"}}, "[1,null,3]", [1, None, 3]),
        ({"type": "array", "items": {"type": "integer"}}, "[]", []),
        ({"type": "array"}, "[1, 2]", "[1, 2]"),
        ({"type": "object"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "object", "properties": {"b": {"type": "integer"}}}, '{"b": 1, "c": 2}', {"b": 1}),
        ({}, "[1]", "[1]"),
        ({}, "null", None),
        ({"type": ["string", "integer"]}, '"x"', '"x"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", "7"),
    ],
)  # fmt: skip
def test_a_value_has_the_type_that_the_schema_says(part: dict[str, Any], text: str, value: object) -> None:
    values, errors = of({"a field": part}).columns([b'{"a field": ' + text.encode() + b"}"])
    assert (values.to_pylist(), errors.to_pylist()) == ([{"a field": value}], [None])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "truncated"),
        (b"no json", "malformed"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"a": "x"}', "Expected `int | null`, got `str` - at `$.a`"),
        (b'{"a": 1.5}', "Expected `int | null`"),
        (b'{"a": 9223372036854775808}', "Expected `int` <= "),
        (b'{"a": -9223372036854775809}', "Expected `int` >= "),
        (b'{"a": 1, "b": "\xff"}', "invalid"),
        (b'{"b": "x"}', "missing required field `a`"),
        (b'{"a": 1} x', "trailing"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_body_that_does_not_fit_is_kept_with_the_reason(body: bytes, why: str) -> None:
    typed = of({"a": {"type": "integer"}, "b": {"type": "string"}}, "a")
    values, errors = typed.columns([b'{"a": 1}', body, b'{"a": 2}'])
    assert values.to_pylist() == [{"a": 1, "b": None}, None, {"a": 2, "b": None}]
    first, found, last = errors.to_pylist()
    assert (first, last) == (None, None) and why in found


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_the_table_cannot_hold_stops_nothing(time: str) -> None:
    typed = of({"a": {"type": "array", "items": {"type": "object", "properties": {"t": TIME}}}})
    values, errors = typed.columns([b'{"a": [{"t": "%s"}]}' % time.encode(), b'{"a": []}'])
    assert values.to_pylist() == [None, {"a": []}]
    assert errors[0].as_py() and errors[1].as_py() is None


def test_parts_of_a_schema_that_are_no_objects_are_json_texts() -> None:
    typed = of({"a": True, "b": {"$ref": "#/none/there"}, "c": {"anyOf": [True, {"type": "null"}]}})
    values, errors = typed.columns([b'{"a": 1, "b": [2], "c": "x"}'])
    assert values.to_pylist() == [{"a": "1", "b": "[2]", "c": '"x"'}] and errors.null_count == 1


def test_a_schema_is_derived_from_a_python_type() -> None:
    typed = TypedBodies(schema_of("tests.lake.test_typed_bodies:Order"))
    assert typed.fields[0].type == pa.struct(
        [
            ("time", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("size", pa.int64()),
            ("price", pa.float64()),
            ("names", pa.list_(pa.string())),
            ("open", pa.bool_()),
            ("either", pa.string()),
            ("part", pa.struct([("a", pa.int64())])),
        ]
    )


class Part(msgspec.Struct):
    a: int


@dataclass
class Order:
    time: datetime
    day: date
    size: int
    price: float | None
    names: list[str] = field(default_factory=list)
    open: bool = True
    either: int | str = 0
    part: Part | None = None


@pytest.mark.parametrize(
    ("bodies", "schema"),
    [
        (['{"a": 1}'], {"a": {"type": "integer"}}),
        (['{"a": 1}', '{"a": 2.5}'], {"a": {"type": "number"}}),
        (['{"a": null}', '{"a": "x"}'], {"a": {"type": "string"}}),
        (['{"a": null}'], {"a": {}}),
        (['{"a": 1}', '{"a": "x"}'], {"a": {}}),
        (['{"a": 1}', "no", "[1]", '{"b": true}'], {"a": {"type": "integer"}, "b": {"type": "boolean"}}),
        (['{"a": []}', '{"a": [1]}'], {"a": {"type": "array", "items": {"type": "integer"}}}),
        (['{"a": [1, "x"]}'], {"a": {"type": "array", "items": {}}}),
        (['{"a": 9223372036854775808}'], {"a": {}}),
        (['{"a": {"b": 1}}', '{"a": {"c": "x"}}'],
         {"a": {"type": "object", "properties": {"b": {"type": "integer"}, "c": {"type": "string"}}}}),
    ],
)  # fmt: skip
def test_a_schema_is_inferred(bodies: list[str], schema: dict[str, Any]) -> None:
    assert json.loads(inferred(body.encode() for body in bodies))["properties"] == schema


def test_what_was_inferred_reads_what_it_was_inferred_from() -> None:
    bodies = [b'{"a": {"b": [1, 2.5, null]}, "c": "x"}', b'{"a": null, "d": {"e": false}}', b'{"c": null}']
    _, errors = TypedBodies(inferred(bodies)).columns(bodies)
    assert errors.null_count == len(bodies)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there is no such file"),
        ("{", "Expecting"),
        ('{"type": "string"}', "must be that of a JSON object"),
        ('{"type": "object"}', "must be that of a JSON object"),
        (
            json.dumps({"type": "object", "properties": {f"f{n}": {} for n in range(MAX_FIELDS + 1)}}),
            "more than",
        ),
    ],
)
def test_a_wrong_schema_is_refused(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TableError, match=why):
        schema_of(str(path))


def test_a_recursive_schema_ends() -> None:
    node = {"type": "object", "properties": {"a": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    typed = TypedBodies(json.dumps({"$ref": "#/$defs/node", "$defs": {"node": node}}))
    values, errors = typed.columns([b'{"a": 1, "next": {"a": 2}}'])
    assert values[0].as_py()["next"]["a"] == 2 and errors.null_count == 1


def test_typed_values_are_columns_of_the_table(tmp_path: Path, format: str) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    from dledger.lake.rows import table_schema
    from dledger.lake.table_audit import audit_table
    from tests.lake.by_hand import DeltaHand, IcebergHand

    bodies = [
        b'{"a": 1, "b": ["x", null], "c": {"d": "2026-01-01"}}',
        b"no",
        b'{"a": null, "b": [], "c": {}}',
    ]
    log = Log()
    log.open_term(1)
    for body in bodies:
        log.message("orders", body)
    schema = inferred(bodies)
    about = About(("orders",), schema)
    group = Group(tmp_path, log, about, format)
    table = group.fill()
    rows = [row for batch in table.scan(table_schema(about).names) for row in batch.to_pylist()]
    assert [row["value"] for row in sorted(rows, key=lambda row: row["offset"])] == [
        {"a": 1, "b": ["x", None], "c": {"d": "2026-01-01"}},
        None,
        {"a": None, "b": [], "c": {"d": None}},
    ]
    assert len(rows_of(table)) == 3 and not audit_table(table, [group.write()]).findings
    hand = DeltaHand(group.place) if format == "delta" else IcebergHand(group.place)
    hand.delete("offset = 0")
    wrong = next(row for row in rows if row["offset"] == 0)
    hand.append(pa.Table.from_pylist([wrong | {"value": wrong["value"] | {"a": 2}}], table_schema(about)))
    (found,) = audit_table(group.table(), [group.write()]).findings
    assert (found.code, found.detail) == (
        "TABLE_ROW_CHANGED",
        "the typed value of entry 1 is not that of its body",
    )
    with pytest.raises(TableError, match="another schema"):
        Group(tmp_path, log, About(("orders",), inferred([b'{"z": 1}'])), format).table()


def test_a_list_that_is_missing_or_null_stays_null(tmp_path: Path, format: str) -> None:
    """Seen before: an empty list in Iceberg tables, and an audit that blamed somebody."""
    items = {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}}
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "items": items}})
    log = Log()
    log.open_term(1)
    for body in (b'{"id":1}', b'{"id":2,"items":[{"sku":"a"}]}', b'{"id":3,"items":[]}', b'{"items":null}'):
        log.message("orders", body)
    group = Group(tmp_path, log, About(("orders",), schema), format)
    table = group.fill()
    for _ in range(2):
        values = [row["value"]["items"] for batch in table.scan(["value"]) for row in batch.to_pylist()]
        assert sorted(values, key=str) == sorted([None, [{"sku": "a"}], [], None], key=str)
        assert not audit_table(table, [group.write()]).findings
        table.compact()
        table.refresh()


def test_the_command_says_what_it_inferred_and_what_did_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log()
    log.open_term(1)
    make_topic(log)
    for body in (b'{"shop": "north", "cents": 5}', b"no JSON", b'{"shop": "west", "cents": 7}'):
        log.message("orders", body)
    write_store(log, tmp_path / "n0")
    words = ("lake", "orders", "--store", str(tmp_path / "n0"), "--schema", "infer", "--to")
    assert run(*words, str(tmp_path / "a"), "--format", "delta") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "bodies have the fields, as inferred from the oldest messages: shop string, cents int64",
        "bodies that do not fit: 1 of the 3 added (column value_error says why)",
    ]
    assert run(*words, str(tmp_path / "b"), "--format", "delta", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["unfit_bodies"] == 1 and list(shown["schema"]["properties"]) == ["shop", "cents"]


def test_a_type_of_a_module_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from typing import TypedDict\nclass Sale(TypedDict):\n    shop: str\n"
    (tmp_path / "shop_types_of_a_test.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    before = list(sys.path)
    assert json.loads(schema_of("shop_types_of_a_test:Sale"))["required"] == ["shop"]
    assert sys.path == before
