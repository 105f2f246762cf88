"""Messages in flight, and how a script shows them."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.chaos.cores.list_log import Entry
from dledger.messages import (
    Append,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
)


@dataclass(frozen=True)
class Envelope:
    """A message in flight. If the message is an Append, its entries are a field of this envelope."""

    source: str
    target: str
    message: Message
    entries: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}  {describe(self.message)}"


def describe(message: Message) -> str:
    """One line of text about a message, with the fields that matter for elections and replication."""
    name = type(message).__name__
    if isinstance(message, VoteRequest):
        flags = " pre" * message.pre + " transfer" * message.transfer
        return f"{name} term={message.term} last={message.last_index}/t{message.last_term}{flags}"
    if isinstance(message, VoteResponse):
        pre = " pre" * message.pre
        return f"{name} term={message.term} asked={message.asked_term}{pre} {message.result.name}"
    if isinstance(message, Heartbeat | TimeoutNow):
        return f"{name} term={message.term}"
    if isinstance(message, HeartbeatResponse):
        return f"{name} term={message.term} {message.code.name}"
    if isinstance(message, Compare | Truncate):
        entry = f"{message.index}/t{message.entry_term}"
        return f"{name} term={message.term} {entry} commit={message.commit_index}"
    if isinstance(message, Append):
        previous = f"{message.prev_index}/t{message.prev_term}"
        run = f"{message.first}..{message.last}"
        return f"{name} term={message.term} prev={previous} {run} commit={message.commit_index}"
    if isinstance(message, Commit):
        return f"{name} term={message.term} commit={message.commit_index}"
    if isinstance(message, PushResponse):
        hint = "" if message.hint_index < 0 else f" hint={message.hint_index}/t{message.hint_term}"
        marks = f"stored={message.stored} durable={message.durable} end={message.end}"
        return f"{name} term={message.term} {message.code.name} {marks}{hint}"
    return str(message)
