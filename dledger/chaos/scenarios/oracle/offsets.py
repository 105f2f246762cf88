"""Oracle of consumer offsets. An offset only rises, except by an explicit reset, and never goes beyond the
end of the queue (safety.md S28)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Offsets:
    """Maps a group, and then (topic, queue id), to the consumer offset."""

    part = "offsets"
    operations: tuple[str, ...] = ("offsets", "reset")

    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[str, int], int]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        known = self.rows.setdefault(op["group"], {})
        for topic, queue, offset in op["offsets"]:
            before = -1 if op["op"] == "reset" else known.get((topic, queue), -1)
            if before < offset <= ends.get((topic, queue), 0):
                known[topic, queue] = offset

    def forget(self, kind: str, name: str) -> None:
        if kind == "group":
            self.rows.pop(name, None)
        elif kind == "topic":
            for group, rows in self.rows.items():
                self.rows[group] = {queue: at for queue, at in rows.items() if queue[0] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {group: {(topic, queue): at for topic, queue, at in rows} for group, rows in value}

    def encode(self) -> dict[str, Any]:
        return {
            "offsets": {
                group: [[*queue, at] for queue, at in sorted(rows.items())]
                for group, rows in self.rows.items()
            }
        }
