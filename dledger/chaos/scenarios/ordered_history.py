"""What consumers that pop in order observed in a run with brokers. These are plain facts without conclusions,
for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

ORDERED_GROUP = "poppers-in-order"
INVISIBLE_MS = 1_500
SHORT_MS, LONG_MS = 300, 3_000
"""The shorter and the longer invisible time to which consumers change some messages, in ms."""
ACK, SHORTER, LONGER = "ack", "shorter", "longer"
CHANGED_MS = {SHORTER: SHORT_MS, LONGER: LONG_MS}

Key = tuple[str, int]
"""A queue as (topic, queue id)."""
Batch = tuple[Key, int]
"""A queue and the time in the handles of its messages. Usually this is one pop. It is several pops if leaders
with different clocks made pops with the same time."""


@dataclass
class Ordered:
    """A message that a consumer popped in order, and what it knows about the pop."""

    batch: Batch
    offset: int
    value: bytes
    times: int
    """How often the message was delivered before, according to the broker's answer."""
    between: tuple[int, int]
    """When the consumer asked for the message, and when it received the message, as world time in ns."""
    terms: tuple[int, int]
    """The leaders' terms at these two times (see `between`)."""


@dataclass
class Settled:
    """A consumer's request for one message: an acknowledgement (ACK), or a change of the invisible time."""

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
