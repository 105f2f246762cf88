"""An extra table of the replicated state, for runs with upgrades. The newer program of such a run has this
table.

Some brokers of the run know the table and some do not (docs/howto/upgrade.md). `NOTES` is declared like any
table of `dledger.formats.state`; `Notes` is its oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dledger.formats.state import TABLES, Declared, Row, Source, state_version
from dledger.formats.state.table import Name


class Note(Row, frozen=True):
    """One row of the extra table: a named text."""

    operation: ClassVar[str] = "note"
    name: Name
    text: str = ""


NOTES = Declared[str, Note]("notes", Note, key=("name",), since=state_version() + 1, remove="unnote")
NEWER_TABLES: tuple[Source, ...] = (*TABLES, NOTES)


class Notes:
    """The oracle of the extra table. It maps a name to the latest operation of that name."""

    part = "notes"
    operations: tuple[str, ...] = ("note", "unnote")

    def __init__(self) -> None:
        self.rows: dict[str, Mapping[str, Any]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "note":
            self.rows[op["name"]] = op
        else:
            self.rows.pop(op["name"], None)

    def forget(self, kind: str, name: str) -> None:
        """Does nothing, because deletions remove no notes."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op for op in value}

    def encode(self) -> dict[str, Any]:
        return {"notes": self.rows}
