"""The output of commands: printed as Apache's mqadmin does, or, with `--json`, collected into one object.

The object maps a table's name to its rows, and each row maps a column's name, without `#`, to a value. The
field `messages` has the other lines of the output. A command that repeats its work until it is ended
prints one object each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from dledger.commands.terminal import plain


@dataclass(frozen=True)
class Table:
    """A table with its columns. `head` and `row` are formats of the first line and of a row, which both
    Java's and Python's printf understand. `cut` maps the number of a column to the length to which longer
    texts are cut."""

    name: str
    columns: Sequence[str]
    head: str
    row: str
    cut: Mapping[int, int]

    @staticmethod
    def of(
        name: str,
        columns: Sequence[str],
        head: str,
        row: str | None = None,
        cut: Mapping[int, int] | None = None,
    ) -> Table:
        """Make a table. `row` is given only if the format of a row differs from that of the first line."""
        return Table(name, tuple(columns), head, row or head, cut or {})

    def line(self, values: Sequence[object]) -> str:
        """Format one row."""
        return self.row % tuple(
            str(value)[: self.cut[at]] if at in self.cut else value for at, value in enumerate(values)
        )


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self._stream = stream or sys.stdout
        self._said: dict[str, Any] = {}

    def line(self, text: str = "") -> None:
        """Print a line for people. In JSON the line is added to `messages`, unless it is blank or only a
        rule (`---`)."""
        if not self.as_json:
            self._print(text)
        elif text.strip(" -=\n"):
            self._said.setdefault("messages", []).append(text.strip())

    def value(self, name: str, value: object, text: str | None = None) -> None:
        """Output one named value. `text` is what people see; if it is None, people do not see the value."""
        if self.as_json:
            self._said[name] = value
        elif text is not None:
            self._print(text)

    def item(self, name: str, value: object, text: str) -> None:
        """Output one value of a list; `name` is the name of the list. `text` is what people see."""
        if self.as_json:
            self._said.setdefault(name, []).append(value)
        else:
            self._print(text)

    def head(self, table: Table) -> None:
        """Output the first line of a table."""
        if self.as_json:
            self._said.setdefault(table.name, [])
        else:
            self._print(table.head % tuple(table.columns))

    def row(self, table: Table, *values: object) -> None:
        """Output one row of a table."""
        if self.as_json:
            names = [column.removeprefix("#") for column in table.columns]
            row = {name: _plain(value) for name, value in zip(names, values, strict=True)}
            self._said.setdefault(table.name, []).append(row)
        else:
            self._print(table.line(values))

    def table(self, table: Table, rows: Iterable[Sequence[object]]) -> None:
        """Output a whole table."""
        self.head(table)
        for row in rows:
            self.row(table, *row)

    def end_round(self) -> None:
        """End one repetition of the command's work: with `--json`, print the collected object."""
        if self.as_json and self._said:
            self._print(json.dumps(self._said))
            self._said = {}
        self._stream.flush()

    def fail(self, text: str) -> None:
        """Report an error on standard error. The command continues."""
        if self.as_json:
            self._said.setdefault("errors", []).append(text)
        print(plain(text), file=sys.stderr)

    def _print(self, text: str) -> None:
        # What messages hold must not steer a terminal, which may be behind a pipe too (`| less -R`, `| tee`).
        print(plain(text), file=self._stream)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value.strip()
    return value if isinstance(value, int | float | bool) or value is None else str(value)
