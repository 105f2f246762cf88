"""Configuration files: the grammar, and edits that leave alone what they do not concern."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.runtime.files import OsFiles
from dledger.runtime.properties_file import edit_properties, parse_properties, read_properties
from dledger.runtime.settings import ConfigError


def pairs(text: str) -> list[tuple[str, str]]:
    return [(item.key, item.value) for item in parse_properties(text)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a=1\nb:2\nc 3\nd = 4\ne : 5\n", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]),
        ("# x\n! y\n\n  # z\na=1", [("a", "1")]),
        ("a=", [("a", "")]),
        ("a=x=y:z w", [("a", "x=y:z w")]),
        ("a=1;\\\n   2;\\\n  # no comment\nb=3", [("a", "1;2;# no comment"), ("b", "3")]),
        ("a=C:\\\\\nb=1", [("a", "C:\\\\"), ("b", "1")]),
        ("a=1\\", [("a", "1")]),
        ("\ufeffa=1\r\nb=2\r\n", [("a", "1"), ("b", "2")]),
        ("\ufeff# only a comment\n", []),
        ("", []),
    ],
)
def test_the_grammar(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_places_count_lines_as_editors_do() -> None:
    items = parse_properties("\ufeffa=1\n\nb=2;\\\n  3\nc=4", "x.conf")
    assert [item.where for item in items] == ["x.conf, line 1", "x.conf, line 3", "x.conf, line 5"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    with pytest.raises(ConfigError, match=f"{path}: no such file"):
        read_properties(OsFiles(), str(path))
    path.write_bytes(b"a=1\nb=\xff\n")
    with pytest.raises(ConfigError, match=f"{path}, line 2: not UTF-8"):
        read_properties(OsFiles(), str(path))
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be read"):
        read_properties(OsFiles(), str(tmp_path))


@pytest.mark.parametrize(
    "text, changes, expected",
    [
        ("# mine\na=1\n\n  b : 2\nc=3\n", {"b": "9"}, "# mine\na=1\n\nb=9\nc=3\n"),
        ("a=1", {"z": "2"}, "a=1\nz=2\n"),
        ("", {"z": "2"}, "z=2\n"),
        ("a=1;\\\n  2\n# end\n", {"a": "3"}, "a=3\n# end\n"),
        ("a=1\r\n# c\r\nb=2\r\n", {"a": "3", "z": "4"}, "a=3\r\n# c\r\nb=2\r\nz=4\r\n"),
        ("\ufeffa=1\n", {"a": "2"}, "\ufeffa=2\n"),
        ("#a=1\na=1\n#a=1\n", {"a": "2"}, "#a=1\na=2\n#a=1\n"),
        ("a=1\nab=1\n", {"a": "2"}, "a=2\nab=1\n"),
        ("a=1\nb=1\na=1\n", {"a": "2"}, "a=2\nb=1\na=2\n"),
        ("a=1\n\n\n", {"b": "2"}, "a=1\n\n\nb=2\n"),
    ],
)
def test_an_edit_keeps_comments_order_and_ends_of_lines(
    text: str, changes: dict[str, str], expected: str
) -> None:
    assert edit_properties(text, changes) == expected
    assert dict(pairs(expected)) == dict(pairs(text)) | changes


@pytest.mark.parametrize("value", ["a\nb=1", "a\\", " a", "a\u2028b"])
def test_a_value_that_is_no_line_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="cannot be written as one line"):
        edit_properties("a=1\n", {"a": value})
