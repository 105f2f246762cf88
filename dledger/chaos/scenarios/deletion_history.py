"""What happened to topics that are deleted and created again, and the checks of it.

A client machine creates a topic, sends to it, reads it, commits a consumer offset and deletes it. It repeats
this under the same names while brokers fail. A *life* of a topic is the time between its creation and its
deletion. No message and no offset of one life may appear in a later life.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_replay import BrokerReplay, Stored
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED
from dledger.chaos.scenarios.oracle import Queue

BRIEF = "brief"
"""Beginning of the names of the topics that are deleted and created again."""


@dataclass
class BriefSend:
    """One message. `once` says that its producer sent it a single time, so no further copy is in the
    network."""

    value: bytes
    outcome: str = ""
    queue: int = -1
    offset: int = -1
    once: bool = False
    delayed: bool = False


@dataclass
class Life:
    """One life of a topic, from its creation to its deletion."""

    topic: str
    number: int
    sends: list[BriefSend] = field(default_factory=list)
    deleted: bool = False
    """Whether the deletion of the topic was acknowledged."""


@dataclass
class DeletionHistory:
    """All lives of the topics that are deleted and created again."""

    lives: list[Life] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    """Messages or offsets that were seen in one life but belong to an earlier life or to none, described as
    text."""
    unsure: dict[str, None] = field(default_factory=dict)
    """Topics that are not used again, because a lost request for them may still be executed."""


def is_brief(topic: str) -> bool:
    """Whether a topic is one of those that are deleted and created again. No other program uses such a
    topic."""
    return topic.startswith(BRIEF)


def generations(replay: BrokerReplay, queue: Queue) -> list[list[Stored]]:
    """The messages of a queue, in one list for each topic that ever had its name. The present topic is the
    last."""
    return [*replay.deleted.get(queue, []), replay.messages.get(queue, [])]


def judge_deletions(history: DeletionHistory, replay: BrokerReplay) -> tuple[int, int]:
    """Check all lives. Returns how many lives followed the deletion of a topic of the same name, and how many
    sends without a delay were acknowledged in all lives."""
    # Nobody is shown anything of a topic that was deleted before: no message, and no consumer offset.
    if history.strange:
        raise InvariantViolated("; ".join(history.strange))
    life_of = {send.value: (life, send) for life in history.lives for send in life.sends}
    places: dict[bytes, list[tuple[Queue, int, int]]] = {}
    for queue in dict.fromkeys((*replay.messages, *replay.deleted)):
        if not is_brief(queue[0]):
            continue
        for number, stored in enumerate(generations(replay, queue)):
            lives: dict[int, bytes] = {}
            for offset, message in enumerate(stored):
                # Every message in such a topic was sent to it.
                if message.value not in life_of:
                    raise InvariantViolated(f"{message.value!r} at {offset} of {queue} was never sent")
                life, send = life_of[message.value]
                places.setdefault(message.value, []).append((queue, number, offset))
                if send.once:
                    lives.setdefault(life.number, message.value)
            # A topic that is created again has only messages of its own life, also delayed ones.
            if len(lives) > 1:
                raise InvariantViolated(f"{queue} holds messages of several lives of its topic: {lives}")
    again = acknowledged = 0
    deleted: dict[str, None] = {}
    for life in history.lives:
        again += life.topic in deleted
        if life.deleted:
            deleted[life.topic] = None
        for send in life.sends:
            found = places.get(send.value, [])
            # An acknowledged message is in the log, in the queue and at the offset of the answer.
            if send.outcome == ACKNOWLEDGED and not send.delayed:
                acknowledged += 1
                if not any((queue[1], offset) == (send.queue, send.offset) for queue, _, offset in found):
                    raise InvariantViolated(f"lost: {send}, which is at {found}")
            # A refused message is nowhere.
            if send.outcome == REFUSED and found:
                raise InvariantViolated(f"refused, and stored at {found}: {send}")
    return again, acknowledged
