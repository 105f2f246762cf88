"""Oracles of pop consumption.

* A checkpoint holds the messages of one pop; acknowledgements remove messages from it until it is empty.
* A queue that is popped in order has one row: its latest operation.
* The latest operation sets the request mode (pull or pop) of a topic and group.
* The versions of the replicated state that were noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Key = tuple[str, str, int, int, int]
Row = dict[str, Any]


class Pops:
    """Maps a checkpoint (group, topic, queue, start, time) to its operation. The operation's offsets are
    those that are not acknowledged yet."""

    part = "pops"
    operations: tuple[str, ...] = ("pop", "pop_done")

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        key = (op["group"], op["topic"], op["queue"], op["start"], op["time"])
        if op["op"] == "pop":
            self.rows[key] = dict(op)
        elif key in self.rows:
            gone = set(op["offsets"])
            row = self.rows.pop(key)
            left = [offset for offset in row["offsets"] if offset not in gone]
            if left:
                self.rows[key] = {**row, "offsets": left}

    def forget(self, kind: str, name: str) -> None:
        place = {"group": 0, "topic": 1}.get(kind)
        self.rows = {key: row for key, row in self.rows.items() if place is None or key[place] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {}
        for op in value:
            self.apply(op, {})

    def encode(self) -> dict[str, Any]:
        return {"pops": {" ".join(map(str, key)): row for key, row in self.rows.items()}}


class PopOrders:
    """Maps (group, topic, queue) of a queue that is popped in order to the latest operation on it."""

    part = "pop_orders"
    operations: tuple[str, ...] = ("pop_order", "pop_order_end")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], Row] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        key = (op["group"], op["topic"], op["queue"])
        if op["op"] == "pop_order":
            self.rows[key] = dict(op)
        else:
            self.rows.pop(key, None)

    def forget(self, kind: str, name: str) -> None:
        place = {"group": 0, "topic": 1}.get(kind)
        self.rows = {key: row for key, row in self.rows.items() if place is None or key[place] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {(op["group"], op["topic"], op["queue"]): dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"pop_orders": {" ".join(map(str, key)): row for key, row in self.rows.items()}}


class Versions:
    """The versions of the replicated state that were noted in the log."""

    part = "versions"
    operations: tuple[str, ...] = ("version",)

    def __init__(self) -> None:
        self.rows: dict[int, None] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        self.rows[op["version"]] = None

    def forget(self, kind: str, name: str) -> None:
        """Does nothing, because deletions remove no versions."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["version"]: None for op in value}

    def encode(self) -> dict[str, Any]:
        return {"versions": sorted(self.rows)}


class RequestModes:
    """Maps (topic, group) to the latest operation that set their request mode."""

    part = "request_modes"
    operations: tuple[str, ...] = ("request_mode",)

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        self.rows[op["topic"], op["group"]] = dict(op)

    def forget(self, kind: str, name: str) -> None:
        place = {"topic": 0, "group": 1}.get(kind)
        self.rows = {key: row for key, row in self.rows.items() if place is None or key[place] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {(op["topic"], op["group"]): dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"request_modes": {f"{topic} {group}": row for (topic, group), row in self.rows.items()}}
