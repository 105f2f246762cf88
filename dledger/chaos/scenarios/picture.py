"""Records what the nodes of a simulated run said to each other and what they became, for a picture.

Only the replicated log is recorded: votes, appends, their answers, roles and terms. What the world does not
tell is not guessed: a message that was sent and never received has no end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from msgspec.structs import asdict

from dledger.messages import (
    Append,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

Fields = tuple[tuple[str, object], ...]
MOST_FLIGHTS = 200_000
"""Largest number of messages that one run records. Later ones are left out, and the picture says so."""


@dataclass
class Flight:
    """One message between two nodes. Times are world time in ns; `received` is -1 if it never arrived."""

    sender: str
    receiver: str
    kind: str
    text: str
    sent: int
    received: int = -1


@dataclass(frozen=True)
class Became:
    """A node's role, term and whether it serves, since `at` (world time in ns). The role is `DOWN` while its
    process does not run."""

    at: int
    node: str
    role: str
    term: int
    serving: bool


class Picture:
    """The recording of one run."""

    def __init__(self) -> None:
        self.flights: list[Flight] = []
        self.became: list[Became] = []
        self.left_out: int = 0
        """How many messages came after the limit."""
        self._open: dict[tuple[str, str], deque[tuple[Fields, Flight]]] = {}
        self._now: dict[str, tuple[str, int, bool]] = {}

    def sends(self, sender: str, receiver: str, message: Message, at: int) -> None:
        """Note that a node sends a message."""
        kind, text = describe(message)
        if not kind:
            return
        if len(self.flights) >= MOST_FLIGHTS:
            self.left_out += 1
            return
        flight = Flight(sender, receiver, kind, text, at)
        self.flights.append(flight)
        self._open.setdefault((sender, receiver), deque()).append((_fields(message), flight))

    def receives(self, receiver: str, sender: str, message: Message, at: int) -> None:
        """Note that a node received a message. A link keeps the order of its messages, so those that were
        sent before this one and did not arrive are lost."""
        kind, _ = describe(message)
        waiting = self._open.get((sender, receiver))
        if not kind or waiting is None:
            return
        wanted = _fields(message)
        for place, (sent, flight) in enumerate(waiting):
            if sent == wanted and flight.kind == kind:
                flight.received = at
                for _ in range(place + 1):
                    waiting.popleft()
                return

    def is_now(self, node: str, role: str, term: int, serving: bool, at: int) -> None:
        """Note what a node is now. Does nothing if that was noted before."""
        if self._now.get(node) != (role, term, serving):
            self._now[node] = role, term, serving
            self.became.append(Became(at, node, role, term, serving))


def _fields(message: Message) -> Fields:
    """The fields of a message without its entries, which are large."""
    return (
        ("", type(message)),
        *((name, value) for name, value in asdict(message).items() if name != "data"),
    )


def describe(message: Message) -> tuple[str, str]:
    """The kind of a message, and a short text for it. The kind is empty for messages that no picture
    shows."""
    if isinstance(message, VoteRequest):
        return ("pre-vote", f"pre-vote? term {message.term}") if message.pre else (
            "vote", f"vote? term {message.term}"
        )  # fmt: skip
    if isinstance(message, VoteResponse):
        said = "yes" if message.result is VoteResult.ACCEPT else "no"
        return ("pre-vote" if message.pre else "vote"), said
    if isinstance(message, Append):
        count = message.last - message.first + 1
        return "append", f"append {message.first}" + (f"..{message.last}" if count > 1 else "")
    if isinstance(message, PushResponse):
        return "answer", f"has {message.durable}"
    if isinstance(message, Compare):
        return "compare", f"compare {message.index}"
    if isinstance(message, Truncate):
        return "compare", f"cut from {message.index}"
    if isinstance(message, TimeoutNow):
        return "vote", "stand now"
    if isinstance(message, Heartbeat):
        return "heartbeat", "heartbeat"
    if isinstance(message, HeartbeatResponse):
        return "heartbeat", "yes"
    return "", ""
