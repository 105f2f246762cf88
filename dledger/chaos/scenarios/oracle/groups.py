"""Oracle of consumer groups. The latest operation on a name counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Groups:
    """Maps the name of a consumer group to the latest operation on it."""

    part = "groups"
    operations: tuple[str, ...] = ("group",)

    def __init__(self) -> None:
        self.rows: dict[str, Mapping[str, Any]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        self.rows[op["name"]] = op

    def forget(self, kind: str, name: str) -> None:
        if kind in ("group", "config"):
            self.rows.pop(name, None)

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op for op in value}

    def encode(self) -> dict[str, Any]:
        return {"groups": self.rows}
