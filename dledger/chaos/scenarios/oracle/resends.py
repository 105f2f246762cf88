"""Oracle of repeated sends that are stored. The latest operation on a message's unique id counts, until an
operation says that the id is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Resends:
    """Maps the unique id of a message to the latest operation on it."""

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
        """Does nothing, because a repeated send to a deleted topic may still arrive."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["id"]: dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"resends": self.rows}
