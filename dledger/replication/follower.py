"""Replication by a follower: how it handles the pushes of the leader. The module is pure (no I/O).

`matched` is the last index that is known to agree with the leader of this term. It starts at -1 with every
new leader. Entries above it were not compared with this leader yet, and are not acknowledged (S16).

Entries are acknowledged as `stored` only when they are on the disk. The leader's window counts the bytes in
flight *and* the bytes that wait in this node's memory. So a slow disk limits both together, even if the
leader or the connection changes. That is why an agreement about an entry in memory is reported only when the
entry is written.

`stored` differs from `durable`. Entries that are corrupt, or that do not count yet (S9), are not `durable`.
But they need no memory, so they count as `stored` and do not close the window.
"""

from __future__ import annotations

import msgspec

from dledger.errors import InvariantBroken
from dledger.messages import Append, Code, Commit, Compare, PushResponse, Truncate
from dledger.replication import LogView

Push = Compare | Truncate | Append | Commit


class Respond(msgspec.Struct, frozen=True):
    """Answer the leader now."""

    response: PushResponse


class CutLog(msgspec.Struct, frozen=True):
    """Remove entries from `index` on, durably. After that the same push must be handled again."""

    index: int


class StoreEntries(msgspec.Struct, frozen=True):
    """Append the entries of the push from index `first` on. The log already has those before it."""

    first: int


class CommitTo(msgspec.Struct, frozen=True):
    """The commit index may rise to `index`."""

    index: int


Effect = Respond | CutLog | StoreEntries | CommitTo


class FollowerReplication:
    """What a follower knows about the leader of one term. Each new leader gets a new object."""

    def __init__(self, term: int, leader: str, log: LogView) -> None:
        self.term = term
        self.leader = leader
        self.matched: int = -1
        self.leader_commit: int = -1
        self.trusted = True
        """False if this store lost entries that it had acknowledged. Then the store acknowledges nothing as
        durable until it holds everything that the leader has committed (S9)."""
        self._log = log
        self._reported = (-2, -2)

    def receive(self, push: Push, commit_index: int) -> list[Effect]:
        """Handle a push of this leader in this term. `commit_index` is the commit index of this node
        itself."""
        if isinstance(push, Compare):
            return self._compare(push)
        if isinstance(push, Truncate):
            return self._truncate(push, commit_index)
        if isinstance(push, Append):
            return self._append(push, commit_index)
        return self._commit(push.commit_index)

    def stored(self, last: int) -> list[Effect]:
        """Note that the log now has the entries of an Append up to index `last`. They need not be durable
        yet."""
        self.matched = max(self.matched, last)
        return self._commit(self.leader_commit)

    def installed(self, index: int) -> None:
        """Note that this leader's snapshot at `index` was installed, so the log now begins after that
        entry."""
        self.matched = max(self.matched, index)

    def trust(self, trusted: bool) -> None:
        """Set whether this store's acknowledgements count (see `trusted`)."""
        self.trusted = trusted

    def disk_full(self) -> Respond:
        """Answer an Append that was refused because the disk has no room."""
        return self._respond(self._state(Code.DISK_FULL))

    def durable_moved(self) -> list[Effect]:
        """Acknowledge to the leader what is stored and durable. Does nothing if that was reported before."""
        response = self._state(Code.SUCCESS)
        if (response.stored, response.durable) == self._reported:
            return []
        return [self._respond(response)]

    def _state(self, code: Code, hint_index: int = -1, hint_term: int = -1) -> PushResponse:
        durable = min(self.matched, self._log.durable_index)
        if not self.trusted and durable < self.leader_commit:
            durable = -1
        stored = min(self.matched, self._log.durable_mark)
        return PushResponse(self.term, code, stored, durable, self._log.last_index, hint_index, hint_term)

    def _respond(self, response: PushResponse) -> Respond:
        self._reported = (response.stored, response.durable)
        return Respond(response)

    def _compare(self, push: Compare) -> list[Effect]:
        self.leader_commit = max(self.leader_commit, push.commit_index)
        own = self._log.term_of(push.index)
        if not self._agrees(push.index, push.entry_term):
            if own is not None and 0 <= push.index < self._log.first_index:
                raise InvariantBroken(
                    f"this log begins behind committed entry {push.index} of term {own}; the leader "
                    f"{self.leader} of term {self.term} has term {push.entry_term} there"
                )
            return [self._inconsistent(push.index, push.entry_term)]
        self.matched = max(self.matched, push.index)
        return [self._respond(self._state(Code.SUCCESS)), *self._commit(push.commit_index)]

    def _agrees(self, index: int, term: int) -> bool:
        """Whether the log holds entry `index` with this term.

        If the snapshot at which the log begins is lost, the term of the entry before the first one is
        unknown. That entry was committed, so this leader holds the same one, and it counts as equal.
        """
        own = self._log.term_of(index)
        return own == term or (own is None and index == self._log.first_index - 1)

    def _inconsistent(self, index: int, term: int) -> Respond:
        """Answer that the logs disagree, with the last entry that may agree as a hint. The hint is not above
        `index`, and not of a later term.

        The hint is never below the entry before the first one of this log. Everything up to that entry was
        committed, so a leader holds it; a lower hint would make both sides loop for ever (dledger #319). A
        hint with term -1 means that the entry's term is not known, but that the entry agrees.
        """
        base = self._log.first_index - 1
        hint = self._log.last_of_term_at_most(term, min(index, self._log.last_index))
        hint = max(hint, base)
        hint_term = self._log.term_of(hint)
        return self._respond(
            self._state(Code.INCONSISTENT_STATE, hint, -1 if hint_term is None else hint_term)
        )

    def _truncate(self, push: Truncate, commit_index: int) -> list[Effect]:
        self.leader_commit = max(self.leader_commit, push.commit_index)
        own = self._log.term_of(push.index)
        if own is not None and own != push.entry_term:
            return [self._cut(push.index, commit_index)]
        if own is not None:
            self.matched = max(self.matched, push.index)
        return [self._respond(self._state(Code.SUCCESS)), *self._commit(push.commit_index)]

    def _cut(self, index: int, commit_index: int) -> CutLog:
        if index <= commit_index:
            raise InvariantBroken(
                f"the leader {self.leader} of term {self.term} asks to cut index {index}, "
                f"but {commit_index} is committed here"
            )
        if index <= self.matched:
            raise InvariantBroken(
                f"asked to cut index {index}, which agreed with the leader of term {self.term}"
            )
        return CutLog(index)

    def _append(self, push: Append, commit_index: int) -> list[Effect]:
        self.leader_commit = max(self.leader_commit, push.commit_index)
        if push.first != push.prev_index + 1 or not self._agrees(push.prev_index, push.prev_term):
            return [self._inconsistent(push.prev_index, push.prev_term)]
        self.matched = max(self.matched, push.prev_index)
        return [StoreEntries(push.first)]

    def overlap(self, first: int, terms: list[int], commit_index: int) -> list[Effect]:
        """Compare the entries of a push, which begin at `first` and have these terms, with the log.

        Returns an effect that stores the entries that the log lacks. If an entry has another term in the log,
        returns an effect that cuts the log there instead. Returns nothing if the log has all of them.
        """
        for offset, term in enumerate(terms):
            index = first + offset
            own = self._log.term_of(index)
            if own is None:
                return [StoreEntries(index)]
            if own != term:
                return [self._cut(index, commit_index)]
        return []

    def _commit(self, leader_commit: int) -> list[Effect]:
        self.leader_commit = max(self.leader_commit, leader_commit)
        return [CommitTo(min(self.leader_commit, self.matched))]
