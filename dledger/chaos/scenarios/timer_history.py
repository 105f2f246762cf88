"""Timer messages in a run with brokers: what producers wanted and were told, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.scenarios.history import RUNNING

WAITS_MS = (60, 2_500, 7_000)
"""For so long messages of producers wait."""
PRECISION_MS = 100
"""Settings of the brokers."""
ROLL_WINDOW_SLOTS = 20
RECALL_EVERY = 3
"""Of the messages that wait so many are recalled."""
TIMERS_LIMIT_S = 20.0
"""Within this time nothing waits any more: the longest wait, and some time."""


@dataclass
class Recall:
    """A producer did not want its message to come. `value`: the message."""

    value: bytes
    outcome: str = RUNNING


@dataclass
class TimerHistory:
    """What all producers did."""

    wanted_ms: dict[bytes, int] = field(default_factory=dict)
    """When each message was to come, in ms since the epoch."""
    recalls: list[Recall] = field(default_factory=list)
