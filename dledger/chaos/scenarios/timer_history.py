"""Timer messages in a run with brokers: when producers want them delivered, and the answers to producers. The
judge uses both."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.scenarios.history import RUNNING

WAITS_MS = (60, 2_500, 7_000)
"""How long the producers' timer messages wait, in ms. The times are used in turn."""
PRECISION_MS = 100
"""The precision of timers in the settings of the brokers, in ms."""
ROLL_WINDOW_SLOTS = 20
RECALL_EVERY = 3
"""Every RECALL_EVERY-th timer message is recalled."""
TIMERS_LIMIT_S = 20.0
"""Longest time until no timer message waits any more, in seconds: the longest wait, and some time."""


@dataclass
class Recall:
    """A producer's request to recall a message. `value` is the body of the message."""

    value: bytes
    outcome: str = RUNNING


@dataclass
class TimerHistory:
    """The timer messages and recalls of all producers."""

    wanted_ms: dict[bytes, int] = field(default_factory=dict)
    """Maps the body of a message to when it should be delivered, in ms since the epoch."""
    recalls: list[Recall] = field(default_factory=list)
