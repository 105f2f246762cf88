"""Oracle of the delay levels. The latest operation on a level says where its delivery continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Delays:
    """Maps a delay level to the queue offset of the first message that waits."""

    part = "delays"
    operations: tuple[str, ...] = ("delay",)

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        self.rows[op["level"]] = op["next"]

    def forget(self, kind: str, name: str) -> None:
        """Does nothing, because deletions do not change delay levels."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["level"]: op["next"] for op in value}

    def encode(self) -> dict[str, Any]:
        rows = self.rows.items()
        return {"delays": {level: {"op": "delay", "level": level, "next": at} for level, at in rows}}
