"""Deletions: the latest one of a name says up to which position the log belongs to the deleted topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Deletions:
    """name -> log offset."""

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
        """Do nothing: other deletions do not change this table."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op["at"] for op in value}

    def encode(self) -> dict[str, Any]:
        return {"deletions": self.rows}
