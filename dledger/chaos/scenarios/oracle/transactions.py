"""Open transactions: the latest operation of a half message counts, until the transaction ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Transactions:
    """Queue offset of the half message -> the latest operation."""

    part = "transactions"
    operations: tuple[str, ...] = ("transaction", "transaction_end")

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "transaction":
            self.rows[op["half"]] = dict(op)
        else:
            self.rows.pop(op["half"], None)

    def forget(self, kind: str, name: str) -> None:
        """Do nothing: deletions do not end transactions."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["half"]: dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"transactions": {str(half): row for half, row in self.rows.items()}}
