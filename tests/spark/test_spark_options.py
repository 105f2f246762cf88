"""Options of the data source: checked without Spark."""

from __future__ import annotations

import pytest

from spark.options import BadOption, Options, parse


def test_names_are_not_case_sensitive() -> None:
    assert parse({"PATH": "/a,/b", "VIEW": "Entries", "indexranges": "5-9,0-1"}) == Options(
        ("/a", "/b"), "entries", index_ranges=((0, 1), (5, 9))
    )


def test_paths_with_commas_come_as_json() -> None:
    assert parse({"path": '["/a,b", "/c"]'}).paths == ("/a,b", "/c")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "path is missing"),
        ({"path": "/a", "vieuw": "scan"}, "did you mean 'view'"),
        ({"path": "/a", "view": "entrys"}, "did you mean 'entries'"),
        ({"path": "/a", "includeValue": "yes"}, "includeValue: 'yes' is not one of true, false"),
        ({"path": "/a", "indexRanges": "9-5"}, "empty or negative"),
        ({"path": "/a", "indexRanges": "a-b"}, "is not like"),
        ({"path": "/a", "blockRows": "0"}, "not a positive number"),
        ({"path": "/a", "topic": "x", "subscribe": "y"}, "give one"),
        ({"path": "/a", "corruptRecords": "include"}, "corruptRecords: 'include' is not one of fail, skip"),
        ({"path": "[1]"}, "JSON list of texts"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse(options)
