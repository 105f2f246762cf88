"""The observations of consumers that pop in a run with brokers: plain facts, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.machine.settings import Settings

POP_GROUP = "poppers"
INVISIBLE_MS = 3_000
SHORT_MS = 1_000
"""The invisible time to which consumers change some messages."""
CLOCKS_DIFFER_MS = 2 * Settings().wall_skew_ms
"""The largest difference between the wall clocks of two machines."""
SLACK_NS = (CLOCKS_DIFFER_MS + 200) * 1_000_000
"""An acknowledgement was in time if it was answered at least this long before the invisible time ended."""
RETRY = "%RETRY%"

Once = tuple[bytes, int]
"""The body of a message, and how often it was delivered before."""


@dataclass
class Handed:
    """A message that a consumer popped."""

    value: bytes
    times: int
    between: tuple[int, int]
    """When the consumer asked for the message, and when it received it, in ns of the world."""
    terms: tuple[int, int]
    """The leaders' terms at these two times."""


@dataclass
class Ack:
    """An acknowledgement, or a change of the invisible time (`short`)."""

    handed: Handed
    end: int = -1
    outcome: str = ""
    short: bool = False


@dataclass
class PopHistory:
    """The observations of all consumers that pop."""

    handed: list[Handed] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    values: dict[bytes, None] = field(default_factory=dict)
    """Messages that were delivered to any of these consumers."""
