"""Transactions in a run with brokers: what producers intend, and the answers to them. The judge uses both."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dledger.chaos.scenarios.history import RUNNING

CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX = 1_000, 2_000, 4
"""Settings of the brokers for checks of transactions: time until the first check and time between checks, in
ms, and the largest number of checks."""
TRANSACTIONS_LIMIT_S = 2.0 * (CHECK_AFTER_MS + CHECK_EVERY_MS * CHECK_MAX) / 1000 + 15.0
"""Longest time until no transaction is open any more, in seconds. It is twice the time that brokers wait
(because a clock may have been ahead), and some time."""


class Fate(Enum):
    """What a producer intends to do with a half message."""

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
    """A producer's decision about its half message. The producer sent the decision without being asked.
    `half` is the queue offset of the half message, from the answer to the producer."""

    value: bytes
    half: int
    commit: bool
    outcome: str = RUNNING


@dataclass
class TransactionHistory:
    """The intentions and decisions of all producers."""

    fates: dict[bytes, Fate] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
