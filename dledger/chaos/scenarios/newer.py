"""What a newer program has, and the one that is tested has not: one more table of the replicated state.

In a run with upgrades some brokers know it and some do not (docs/howto/upgrade.md). `NOTES` is declared
as any table of `dledger.formats.state` is; `Notes` is its oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dledger.formats.state import TABLES, Declared, Row, Source, state_version
from dledger.formats.state.table import Name


class Note(Row, frozen=True):
    """Something that somebody wants to be remembered."""

    operation: ClassVar[str] = "note"
    name: Name
    text: str = ""


NOTES = Declared[str, Note]("notes", Note, key=("name",), since=state_version() + 1, remove="unnote")
NEWER_TABLES: tuple[Source, ...] = (*TABLES, NOTES)


class Notes:
    """name -> the operation that made it."""

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
        """Nothing goes."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op for op in value}

    def encode(self) -> dict[str, Any]:
        return {"notes": self.rows}
