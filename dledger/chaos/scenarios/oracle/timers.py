"""Oracle of timers. Each row of the table begins at a message of the topic in which timer messages wait. The
row says up to where messages were delivered, in the order of their times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Timers:
    """Maps the queue offset of a row's first message to (time in ms, queue offset), the place after the last
    message that was delivered."""

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
        """Does nothing, because messages of a deleted topic stay until they are due; then they are not
        delivered."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["begin"]: (op["time"], op["next"]) for op in value}

    def encode(self) -> dict[str, Any]:
        rows = {
            begin: {"op": "timer", "begin": begin, "time": time, "next": following}
            for begin, (time, following) in self.rows.items()
        }
        return {"timers": rows}
