"""Records of an input: lines, JSON lines and CSV, and what is said of those that cannot be sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dledger.commands.messages.records import (
    MAX_RECORD_BYTES,
    BadRecord,
    Layout,
    Reader,
    Record,
    Splitter,
    format_of,
)


def read(data: bytes, cut: int = 7, **layout: Any) -> list[Record]:
    """All records, of an input that comes in pieces."""
    splitter, reader = Splitter(), Reader(Layout(**layout))
    found = []
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    for piece in pieces:
        found += [reader.take(number, line) for number, line in splitter.feed(piece)]
    found += [reader.take(number, line) for number, line in splitter.end()]
    reader.end()
    return [one for one in found if one is not None]


@pytest.mark.parametrize("cut", [1, 2, 5, 1000])
def test_lines(cut: int) -> None:
    assert read(b"one\ntwo\r\n\xff\xfe\nlast", cut) == [
        Record(1, b"one"),
        Record(2, b"two"),
        Record(3, b"\xff\xfe"),
        Record(4, b"last"),
    ]


def test_lines_with_keys() -> None:
    found = read(b"k1:a:b\n:no key\n", key_separator=":")
    assert [(one.keys, one.body) for one in found] == [(("k1",), b"a:b"), ((), b"no key")]


@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_json_lines(cut: int) -> None:
    rows = [
        {"body": "text ä", "key": "k", "tag": "t"},
        {"body": {"a": [1, None]}, "keys": ["x", 7], "tags": "u", "properties": {"p": "1", "n": 2}},
        {"bodyBase64": "/w==", "orderingKey": "o"},
    ]
    found = read("".join(json.dumps(row) + "\n" for row in rows).encode(), cut, format="json")
    assert found == [
        Record(1, "text ä".encode(), ("k",), "t"),
        Record(2, b'{"a":[1,null]}', ("x", "7"), "u", None, {"p": "1", "n": "2"}),
        Record(3, b"\xff", (), None, "o"),
    ]


def test_what_consume_prints_can_be_sent_again() -> None:
    line = {
        "topic": "T", "brokerName": "b", "queueId": 0, "queueOffset": 5, "msgId": "A", "tags": "t",
        "keys": ["k"], "properties": {"p": "1"}, "storeTimestamp": 1, "body": "x",
    }  # fmt: skip
    assert read(json.dumps(line).encode(), format="json") == [Record(1, b"x", ("k",), "t", None, {"p": "1"})]


@pytest.mark.parametrize("cut", [1, 4, 1000])
def test_csv(cut: int) -> None:
    data = '\ufeffbody,key,tag\r\none,k1,t\r\n"two, ""quoted""\nand more",,\nthree,k3,t\n'.encode()
    assert read(data, cut, format="csv") == [
        Record(2, b"one", ("k1",), "t"),
        Record(3, b'two, "quoted"\nand more'),
        Record(5, b"three", ("k3",), "t"),
    ]


def test_columns_of_other_names_and_the_whole_row() -> None:
    data = b"order;amount;kind\n17;9.50;paid\n"
    fields = {"body": "*", "key": "order", "tag": "kind"}
    (row,) = read(data, format="csv", delimiter=";", fields=fields)
    assert json.loads(row.body) == {"order": "17", "amount": "9.50", "kind": "paid"}
    assert (row.keys, row.tag) == (("17",), "paid")
    (row,) = read(data, format="csv", delimiter=";", fields={"body": "amount"}, ignore_other=True)
    assert (row.body, row.keys) == (b"9.50", ())


def test_a_large_cell_is_one_body() -> None:
    """More than Python's reader of CSV takes by itself."""
    body = b"x" * 200_000
    (row,) = read(b"body\n" + body + b"\n", 65536, format="csv")
    assert row.body == body


