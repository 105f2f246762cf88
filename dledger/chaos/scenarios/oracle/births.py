"""Oracles of the numbers by which late requests are recognized: log positions at which topics and groups were
created, versions of users, and epochs of locks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class _Numbers:
    """Maps a name to a number. The number is removed when a deletion of one of the `kinds` names it."""

    part: ClassVar[str]
    operations: tuple[str, ...]
    field: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        self.rows[op["name"]] = op[self.field]

    def forget(self, kind: str, name: str) -> None:
        if kind in self.kinds:
            self.rows.pop(name, None)

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: op[self.field] for op in value}

    def encode(self) -> dict[str, Any]:
        return {self.part: sorted(map(list, self.rows.items()))}


class TopicBirths(_Numbers):
    """Maps a topic to the log position at which it was created."""

    part = "topic_births"
    operations: tuple[str, ...] = ("topic_birth",)
    field = "at"
    kinds = ("topic",)


class GroupBirths(_Numbers):
    """Maps a group to the log position at which it was created."""

    part = "group_births"
    operations: tuple[str, ...] = ("group_birth",)
    field = "at"
    kinds = ("group", "config")


class UserVersions(_Numbers):
    """Maps the name of a user to how often it was changed. No deletion removes the number."""

    part = "user_versions"
    operations: tuple[str, ...] = ("user_version",)
    field = "changes"


class LockEpochs:
    """Maps (group, topic, queue id) to the epoch of the queue's lock."""

    part = "lock_epochs"
    operations: tuple[str, ...] = ("lock_epoch", "lock_epochs", "lock_epochs_over")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], int] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "lock_epoch":
            self.rows[op["group"], op["topic"], op["queue"]] = op["epoch"]
            return
        for topic, queue, epoch in op["queues"]:
            if op["op"] == "lock_epochs":
                self.rows[op["group"], topic, queue] = epoch
            else:
                self.rows.pop((op["group"], topic, queue), None)

    def forget(self, kind: str, name: str) -> None:
        place = {"group": 0, "topic": 1}.get(kind)
        self.rows = {key: row for key, row in self.rows.items() if place is None or key[place] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {(op["group"], op["topic"], op["queue"]): op["epoch"] for op in value}

    def encode(self) -> dict[str, Any]:
        return {"lock_epochs": [[*key, epoch] for key, epoch in sorted(self.rows.items())]}
