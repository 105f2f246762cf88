"""Transactions in a run with brokers: the intentions of producers and the answers to them, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dledger.chaos.scenarios.history import RUNNING

CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX = 1_000, 2_000, 4
"""Settings of the brokers for the checks of transactions."""
TRANSACTIONS_LIMIT_S = 2.0 * (CHECK_AFTER_MS + CHECK_EVERY_MS * CHECK_MAX) / 1000 + 15.0
"""Time after which no transaction may be open: twice the time that brokers wait (a clock was ahead), and some
time."""


class Fate(Enum):
    """A producer's intention for a message."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    COMMIT_IF_ASKED = "commit when asked"
    ROLL_BACK_IF_ASKED = "roll back when asked"
    NEVER = "never decided"

    @property
    def commits(self) -> bool:
        """Whether the message should be delivered to its topic."""
        return self in (Fate.COMMIT, Fate.COMMIT_IF_ASKED)


@dataclass
class End:
    """A producer's decision about its half message, sent at once. `half`: the offset that the producer
    got."""

    value: bytes
    half: int
    commit: bool
    outcome: str = RUNNING


@dataclass
class TransactionHistory:
    """The intentions and decisions of all producers."""

    fates: dict[bytes, Fate] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
