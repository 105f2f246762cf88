"""Oracle of queue locks. A queue belongs to the last client that locked it, until that client unlocks it or
another client locks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Locks:
    """Maps (group, topic, queue id) to the client id of the lock's owner."""

    part = "locks"
    operations: tuple[str, ...] = ("lock", "locks", "unlocks")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], str] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        queues = [(op["topic"], op["queue"])] if op["op"] == "lock" else op["queues"]
        for topic, queue in queues:
            key = (op["group"], topic, queue)
            if op["op"] != "unlocks":
                self.rows[key] = op["client"]
            elif self.rows.get(key) == op["client"]:
                del self.rows[key]

    def forget(self, kind: str, name: str) -> None:
        place = {"group": 0, "topic": 1}.get(kind)
        self.rows = {key: row for key, row in self.rows.items() if place is None or key[place] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {(op["group"], op["topic"], op["queue"]): op["client"] for op in value}

    def encode(self) -> dict[str, Any]:
        return {"locks": [[*key, client] for key, client in sorted(self.rows.items())]}
