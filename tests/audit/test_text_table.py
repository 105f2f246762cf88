"""A table in a terminal: widths of columns, cells of several lines, wide characters."""

from __future__ import annotations

from dledger.audit.text_table import text_table


def test_columns_are_as_wide_as_they_need() -> None:
    assert list(text_table([("name", "n"), ("a", "10"), ("long name", "9")], right=(1,))) == [
        "name        n",
        "a          10",
        "long name   9",
    ]


def test_a_cell_of_several_lines_stays_in_its_column() -> None:
    assert list(text_table([("id", "x", "1"), ("properties", "a=1\nb=2", "2")])) == [
        "id          x    1",
        "properties  a=1  2",
        "            b=2",
    ]


def test_characters_that_take_two_columns_count_twice() -> None:
    """As those of Chinese; one that is written over the character before it takes none."""
    assert list(text_table([("订单", "1"), ("e\u0301", "2"), ("abcd", "3")])) == [
        "订单  1",
        "e\u0301     2",
        "abcd  3",
    ]
