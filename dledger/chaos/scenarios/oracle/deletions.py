"""Oracle of deleted topics. The latest deletion of a name says up to which log position messages of that name
belong to the deleted topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Deletions:
    """Maps the name of a deleted topic to the log position up to which its messages lie."""

    part = "deletions"
    operations: tuple[str, ...] = ("topic_delete", "topic_delete_over", "group_delete")

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "topic_delete":
            self.rows[op["name"]] = op["at"]
        elif op["op"] == "topic_delete_over":
            self.rows.pop(op["name"], None)

    def forget(self, kind: str, name: str) -> None:
        """Does nothing, because this table changes by its own operations only."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op["at"] for op in value}

    def encode(self) -> dict[str, Any]:
        return {"deletions": self.rows}
