"""Ids of repeated sends that are stored: the latest operation of an id counts, until the id is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Resends:
    """Unique id -> the latest operation."""

    part = "resends"
    operations: tuple[str, ...] = ("resend", "resend_over")

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "resend":
            self.rows[op["id"]] = dict(op)
        else:
            self.rows.pop(op["id"], None)

    def forget(self, kind: str, name: str) -> None:
        """Do nothing: a repeated send to a deleted topic may still arrive."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["id"]: dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"resends": self.rows}
