"""Oracle of the topics table. The latest operation on a topic counts. The version of the table rises with
every operation that changes a row, and with every deletion that removes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Topics:
    """Maps the name of a topic to the latest operation on it."""

    part = "topics"
    operations: tuple[str, ...] = ("topic",)

    def __init__(self) -> None:
        self.rows: dict[str, Mapping[str, Any]] = {}
        self.version: int = 0

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        self.version += self.rows.get(op["name"]) != op
        self.rows[op["name"]] = op

    def forget(self, kind: str, name: str) -> None:
        if kind == "topic" and name in self.rows:
            del self.rows[name]
            self.version += 1

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op for op in value}
        self.version = counters["topics_version"]

    def encode(self) -> dict[str, Any]:
        return {"topics": self.rows, "topics_version": self.version}
