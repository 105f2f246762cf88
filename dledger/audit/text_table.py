"""A table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from unicodedata import combining, east_asian_width


def text_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Return the lines of a table with columns as wide as needed. The columns in `right` (numbers) are
    aligned to the right. A cell may have several lines."""
    lines = [line for row in rows for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")]
    widths = [max(width_of(line[column]) for line in lines) for column in range(len(rows[0]))]
    for line in lines:
        cells = (
            " " * (width - width_of(cell)) + cell
            if column in right
            else cell + " " * (width - width_of(cell))
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def width_of(text: str) -> int:
    """Number of columns that a text takes in a terminal. Combining characters take none, wide characters of
    East Asia two."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