@pytest.mark.parametrize(
    ("data", "layout", "line", "text"),
    [
        (b"a\n\nb\n", {}, 2, "the body is empty"),
        (b"a\nb\n", {"key_separator": "\t"}, 1, "the line has no '\\t' between key and body"),
        (b'{"body":"a"}\n{"body":\n', {"format": "json"}, 2, "not JSON: "),
        (b'{"body":"a"}\n[1]\n', {"format": "json"}, 2, "not a JSON object"),
        (
            b'{"key":"a"}\n',
            {"format": "json"},
            1,
            "there is no body; the fields are key. Name it with --field body=NAME",
        ),
        (
            b'{"boddy":"a"}\n',
            {"format": "json"},
            1,
            "'boddy' is not a part of a message: did you mean 'body'?",
        ),
        (b'{"body":null}\n', {"format": "json"}, 1, "the body is empty"),
        (b'{"body":"a","tag":{"x":1}}\n', {"format": "json"}, 1, "the tag is not a text: "),
        (b'{"body":"a","properties":[1]}\n', {"format": "json"}, 1, "the properties are not a JSON object"),
        (b'{"bodyBase64":"?"}\n', {"format": "json"}, 1, "bodyBase64: "),
        (
            b'{"body":"a"}\n',
            {"format": "json", "fields": {"key": "id"}},
            1,
            "there is no field 'id'; the fields are body",
        ),
        (b"body,key\na,b\nc\n", {"format": "csv"}, 3, "1 columns, and the header has 2"),
        (b"body,price\na,b\n", {"format": "csv"}, 1, "'price' is not a part of a message: "),
        (
            b"text\na\n",
            {"format": "csv", "fields": {"body": "txt"}},
            1,
            "there is no column 'txt'; the columns are text",
        ),
        (b"body,body\na,b\n", {"format": "csv"}, 1, "the header names body twice"),
        (b'body\na\n"b\nc\n', {"format": "csv"}, 3, "a quotation mark is opened here and not closed"),
        (b'body\n"a"b\n', {"format": "csv"}, 2, "not CSV: "),
        (b"body\na\n\xff\n", {"format": "csv"}, 3, "not UTF-8: "),
        (b"key\nk\n", {"format": "csv"}, 2, "there is no body; the fields are key"),
        (b"[" * 100_000, {"format": "json"}, 1, "not JSON: nested too deeply"),
        (b'{"body":"\\ud800"}\n', {"format": "json"}, 1, "the body has a character that UTF-8 cannot encode"),
        (
            b'{"body":"a","key":"\\ud800"}\n',
            {"format": "json"},
            1,
            "the key has a character that UTF-8 cannot encode",
        ),
        (
            b'{"body":["\\udfff"]}\n',
            {"format": "json"},
            1,
            "the body has a character that UTF-8 cannot encode",
        ),
        (b"\xff:a\n", {"key_separator": ":"}, 1, "not UTF-8: "),
    ],
)
def test_what_is_wrong_is_said_with_the_line(
    data: bytes, layout: dict[str, Any], line: int, text: str
) -> None:
    with pytest.raises(BadRecord) as wrong:
        read(data, **layout)
    assert wrong.value.line == line and text in str(wrong.value)


def test_empty_lines_can_be_passed_over() -> None:
    assert [one.body for one in read(b"a\n\n \nb\n\n", skip_empty=True)] == [b"a", b"b"]
    assert [one.body for one in read(b"body\n\na\n\n", format="csv", skip_empty=True)] == [b"a"]


def test_a_record_has_a_longest_size() -> None:
    with pytest.raises(BadRecord, match="longer than") as wrong:
        read(b"a\n" + b"x" * (MAX_RECORD_BYTES + 1), 1 << 22)
    assert wrong.value.line == 2
    quoted = b'body\n"' + (b"x" * (1 << 20) + b"\n") * 17
    with pytest.raises(BadRecord, match="check that every quotation mark is closed") as wrong:
        read(quoted, 1 << 22, format="csv")
    assert wrong.value.line == 2


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.csv", "csv"),
        ("a.TSV", "csv"),
        ("a.jsonl", "json"),
        ("a.json", "json"),
        ("a.txt", "lines"),
        ("-", "lines"),
    ],
)
def test_a_name_tells_the_format(name: str, format: str) -> None:
    assert format_of(name) == format
