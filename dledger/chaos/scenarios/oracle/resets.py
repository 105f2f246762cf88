"""Oracle of resets that consumers do not know yet. A reset names queues and their new offsets. A queue is
removed when its consumer has moved to the new offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Resets:
    """Maps (group, topic), and then the queue id, to the new offset."""

    part = "resets"
    operations: tuple[str, ...] = ("offset_reset", "reset_over", "reset_heard")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[int, int]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        key = (op["group"], op["topic"])
        if op["op"] == "reset_over":
            self.rows.pop(key, None)
            return
        if op["op"] == "offset_reset":
            self.rows[key] = dict(op["queues"])
            return
        row = self.rows.get(key, {})
        if row.get(op["queue"]) == op["offset"]:
            del row[op["queue"]]
            if not row:
                del self.rows[key]

    def forget(self, kind: str, name: str) -> None:
        place = {"group": 0, "topic": 1}.get(kind)
        self.rows = {key: row for key, row in self.rows.items() if place is None or key[place] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {(op["group"], op["topic"]): dict(op["queues"]) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"resets": [[*key, sorted(row.items())] for key, row in sorted(self.rows.items())]}
