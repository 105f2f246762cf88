"""Replication by a leader, with one `Progress` for each peer and one commit index. The module is pure (no
I/O).

A peer starts in COMPARE. The leader asks whether the two logs agree at the leader's last entry. If not, it
asks again at an earlier entry. The follower's hint and the leader's table of terms let it skip whole terms
(end of section 5.3 of the Raft paper). When an entry agrees and the follower's log is longer, the follower
must TRUNCATE what conflicts. Then entries are sent in APPEND frames. Several frames may be in flight, up to a
window in bytes, and an acknowledgement stands for all frames up to its index. COMMIT is sent if no APPEND can
carry the commit index (S22).

A peer that needs entries before the first entry of this log goes to INSTALL: the leader sends it a snapshot
piece by piece. Each answer asks for the next piece, so an interrupted install resumes where it stopped. After
the install, the leader compares at the snapshot's own entry, where both logs must agree. The same snapshot is
never installed twice over one connection, so a peer cannot alternate between INSTALL and COMPARE for ever
(dledger #319).

An entry of this term is committed when a quorum of voters has it durable (fsynced; under ASYNC_FLUSH
written). All entries before it are then committed, too. An entry of an earlier term is never committed by
counting alone (section 5.4.2 of the Raft paper; dledger and LogCabin had this wrong). `stored` is the part of
the log that a peer has moved from its memory to its disk. It only moves the window. So the window limits the
bytes in flight and the bytes that wait for the peer's disk together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from dledger.errors import InvariantBroken
from dledger.messages import Code, InstallResponse, PushResponse
from dledger.replication import LogView
from dledger.replication.install import Offer
from dledger.replication.quorum import quorum_index


class PushState(Enum):
    """Phase of the replication to one peer. Most values are named like PushEntryRequest.Type of DLedger."""

    DOWN = "DOWN"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"
    INSTALL = "INSTALL"
    PAUSED = "PAUSED"
    """Nothing is sent for a while, because the peer's disk is full, or because entries that it needs are
    corrupt in this log."""


@dataclass(slots=True)
class Progress:
    """What the leader knows about one peer in this term."""

    state: PushState = PushState.DOWN
    next: int = 0
    """Index of the next entry to send."""
    stored: int = -1
    durable: int = -1
    compare_index: int = -1
    sent_commit: int = -1
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    """The frames that are not acknowledged yet, each as (last index, size in bytes)."""
    inflight_bytes: int = 0
    window: int = 0
    """Number of the window to which the frames in flight belong. A push that was made for an earlier window
    is not sent any more."""
    full: bool = False
    """Whether the peer's disk had no room at the last answer. Then one client batch is sent at a time, until
    one is stored."""
    counts: bool = False
    """Whether the configuration names this incarnation of the peer (one life of its store). Only then does
    the peer count for commit."""
    offer: Offer | None = None
    """In state INSTALL: the snapshot that is being sent. None if no snapshot is available."""
    installed: int = -1
    """Index of the last snapshot that was installed over this connection. -1 if there was none."""


# Effects


class SendCompare(msgspec.Struct, frozen=True):
    """Ask a peer whether it has entry `index` with this term."""

    peer: str
    index: int
    entry_term: int


class SendTruncate(msgspec.Struct, frozen=True):
    """Ask a peer to cut its log from `index` on, if its entry at `index` has another term."""

    peer: str
    index: int
    entry_term: int


class SendAppend(msgspec.Struct, frozen=True):
    """Send the entries `first..last` to a peer. `prev_term` is the term of entry `first - 1`."""

    peer: str
    first: int
    last: int
    prev_term: int
    window: int
    """Number of the window that this push belongs to (see `Progress.window`)."""


class SendCommit(msgspec.Struct, frozen=True):
    """Send a peer the commit index."""

    peer: str


class Committed(msgspec.Struct, frozen=True):
    """The commit index has moved to `index`."""

    index: int


class SendInstall(msgspec.Struct, frozen=True):
    """Send the piece of a snapshot's stream that begins at `offset`. Offset -1 only asks how much of the
    stream the peer has."""

    peer: str
    offer: Offer
    offset: int


class NeedsSnapshot(msgspec.Struct, frozen=True):
    """A peer needs entries before the first entry of this log, and this leader has no snapshot that would
    help it."""

    peer: str


Effect = SendCompare | SendTruncate | SendAppend | SendCommit | SendInstall | Committed | NeedsSnapshot


class LeaderReplication:
    """The replication of one leadership. The object is discarded when the leadership ends."""

    def __init__(
        self,
        term: int,
        self_id: str,
        voters: Iterable[str],
        peers: Iterable[str],
        log: LogView,
        commit_index: int,
        opening_index: int,
        *,
        push_bytes: int,
        inflight_bytes: int,
        inflight_frames: int = 1000,
        offer: Callable[[], Offer | None] = lambda: None,
    ) -> None:
        """`offer` returns the snapshot for peers that are behind this log. If possible, it is the snapshot at
        which the log begins."""
        self.term = term
        self.commit_index: int = commit_index
        self.opening_index = opening_index
        """Index of the entry that the leader appended when its term began. Nothing is committed before a
        quorum has this entry durable."""
        self.progress: dict[str, Progress] = {}
        self.self_id = self_id
        self._log = log
        self.push_bytes: int = push_bytes
        """Size, in bytes of entries, at which a push ends. It may be changed at any time. A push is larger
        only if it is a single entry or a single client batch, which is never split."""
        self._window = inflight_bytes
        self._frames = inflight_frames
        self._offer = offer
        self._windows = 0
        """How many windows were begun so far, for all peers together."""
        self._voters: tuple[str, ...] = ()
        self._leaving: tuple[str, ...] = ()
        self.set_members(voters, peers)

    def set_members(
        self, voters: Iterable[str], peers: Iterable[str], leaving: Iterable[str] = ()
    ) -> list[Effect]:
        """Use a changed configuration. New peers start in state DOWN until `peer_up`.

        `leaving` names peers that were removed. They get only committed entries (see
        dledger/members/effects.py).
        """
        self._voters = tuple(sorted(voters))
        before, self._leaving = self._leaving, tuple(leaving)
        wanted = sorted(peer for peer in peers if peer != self.self_id)
        self.progress = {peer: self.progress.get(peer, Progress()) for peer in wanted}
        effects = self._advance_commit()
        for peer, progress in self.progress.items():
            if peer in before and peer not in self._leaving and progress.state is PushState.APPEND:
                self._fill(peer, progress, effects)  # the peer stays in the group, so send what was withheld
        return effects

    # Events

    def peer_up(self, peer: str, counts: bool) -> list[Effect]:
        """Note that a connection to the peer is open, and begin to find out where its log agrees.

        The peer's earlier acknowledgements are forgotten. The peer may have been restarted and hold less:
        entries that were only stored, or under ASYNC_FLUSH only written, may be gone. `counts` says whether
        the configuration names this incarnation of the peer. Another incarnation does not count towards a
        quorum.
        """
        progress = self.progress.get(peer)
        if progress is None:
            return []
        progress.stored = progress.durable = progress.installed = -1
        progress.full = False
        progress.counts = counts
        return self._compare(peer, progress, self._log.last_index)

    def peer_counts(self, peer: str, counts: bool) -> None:
        """Set whether the peer counts towards a quorum from now on (see `peer_up`)."""
        progress = self.progress.get(peer)
        if progress is not None:
            progress.counts = counts

    def peer_down(self, peer: str) -> list[Effect]:
        """Note that the connection to the peer is gone."""
        progress = self.progress.get(peer)
        if progress is not None:
            progress.state = PushState.DOWN
            self._clear_window(progress)
        return []

    def extended(self) -> list[Effect]:
        """Send new entries. Called when the leader's log has grown."""
        effects: list[Effect] = []
        for peer, progress in self.progress.items():
            if progress.state is PushState.APPEND:
                self._fill(peer, progress, effects)
        return effects

    def local_durable(self) -> list[Effect]:
        """Move the commit index if possible. Called when the leader's own durable index has moved."""
        return self._advance_commit()

    def response(self, peer: str, message: PushResponse) -> list[Effect]:
        """Handle an answer of a peer in this term."""
        progress = self.progress.get(peer)
        if progress is None or message.term != self.term:
            return []
        if progress.state in (PushState.DOWN, PushState.INSTALL):
            return []
        if message.code is Code.INCONSISTENT_STATE:
            return [] if progress.state is PushState.PAUSED else self._disagreed(peer, progress, message)
        if message.code not in (Code.SUCCESS, Code.DISK_FULL):
            return []
        if message.stored > self._log.last_index:
            raise InvariantBroken(
                f"{peer} says it stored {message.stored}, beyond the leader's {self._log.last_index}"
            )
        if message.code is Code.DISK_FULL:
            progress.full = True
        elif progress.state is PushState.APPEND and message.stored > progress.stored:
            progress.full = False
        progress.stored = max(progress.stored, message.stored)
        progress.durable = max(progress.durable, message.durable)
        effects: list[Effect] = []
        if message.code is Code.DISK_FULL:
            self.pause(peer)
        elif progress.state is PushState.COMPARE:
            self._agreed(peer, progress, message, effects)
        elif progress.state is PushState.TRUNCATE:
            # frames arrive in order, so the cut is done before an Append is read
            self._start_append(progress)
        while progress.inflight and progress.inflight[0][0] <= message.stored:
            progress.inflight_bytes -= progress.inflight.popleft()[1]
        effects += self._advance_commit()
        if progress.state is PushState.APPEND:
            self._fill(peer, progress, effects)
            self._tell_commit(peer, progress, effects)
        return effects

    def pause(self, peer: str) -> None:
        """Send the peer no entries until `resume_paused`. Its acknowledgements still count."""
        progress = self.progress.get(peer)
        if progress is not None and progress.state is not PushState.DOWN:
            progress.state = PushState.PAUSED
            self._clear_window(progress)

    def withholds(self, peer: str, index: int) -> bool:
        """Whether the peer is leaving and must not get this entry, because the entry is not committed yet."""
        return peer in self._leaving and index > self.commit_index

    def wants(self, push: SendAppend) -> bool:
        """Whether a delayed push should still be sent. It should not if its peer was paused or compared again
        in the meantime."""
        progress = self.progress.get(push.peer)
        return progress is not None and progress.window == push.window

    def resume_paused(self) -> list[Effect]:
        """Compare the logs of all paused peers again, so that replication to them can continue."""
        return [
            effect
            for peer, progress in self.progress.items()
            if progress.state is PushState.PAUSED
            for effect in self._compare(peer, progress, self._log.last_index)
        ]

    def install_response(self, peer: str, message: InstallResponse) -> list[Effect]:
        """Handle an answer that says how much of a snapshot a peer has."""
        progress = self.progress.get(peer)
        if progress is None or progress.state is not PushState.INSTALL or message.term != self.term:
            return []
        offer = progress.offer
        if offer is None or message.index != offer.index:
            return []
        if message.code is Code.INCONSISTENT_STATE:
            # the peer received all bytes, but they are not the announced snapshot
            return self.install_failed(peer, offer.index)
        if message.code is not Code.SUCCESS:
            return []
        if message.offset < offer.total:
            return [SendInstall(peer, offer, max(message.offset, 0))]
        progress.offer = None
        progress.installed = offer.index
        return self._compare(peer, progress, max(offer.index, self._log.first_index - 1))

    def install_failed(self, peer: str, index: int) -> list[Effect]:
        """Note that the snapshot at `index` could not be read or is corrupt. Offers the current snapshot
        instead."""
        progress = self.progress.get(peer)
        if progress is None or progress.offer is None or progress.offer.index != index:
            return []
        return self._install(peer, progress)

    def offers_changed(self) -> list[Effect]:
        """Offer a snapshot to the peers that wait for one. Called when there is a new snapshot."""
        effects: list[Effect] = []
        for peer, progress in self.progress.items():
            if progress.state is PushState.INSTALL and progress.offer is None:
                effects += self._install(peer, progress)
        return effects

    def needed_from(self) -> int:
        """Index of the first entry that a connected peer still needs from this log. Retention should keep it
        and later ones."""
        needed = self._log.last_index + 1
        for progress in self.progress.values():
            if progress.state is PushState.INSTALL and progress.offer is not None:
                needed = min(needed, progress.offer.index + 1)
            elif progress.state in (PushState.TRUNCATE, PushState.APPEND, PushState.PAUSED):
                needed = min(needed, max(progress.compare_index, progress.stored) + 1)
            elif progress.state is PushState.COMPARE and max(progress.installed, progress.stored) >= 0:
                # This state may last long, because an agreement is reported only when the peer's disk has the
                # entry.
                needed = min(needed, max(progress.installed, progress.stored) + 1)
        return needed

    @property
    def voters(self) -> tuple[str, ...]:
        """Ids of the voters, sorted. Their watermarks decide what is committed."""
        return self._voters

    def counts(self, peer: str) -> bool:
        """Whether the configuration names the present incarnation of a peer, so that the peer counts towards
        a quorum."""
        progress = self.progress.get(peer)
        return progress is not None and progress.counts

    def watermark(self, peer: str) -> int:
        """The index up to which a peer has the log durable, which counts for commit. It never includes
        entries that are only in the peer's memory."""
        return self.progress[peer].durable

    # Finding the agreement

    def _compare(self, peer: str, progress: Progress, index: int) -> list[Effect]:
        self._clear_window(progress)
        progress.state = PushState.COMPARE
        progress.offer = None
        term = self._log.term_of(index) if index >= self._log.first_index - 1 else None
        if term is None:
            return self._install(peer, progress)
        progress.compare_index = index
        return [SendCompare(peer, index, term)]

    def _install(self, peer: str, progress: Progress) -> list[Effect]:
        """Start an install, because the peer needs entries before this log, or contradicts the beginning of
        this log."""
        self._clear_window(progress)
        progress.state = PushState.INSTALL
        offer = self._offer()
        if offer is None or offer.index <= progress.installed:
            progress.offer = None
            return [NeedsSnapshot(peer)]
        progress.offer = offer
        return [SendInstall(peer, offer, -1)]

    def _agreed(self, peer: str, progress: Progress, message: PushResponse, effects: list[Effect]) -> None:
        if message.stored < progress.compare_index:
            return  # a late answer to an earlier question, or the peer's disk has not written the entry yet
        if message.end > progress.compare_index:
            # The peer has more entries. They conflict with ours, or are the same (then nothing is cut).
            term = self._log.term_of(progress.compare_index + 1)
            if term is not None:
                progress.state = PushState.TRUNCATE
                effects.append(SendTruncate(peer, progress.compare_index + 1, term))
                return
        self._start_append(progress)

    def _start_append(self, progress: Progress) -> None:
        progress.state = PushState.APPEND
        progress.next = max(progress.compare_index, progress.stored) + 1

    def _disagreed(self, peer: str, progress: Progress, message: PushResponse) -> list[Effect]:
        if progress.state is PushState.COMPARE:
            if message.hint_index > progress.compare_index:
                # The peer's log begins after that entry, and everything before its beginning was committed.
                # So compare at its beginning.
                if message.hint_index > self._log.last_index:
                    # This leader's log lacks committed entries, so no snapshot of it would help the peer.
                    progress.state = PushState.INSTALL
                    return [NeedsSnapshot(peer)]
                return self._compare(peer, progress, message.hint_index)
            hint = min(message.hint_index, progress.compare_index - 1)
            if hint < 0:
                return self._compare(peer, progress, -1)
            # the peer's log begins after that entry, and its snapshot there is lost
            if message.hint_term < 0:
                return self._compare(peer, progress, hint)
            return self._compare(peer, progress, self._log.last_of_term_at_most(message.hint_term, hint))
        # An APPEND or TRUNCATE did not fit, because something was lost on the way. Compare again at the hint.
        return self._compare(
            peer, progress, min(max(message.stored, message.hint_index), self._log.last_index)
        )

    def _clear_window(self, progress: Progress) -> None:
        self._windows += 1
        progress.window = self._windows
        progress.inflight.clear()
        progress.inflight_bytes = 0

    # Sending

    def _fill(self, peer: str, progress: Progress, effects: list[Effect]) -> None:
        last = self.commit_index if peer in self._leaving else self._log.last_index
        # A push brings the rest of its client batch along. A push of entries that the peer has already would
        # not be answered.
        progress.next = max(progress.next, progress.stored + 1)
        while (
            progress.next <= last
            and progress.inflight_bytes < self._window
            and len(progress.inflight) < (1 if progress.full else self._frames)
        ):
            first = progress.next
            prev_term = self._log.term_of(first - 1)
            if prev_term is None or first < self._log.first_index:
                effects += self._install(peer, progress)
                return
            end, size = self._log.range_end(first, 0 if progress.full else self.push_bytes)
            if size is None:
                size = self._window  # send nothing more before it is acknowledged
            end = min(end, last)
            effects.append(SendAppend(peer, first, end, prev_term, progress.window))
            progress.inflight.append((end, size))
            progress.inflight_bytes += size
            progress.next = end + 1
            progress.sent_commit = self.commit_index

    def _tell_commit(self, peer: str, progress: Progress, effects: list[Effect]) -> None:
        if progress.sent_commit < self.commit_index and progress.stored > progress.sent_commit:
            progress.sent_commit = self.commit_index
            effects.append(SendCommit(peer))

    # Committing

    def _advance_commit(self) -> list[Effect]:
        marks = [
            self._log.durable_index if voter == self.self_id else self.watermark(voter)
            for voter in self._voters
            if voter == self.self_id or (voter in self.progress and self.progress[voter].counts)
        ]
        marks += [-1] * (len(self._voters) - len(marks))
        index = quorum_index(marks)
        if index < self.opening_index or index <= self.commit_index:
            return []
        self.commit_index = index
        effects: list[Effect] = [Committed(index)]
        for peer, progress in self.progress.items():
            if progress.state is PushState.APPEND:
                if peer in self._leaving:
                    self._fill(peer, progress, effects)
                self._tell_commit(peer, progress, effects)
        return effects
