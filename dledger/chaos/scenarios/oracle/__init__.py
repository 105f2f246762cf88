"""The judge's own code for what the operations of a log make of a broker's tables: one module for each table.

It uses no code of `dledger.formats.state`, as the results are compared. A new table there needs a module here
(tests/chaos/test_oracles.py). The module is written from what the operation should do, not from how it is
done.
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
"""Topic and queue id."""


class Oracle(Protocol):
    """The judge's version of one table."""

    @property
    def part(self) -> str:
        """The name of the table's part of a boundary snapshot."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations that change the table."""

    def apply(self, op: Mapping[str, Any], ends: Mapping[Queue, int]) -> None:
        """Apply one operation. `ends`: next offset of each queue that ever had a message."""

    def forget(self, kind: str, name: str) -> None:
        """Apply a deletion of a topic, a group, a user, or (kind "config") of a group's configuration
        alone."""

    def load(self, value: Any, counters: Mapping[str, int]) -> None:
        """Take the content of a boundary snapshot: the unpacked part of this table, and the part
        `counters`."""

    def encode(self) -> dict[str, Any]:
        """The content as JSON values: equal tables give equal values."""


def oracles() -> tuple[Oracle, ...]:
    """A fresh oracle for each table that operations change."""
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
