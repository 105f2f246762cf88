"""Oracle of open transactions. The latest operation on a half message counts, until the transaction ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Transactions:
    """Maps the queue offset of a half message to the latest operation on its transaction."""

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
        """Does nothing, because deletions do not end transactions."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["half"]: dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"transactions": {str(half): row for half, row in self.rows.items()}}
