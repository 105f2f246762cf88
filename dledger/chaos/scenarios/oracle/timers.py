"""Timers: from which message on something waits, and up to which place in the order of delivery it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Timers:
    """Offset of the first message of a row -> (time in ms, queue offset) behind the last one delivered."""

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
        """A deleted topic's messages stay until they are due, and then they do not come."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["begin"]: (op["time"], op["next"]) for op in value}

    def encode(self) -> dict[str, Any]:
        rows = {
            begin: {"op": "timer", "begin": begin, "time": time, "next": following}
            for begin, (time, following) in self.rows.items()
        }
        return {"timers": rows}
