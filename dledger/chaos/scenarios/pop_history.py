"""What consumers that pop saw in a run with brokers: plain facts, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.machine.settings import Settings

POP_GROUP = "poppers"
INVISIBLE_MS = 3_000
SHORT_MS = 1_000
"""Of messages whose time consumers change."""
CLOCKS_DIFFER_MS = 2 * Settings().wall_skew_ms
"""What two machines' wall clocks differ by, at most."""
SLACK_NS = (CLOCKS_DIFFER_MS + 200) * 1_000_000
"""An acknowledgement that was answered so long before the invisible time ended was in time."""
RETRY = "%RETRY%"

Once = tuple[bytes, int]
"""A message, and how often it came again before."""


@dataclass
class Handed:
    """A message that a consumer popped."""

    value: bytes
    times: int
    between: tuple[int, int]
    """When the consumer asked for it, and when it had it, in ns of the world."""
    terms: tuple[int, int]
    """Of the leaders then."""


@dataclass
class Ack:
    """An acknowledgement, or a change of the invisible time (`short`)."""

    handed: Handed
    end: int = -1
    outcome: str = ""
    short: bool = False


@dataclass
class PopHistory:
    """What all consumers that pop saw."""

    handed: list[Handed] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    values: dict[bytes, None] = field(default_factory=dict)
    """Messages that were handed to one of them at least once."""
