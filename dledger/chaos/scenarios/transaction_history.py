"""Transactions in a run with brokers: what producers mean, and what they were told, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dledger.chaos.scenarios.history import RUNNING

CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX = 1_000, 2_000, 4
"""Settings of the brokers."""
TRANSACTIONS_LIMIT_S = 2.0 * (CHECK_AFTER_MS + CHECK_EVERY_MS * CHECK_MAX) / 1000 + 15.0
"""After what time none is open any more: twice what brokers wait (a clock was ahead), and some."""


class Fate(Enum):
    """What a producer means with a message."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    COMMIT_IF_ASKED = "commit when asked"
    ROLL_BACK_IF_ASKED = "roll back when asked"
    NEVER = "never decided"

    @property
    def commits(self) -> bool:
        """It is to come to its topic."""
        return self in (Fate.COMMIT, Fate.COMMIT_IF_ASKED)


@dataclass
class End:
    """A producer said at once what becomes of its half message. `half`: the offset that it was told."""

    value: bytes
    half: int
    commit: bool
    outcome: str = RUNNING


@dataclass
class TransactionHistory:
    """What all producers did."""

    fates: dict[bytes, Fate] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
