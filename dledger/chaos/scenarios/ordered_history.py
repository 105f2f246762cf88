"""What consumers that pop in order saw in a run with brokers: plain facts, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

ORDERED_GROUP = "poppers-in-order"
INVISIBLE_MS = 1_500
SHORT_MS, LONG_MS = 300, 3_000
"""What consumers change it to."""
ACK, SHORTER, LONGER = "ack", "shorter", "longer"
CHANGED_MS = {SHORTER: SHORT_MS, LONGER: LONG_MS}

Key = tuple[str, int]
"""Topic and queue id."""
Batch = tuple[Key, int]
"""A queue, and the time that the handles of its messages say: of one pop, or of several
of leaders whose clocks differ."""


@dataclass
class Ordered:
    """A message that a consumer popped in order."""

    batch: Batch
    offset: int
    value: bytes
    times: int
    """How often it was given before, as the consumer was told."""
    between: tuple[int, int]
    """When the consumer asked for it, and when it had it, in ns of the world."""
    terms: tuple[int, int]
    """Of the leaders then."""


@dataclass
class Settled:
    """What a consumer did with a message: ACK, or a change of its invisible time."""

    message: Ordered
    kind: str
    begin: int
    end: int = -1
    outcome: str = ""


@dataclass
class OrderedHistory:
    """What all of them saw and did."""

    handed: list[Ordered] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
