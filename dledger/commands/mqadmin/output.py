"""The output of commands: printed as Apache's mqadmin does, or, with `--json`, collected into one object.

The object has the rows of tables by the table's name, with the columns' names without `#`. `messages` are the
lines around them. Commands that run until they are ended print one object each round.
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
    """Rows in columns. `row` and `head` are formats for Java's and Python's printf. `cut`: the length to
    which longer texts are cut, by column."""

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
        """Make a table. `row` is given when it differs from the head's format."""
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
        """Print a line for people. In JSON it is one of `messages`, unless it is blank or a rule."""
        if not self.as_json:
            self._print(text)
        elif text.strip(" -=\n"):
            self._said.setdefault("messages", []).append(text.strip())

    def value(self, name: str, value: object, text: str | None = None) -> None:
        """Output one value. `text` is how people see it; without it they do not."""
        if self.as_json:
            self._said[name] = value
        elif text is not None:
            self._print(text)

    def item(self, name: str, value: object, text: str) -> None:
        """Output one of several values. `text` is how people see it."""
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
        """End a round: in JSON, print the collected object."""
        if self.as_json and self._said:
            self._print(json.dumps(self._said))
            self._said = {}
        self._stream.flush()

    def fail(self, text: str) -> None:
        """Report an error; the command goes on."""
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
