"""Oracles of users and of their policies. The latest operation on a name counts, and deleting a user deletes
its policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]


class Users:
    """Maps the name of a user to the latest operation on it."""

    part = "users"
    operations: tuple[str, ...] = ("user", "user_delete")

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        if op["op"] == "user":
            self.rows[op["name"]] = dict(op)
        else:
            self.rows.pop(op["name"], None)

    def forget(self, kind: str, name: str) -> None:
        """Does nothing, because only the operation `user_delete` removes a user."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {op["name"]: dict(op) for op in value}

    def encode(self) -> dict[str, Any]:
        return {"users": self.rows}


class Acls:
    """Maps (user, policy, resource) to the latest operation on that entry of a policy."""

    part = "acls"
    operations: tuple[str, ...] = ("acl", "acl_delete")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], Row] = {}

    def apply(self, op: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> None:
        key = (op["user"], op["policy"], op["resource"])
        if op["op"] == "acl":
            self.rows[key] = dict(op)
        else:
            self.rows.pop(key, None)

    def forget(self, kind: str, name: str) -> None:
        if kind == "user":
            self.rows = {key: row for key, row in self.rows.items() if key[0] != name}

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        self.rows = {}
        for op in value:
            self.apply(op, {})

    def encode(self) -> dict[str, Any]:
        return {"acls": {" ".join(key): row for key, row in self.rows.items()}}
