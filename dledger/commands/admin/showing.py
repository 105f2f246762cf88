"""What commands for people print: tables, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import click

from dledger.commands.terminal import plain

NEEDS_RICH = "tables need rich: pip install 'dledger[admin]', or give --json"
WIDE = 240
"""Columns where nobody watches: nothing is to be cut off."""


@dataclass(frozen=True)
class Table:
    """Rows under columns. Numbers stand to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "none"


def fields(title: str, values: Mapping[str, object]) -> Table:
    """Names and values."""
    return Table(title, ("", ""), [(name, "" if value is None else value) for name, value in values.items()])


def show(as_json: bool, data: object, parts: Iterable[Table | str] = ()) -> None:
    """Print `data` as JSON, or the parts for people."""
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
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError as error:
        raise click.ClickException(NEEDS_RICH) from error
    watched = sys.stdout.isatty()
    console = Console(width=None if watched else WIDE, highlight=False)
    heads = any(table.columns)
    drawn = RichTable(
        title=table.title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD if watched else None,
        show_header=heads,
        pad_edge=False,
    )
    for at, column in enumerate(table.columns):
        numbers = all(isinstance(row[at], int | float) for row in table.rows)
        drawn.add_column(Text(column), justify="right" if numbers else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_shown(value)) for value in row))
    console.print(drawn)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int) and value >= 100_000:
        return f"{value:,}".replace(",", " ")
    return plain(str(value))
