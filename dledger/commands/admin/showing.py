"""Prints results of commands for people: tables, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dledger.audit.text_table import text_table
from dledger.commands.terminal import plain


@dataclass(frozen=True)
class Table:
    """A table for people, with named columns. Numbers are aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "none"


def fields(title: str, values: Mapping[str, object]) -> Table:
    """Return a table of names and values."""
    return Table(title, ("", ""), [(name, "" if value is None else value) for name, value in values.items()])


def show(as_json: bool, data: object, parts: Iterable[Table | str] = ()) -> None:
    """Print `data` if `as_json` is set, otherwise `parts`, which are for people."""
    if as_json:
        print(json.dumps(data, indent=1, default=str))
        return
    for part in parts:
        if isinstance(part, str):
            print(plain(part))
        elif not part.rows:
            print(f"{part.title}: {part.empty}" if part.title else part.empty)
        else:
            _print(part)


def _print(table: Table) -> None:
    if sys.stdout.isatty() and _draw(table):
        return
    if table.title:
        print(table.title)
    heads = [tuple(table.columns)] if any(table.columns) else []
    rows = [tuple(_shown(value) for value in row) for row in table.rows]
    print("\n".join(text_table([*heads, *rows], right=_numbers(table))))


def _numbers(table: Table) -> list[int]:
    """Return the indexes of the columns that hold only numbers."""
    columns = range(len(table.columns))
    return [at for at in columns if all(isinstance(row[at], int | float) for row in table.rows)]


def _draw(table: Table) -> bool:
    """Draw the table in a terminal with rich, which wraps wide cells. Returns False if rich is not
    installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        return False
    drawn = RichTable(
        title=table.title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_header=any(table.columns),
        pad_edge=False,
    )
    right = _numbers(table)
    for at, column in enumerate(table.columns):
        drawn.add_column(Text(column), justify="right" if at in right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_shown(value)) for value in row))
    Console(highlight=False).print(drawn)
    return True


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int) and value >= 100_000:
        return f"{value:,}".replace(",", " ")
    return plain(str(value))
