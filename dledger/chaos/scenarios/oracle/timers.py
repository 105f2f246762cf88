"""Timers: the message from which on messages wait, and how far they were delivered in the order of
delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Timers:
    """Offset of the first message of a row -> (time in ms, queue offset) behind the last message
    delivered."""

    part = "timers"
    operations: tuple[str, ...] = ("timer", "timer_end")

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "timer_end":
            self.rows.pop(op["begin"], None)
        else:
            self.rows[op["begin"]] = op["time"], op["next"]

    def forget(self, kind: str, name: str) -> None:
        """Do nothing: messages of a deleted topic stay until they are due, and are then not delivered."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["begin"]: (op["time"], op["next"]) for op in value}

    def encode(self) -> dict[str, Any]:
        rows = {
            begin: {"op": "timer", "begin": begin, "time": time, "next": following}
            for begin, (time, following) in self.rows.items()
        }
        return {"timers": rows}
