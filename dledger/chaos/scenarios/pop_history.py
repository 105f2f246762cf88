"""What consumers that pop observed in a run with brokers. These are plain facts without conclusions, for the
judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.machine.settings import Settings

POP_GROUP = "poppers"
INVISIBLE_MS = 3_000
SHORT_MS = 1_000
"""The shorter invisible time to which consumers change some messages, in ms."""
CLOCKS_DIFFER_MS = 2 * Settings().wall_skew_ms
"""The largest difference between the wall clocks of two machines, in ms."""
SLACK_NS = (CLOCKS_DIFFER_MS + 200) * 1_000_000
"""An acknowledgement counts as in time if it was answered at least this long, in ns, before the invisible
time ended."""
RETRY = "%RETRY%"

Once = tuple[bytes, int]
"""One delivery of a message: its body, and how often it was delivered before."""


@dataclass
class Handed:
    """One delivery of a message to a consumer that pops."""

    value: bytes
    times: int
    between: tuple[int, int]
    """When the consumer asked for the message, and when it received the message, as world time in ns."""
    terms: tuple[int, int]
    """The leaders' terms at these two times (see `between`)."""


@dataclass
class Ack:
    """A consumer's acknowledgement of a message. If `short` is set, it is a change of the invisible time
    instead."""

    handed: Handed
    end: int = -1
    outcome: str = ""
    short: bool = False


@dataclass
class PopHistory:
    """What all consumers that pop observed and requested."""

    handed: list[Handed] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    values: dict[bytes, None] = field(default_factory=dict)
    """Bodies of the messages that were delivered to any of these consumers."""
