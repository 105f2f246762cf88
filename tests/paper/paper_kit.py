"""Small makers for the rules of the Raft paper: cores over lists, and what they sent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

from dledger.chaos.cores import SETTINGS, CoreGroup, Entry, ListLog
from dledger.election.effects import Effect, SaveHardState, Send
from dledger.election.elector import Chance, Elector
from dledger.formats.store_files import HardState
from dledger.messages import Message, VoteRequest, VoteResponse, VoteResult
from dledger.replication.follower import FollowerReplication
from dledger.replication.leader import LeaderReplication

THREE = ("n0", "n1", "n2")
FIVE = ("n0", "n1", "n2", "n3", "n4")
M = TypeVar("M", bound=Message)


def log_of(*terms: int) -> ListLog:
    """A durable log with entries of these terms."""
    log = ListLog()
    log.append([Entry(term, f"{term}@{index}") for index, term in enumerate(terms)])
    log.durable_index = log.last_index
    return log


def elector(
    *,
    term: int = 3,
    vote: str | None = None,
    log: ListLog | None = None,
    voters: tuple[str, ...] = THREE,
    name: str = "n0",
    chance: Chance | None = None,
) -> Elector:
    """A follower of nobody."""
    core = Elector(
        SETTINGS, name, voters, HardState(term, vote), log or log_of(1, 3), chance or random.Random(4), 0.0
    )
    core.set_members(voters, voters, 0.0)
    return core


def candidate(core: Elector, now: float = 1.0) -> list[Effect]:
    """Let its time-out pass and its pre-votes come in; what it did then."""
    core.tick(now)
    effects: list[Effect] = []
    for peer in core.voters[1:]:
        effects += core.receive(peer, VoteResponse(core.term, core.term + 1, True, VoteResult.ACCEPT), now)
        if effects:
            break
    return effects


def leader(core: Elector, now: float = 1.0) -> list[Effect]:
    """Elect it with the vote of n1."""
    candidate(core, now)
    return core.receive("n1", VoteResponse(core.term, core.term, False, VoteResult.ACCEPT), now)


def messages(effects: Iterable[object], kind: type[M]) -> list[M]:
    """Messages of one kind among effects."""
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def answer(effects: Iterable[object]) -> VoteResult:
    """The one vote response among effects."""
    (response,) = messages(effects, VoteResponse)
    return response.result


def ask(core: Elector, request: VoteRequest, now: float = 1.0) -> VoteResult:
    """What it answers to a candidate."""
    return answer(core.receive(request.candidate, request, now))


def saved(effects: list[Effect], state: HardState) -> int:
    """Place of a save among effects."""
    return effects.index(SaveHardState(state))


def following(log: ListLog, term: int = 5) -> FollowerReplication:
    """A follower of n1."""
    return FollowerReplication(term, "n1", log)


def leading(
    log: ListLog, term: int, *, voters: tuple[str, ...] = THREE, commit: int = -1, window: int = 1000
) -> LeaderReplication:
    """A leader whose opening entry is the last of its log."""
    return LeaderReplication(
        term, "n0", voters, voters, log, commit, log.last_index, push_bytes=300, inflight_bytes=window
    )


def group(*logs: tuple[int, ...]) -> CoreGroup:
    """A running group whose members hold logs of these terms."""
    made = CoreGroup([f"n{place}" for place in range(len(logs))])
    for name, terms in zip(made.names, logs, strict=True):
        log = log_of(*terms)
        made.nodes[name].log = log
        made.nodes[name].hard_state = HardState(max(log.last_term, 0))
        made.start(name)
    return made


def elect(group: CoreGroup, name: str) -> None:
    """Let a member's time-outs pass until it leads."""
    for _ in range(5):
        group.now = max(group.now, group.nodes[name].core.deadline) + 1.0
        group.tick(name)
        group.settle()
        if group.nodes[name].leader is not None:
            return
    raise AssertionError(f"{name} was not elected")
