"""Recorded variants of the three classes of the core. Each event of the core runs as before, and is then
noted on the tape. This is the only place where calls are noted.

A recorded object behaves like one that is not recorded. It reads the log and draws random numbers through
objects that put each value on the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dledger.election.elector import Chance, ElectionSettings, Elector, LogTip
from dledger.flight.calls import CALLS, ELECTOR, FOLLOW, FOLLOWER, LEAD, LEADER, Call
from dledger.flight.tape import OFF, Tape
from dledger.formats.store_files import HardState
from dledger.replication import LogView
from dledger.replication.follower import FollowerReplication
from dledger.replication.install import Offer
from dledger.replication.leader import LeaderReplication


class CoreLog(LogView, LogTip, Protocol):
    """The view of the log that the elector and the replication need together."""


class RecordedLog:
    """A view of the log that puts each value on the tape which a recorded call reads."""

    def __init__(self, tape: Tape, log: CoreLog) -> None:
        self._tape = tape
        self._log = log

    @property
    def first_index(self) -> int:
        """Index of the first entry that the log holds."""
        value = self._log.first_index
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    @property
    def last_index(self) -> int:
        """Index of the last entry that the log holds."""
        value = self._log.last_index
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        value = self._log.last_term
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    @property
    def durable_index(self) -> int:
        """Index up to which all entries are durable and none is corrupt."""
        value = self._log.durable_index
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    @property
    def durable_mark(self) -> int:
        """Index of the last entry that was made durable."""
        value = self._log.durable_mark
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    def term_of(self, index: int) -> int | None:
        """Term of an entry; None if the log does not hold it."""
        value = self._log.term_of(index)
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest index that is at most `index` and whose entry has at most this term."""
        value = self._log.last_of_term_at_most(term, index)
        if self._tape.inside:
            self._tape.reads.append(value)
        return value

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int | None]:
        """Where a push that begins with entry `first` should end, and its size."""
        value = self._log.range_end(first, max_bytes)
        if self._tape.inside:
            self._tape.reads.append(value)
        return value


class RecordedChance:
    """A source of random numbers that puts each one on the tape which a recorded call draws."""

    def __init__(self, tape: Tape, chance: Chance) -> None:
        self._tape = tape
        self._chance = chance

    def uniform(self, a: float, b: float) -> float:
        """Return a number between a and b."""
        value = self._chance.uniform(a, b)
        if self._tape.inside:
            self._tape.reads.append(value)
        return value


def elector_digest(core: Elector) -> tuple[object, ...]:
    """The part of an elector's state that is checked after each step."""
    return (core.state, core.term, core.vote, core.leader_id, core.deadline)


def leader_digest(core: LeaderReplication) -> tuple[object, ...]:
    """The part of the state of a leader's replication that is checked after each step."""
    return (core.term, core.commit_index, core._windows)


def follower_digest(core: FollowerReplication) -> tuple[object, ...]:
    """The part of the state of a follower's replication that is checked after each step."""
    return (core.term, core.matched, core.leader_commit, core.trusted, core._reported)


class RecordedElector(Elector):
    """An elector whose events are noted."""

    def __init__(
        self, tape: Tape, settings: ElectionSettings, self_id: str, log: LogTip, chance: Chance
    ) -> None:
        """Make the elector of an empty learner (see `Elector.open`)."""
        self._tape = OFF  # what happens before the recording begins is not noted
        super().__init__(settings, self_id, (), HardState(), log, chance, 0.0, may_vote=False)
        self._tape = tape


class RecordedLeader(LeaderReplication):
    """The replication of a leadership whose events are noted. Its maker notes the construction itself."""

    def __init__(
        self,
        tape: Tape,
        term: int,
        self_id: str,
        voters: Iterable[str],
        peers: Iterable[str],
        log: LogView,
        commit_index: int,
        opening_index: int,
        *,
        offer: Callable[[], Offer | None],
        **limits: int,
    ) -> None:
        def recorded_offer() -> Offer | None:
            value = offer()
            if tape.inside:
                tape.reads.append(value)
            return value

        self._tape = tape
        tape.inside = True
        try:
            super().__init__(
                term, self_id, voters, peers, log, commit_index, opening_index, offer=recorded_offer, **limits
            )
        finally:
            tape.inside = False

    def discard(self) -> None:
        """Stop recording this object, because a later leadership took its place."""
        self._tape = OFF


class RecordedFollower(FollowerReplication):
    """The replication of a follower whose events are noted. Its maker notes the construction itself."""

    def __init__(self, tape: Tape, term: int, leader: str, log: LogView) -> None:
        self._tape = tape
        super().__init__(term, leader, log)

    def discard(self) -> None:
        """Stop recording this object, because another leader took the place of this one."""
        self._tape = OFF


DIGESTS: dict[str, Callable[[Any], tuple[object, ...]]] = {
    ELECTOR: elector_digest,
    LEADER: leader_digest,
    FOLLOWER: follower_digest,
}
"""Maps a core object to the function that returns the checked part of its state."""


UNCHANGED: dict[str, Callable[[Any, Any], bool]] = {
    "peer_counts": lambda leader, args: args[0] in leader.progress and leader.counts(args[0]) == args[1],
}
"""Maps a method to a function that says whether a call with these arguments changes nothing. Such a call is
not noted. It is made with each acknowledgement."""


def failure_of(error: BaseException) -> str:
    """Return the text that stands in a digest for an exception of the core."""
    return f"{type(error).__name__}: {error}"


def _recorded(call: Call, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with a note after each call."""
    number, pack, digest = call.number, call.pack, DIGESTS[call.core]
    unchanged = UNCHANGED.get(call.name)

    def noted(self: Any, *args: Any, **named: Any) -> Any:
        tape = self._tape
        if tape.inside or not tape.running:
            return method(self, *args, **named)
        if unchanged is not None and unchanged(self, args):
            return None
        tape.inside = True
        try:
            result = method(self, *args, **named)
        except Exception as error:
            tape.note(number, args, named, failure_of(error), digest(self), pack)
            raise
        finally:
            tape.inside = False
        tape.note(number, args, named, result, digest(self), pack)
        return result

    noted.__name__, noted.__doc__ = method.__name__, method.__doc__
    return noted


CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    ELECTOR: (Elector, RecordedElector),
    LEADER: (LeaderReplication, RecordedLeader),
    FOLLOWER: (FollowerReplication, RecordedFollower),
}
"""Maps a core object to its class and its recorded class."""

for _call in CALLS:
    if _call.number not in (LEAD, FOLLOW):
        _plain, _noted = CLASSES[_call.core]
        setattr(_noted, _call.name, _recorded(_call, getattr(_plain, _call.name)))
