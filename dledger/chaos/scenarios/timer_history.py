"""Timer messages in a run with brokers: the wishes of producers and the answers to them, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.scenarios.history import RUNNING

WAITS_MS = (60, 2_500, 7_000)
"""How long the messages of producers wait."""
PRECISION_MS = 100
"""The time precision in the settings of the brokers."""
ROLL_WINDOW_SLOTS = 20
RECALL_EVERY = 3
"""Every RECALL_EVERY-th timer message is recalled."""
TIMERS_LIMIT_S = 20.0
"""Time after which no message may wait any more: the longest wait, and some time."""


@dataclass
class Recall:
    """A producer's request to recall a message. `value`: the body of the message."""

    value: bytes
    outcome: str = RUNNING


@dataclass
class TimerHistory:
    """The timer messages and recalls of all producers."""

    wanted_ms: dict[bytes, int] = field(default_factory=dict)
    """Body -> when the message should be delivered, in ms since the epoch."""
    recalls: list[Recall] = field(default_factory=list)
