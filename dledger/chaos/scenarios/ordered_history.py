"""The observations of consumers that pop in order in a run with brokers: plain facts, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

ORDERED_GROUP = "poppers-in-order"
INVISIBLE_MS = 1_500
SHORT_MS, LONG_MS = 300, 3_000
"""The invisible times to which consumers change a message."""
ACK, SHORTER, LONGER = "ack", "shorter", "longer"
CHANGED_MS = {SHORTER: SHORT_MS, LONGER: LONG_MS}

Key = tuple[str, int]
"""Topic and queue id."""
Batch = tuple[Key, int]
"""A queue, and the time in the handles of its messages. It is one pop, or several pops by leaders whose
clocks differ."""


@dataclass
class Ordered:
    """A message that a consumer popped in order."""

    batch: Batch
    offset: int
    value: bytes
    times: int
    """How often the message was delivered before, according to the broker's answer."""
    between: tuple[int, int]
    """When the consumer asked for the message, and when it received it, in ns of the world."""
    terms: tuple[int, int]
    """The leaders' terms at these two times."""


@dataclass
class Settled:
    """A consumer's request for a message: ACK, or a change of its invisible time."""

    message: Ordered
    kind: str
    begin: int
    end: int = -1
    outcome: str = ""


@dataclass
class OrderedHistory:
    """The observations and requests of all consumers that pop in order."""

    handed: list[Ordered] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
