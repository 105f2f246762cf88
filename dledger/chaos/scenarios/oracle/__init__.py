"""Oracles for a broker's tables: the judge's own code that computes from the operations of a log what each
table must hold. There is one module for each table.

This package uses no code of `dledger.formats.state`, because its results are compared with that code's
results. A new table in `dledger.formats.state` needs a module in this package (tests/chaos/test_oracles.py).
Write that module from what the operations should do, and not from how the product does it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from dledger.chaos.scenarios.oracle.auth import Acls, Users
from dledger.chaos.scenarios.oracle.births import GroupBirths, LockEpochs, TopicBirths, UserVersions
from dledger.chaos.scenarios.oracle.delays import Delays
from dledger.chaos.scenarios.oracle.deletions import Deletions
from dledger.chaos.scenarios.oracle.groups import Groups
from dledger.chaos.scenarios.oracle.locks import Locks
from dledger.chaos.scenarios.oracle.offsets import Offsets
from dledger.chaos.scenarios.oracle.pops import PopOrders, Pops, RequestModes, Versions
from dledger.chaos.scenarios.oracle.resends import Resends
from dledger.chaos.scenarios.oracle.resets import Resets
from dledger.chaos.scenarios.oracle.timers import Timers
from dledger.chaos.scenarios.oracle.topics import Topics
from dledger.chaos.scenarios.oracle.transactions import Transactions

Queue = tuple[str, int]
"""A queue as (topic, queue id)."""


class Oracle(Protocol):
    """The oracle of one table, which computes from the operations of the log what the table must hold."""

    @property
    def part(self) -> str:
        """Name of the part of a boundary snapshot that holds the table."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations that change the table."""

    def apply(self, op: Mapping[str, Any], ends: Mapping[Queue, int]) -> None:
        """Apply one operation. `ends` maps each queue that ever had a message to its next offset."""

    def forget(self, kind: str, name: str) -> None:
        """Apply the deletion of a topic, a group or a user. The kind "config" stands for the deletion of a
        group's configuration alone."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        """Replace the content by that of a boundary snapshot. `value` is the unpacked part of this table, and
        `counters` is the unpacked part `counters`."""

    def encode(self) -> dict[str, Any]:
        """The content as JSON values. Equal tables give equal values."""


def oracles() -> tuple[Oracle, ...]:
    """A new, empty oracle for each table that operations change."""
    return (
        Topics(),
        Groups(),
        Offsets(),
        Delays(),
        Locks(),
        Pops(),
        PopOrders(),
        RequestModes(),
        Versions(),
        Resets(),
        Transactions(),
        Deletions(),
        Timers(),
        Resends(),
        Users(),
        Acls(),
        TopicBirths(),
        GroupBirths(),
        UserVersions(),
        LockEpochs(),
    )


__all__ = [
    "Acls",
    "Delays",
    "Deletions",
    "GroupBirths",
    "Groups",
    "LockEpochs",
    "Locks",
    "Offsets",
    "Oracle",
    "PopOrders",
    "Pops",
    "Queue",
    "RequestModes",
    "Resends",
    "Resets",
    "Timers",
    "TopicBirths",
    "Topics",
    "Transactions",
    "UserVersions",
    "Users",
    "Versions",
    "oracles",
]
