"""Leader election as a pure state machine: `step(event, now) -> effects`.

Raft's election (dissertation 3.4) with pre-vote and leader stickiness (9.6), check-quorum (6.2) and the vote
results of DLedger. One rule ensures durability: effects are in order, and those after a `SaveHardState` may
be performed only when term and vote are on disk. Until then the later effects and all later events wait in
the shell (architecture rule 3).

The states and every step between them are the table in `dledger.election.transitions`. The result of a round
of votes is computed by `dledger.election.votes`.

Heartbeats are numbered in rounds within a term. If a quorum of voters answers a round, this node was the
leader when it sent the round. Read points are based on this fact (dissertation 6.4, `dledger.node.reads`). So
are leases, if the group allows them.

A LEARNER becomes a FOLLOWER when a configuration names it as a voter, and never by itself. But it answers
vote requests, because an entry that it lacks may have promoted it. A candidate counts its vote only if the
candidate's configuration names it (see dledger/context/config_log.py). Time is a float in seconds from the
shell's monotonic clock; the source of random numbers is injected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dledger.election.effects import Effect, RoleChanged, RoundConfirmed, SaveHardState, Send
from dledger.election.transitions import ROLES, Cause, State, check
from dledger.election.votes import Verdict, arbitrate, lost, somebody_is_ahead
from dledger.errors import InvariantBroken
from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import (
    Code,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.replication.quorum import quorum_index

MAX_LEAP = 1 << 10
"""The largest number of terms by which a request may raise this node's term. A request may come from anybody
who reaches the peer port. For a larger step the node asks the sender itself, over a connection that this node
opened. (`recover` raises a term by a thousand.)"""
MAX_TOLD_TERM = 1 << 61
"""An answer does not raise a term above this limit; above it each election still raises the term by one. So
nobody can push a node to the highest possible number, after which no election would be possible."""
MAX_TERM = 1 << 62
"""Largest term of an election. A store can have a higher term only if a sender outside the group caused
it."""
NO_READ = -1
"""Number of a ReadIndexRequest that only asks for the term; a request for a read point never has this
number."""
MAX_OPEN_ROUNDS = 256
"""Largest number of unanswered rounds of heartbeats whose time of sending is kept. Rounds older than these
give no lease."""


class LogTip(Protocol):
    """What an election needs to know of the log. The last entry is read from the log each time, and never
    remembered."""

    @property
    def last_index(self) -> int:
        """Index of the last entry; -1 for an empty log."""

    @property
    def last_term(self) -> int:
        """Term of the last entry; -1 for an empty log."""


class Chance(Protocol):
    """The injected source of random numbers (`random.Random`)."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between a and b."""


@dataclass(frozen=True)
class ElectionSettings:
    """Times in seconds. `NodeConfig` says what breaks if they are badly chosen."""

    heartbeat_interval_s: float
    timeout_min_s: float
    timeout_max_s: float
    retry_min_s: float
    lease_s: float = 0.0
    """Duration, in seconds, of the lease that a confirmed round of heartbeats gives, from the sending of the
    round; 0 switches lease reads off (S17)."""


class Elector:
    """Election state of one node. Most methods report an event, and return the effects to perform."""

    def __init__(
        self,
        settings: ElectionSettings,
        self_id: str,
        voters: Iterable[str],
        hard_state: HardState,
        log: LogTip,
        rng: Chance,
        now: float,
        *,
        may_vote: bool = True,
    ) -> None:
        self._settings = settings
        self._self_id = self_id
        self._log = log
        self._rng = rng
        self._peers: tuple[str, ...] = ()
        self.may_stand: bool = True
        """Whether this node would be a good leader. It would not with corrupt entries, or a full or stalled
        disk; then it votes, but does not stand for election."""
        self.health: int = 0
        """`Health` flags of this node, which it reports to the leader."""
        self.leader_id: str | None = None
        self.commanded_term: int = -1
        """The last term that, as far as this node knows, began with a hand-over on an operator's request."""
        self._leader_heard = -1e9
        self._leader_gone = False
        self._absent: str | None = None
        """The peer whose host refused the last connection; it is useless to wait for its vote."""
        self._results: dict[str, VoteResult] = {}
        """Maps a peer to its answer in the current round of votes or pre-votes."""
        self._votes: dict[str, VoteResult] = {}
        """Maps a peer to its answer to the request for votes in this term. Empty if this candidate sent no
        request."""
        self._failed_rounds = 0
        self.patience_s: float = 0.0
        self._round_ends = 0.0
        """Time before which an unanswered pre-vote is not repeated."""
        self._save_s = 0.0
        """How long the last save of term and vote took, in seconds. The other nodes are assumed to need as
        long for theirs."""
        self._gave_way = 0
        """Highest term for which this node gave another candidate extra time to save term and vote."""
        self._round = 0
        self._confirmed = 0
        self._answered: dict[str, int] = {}
        self._rounds_sent: deque[tuple[int, float]] = deque(maxlen=MAX_OPEN_ROUNDS)
        self._lease_from = -1e9
        self._handed_over = False
        self.stepped_down: str = ""
        """Why this node's last leadership ended; empty before its first leadership has ended."""
        self.entered: str = ""
        """Why this node came into its present state; empty if it has been in it since its start."""
        self._contact: dict[str, float] = {}
        self._peer_health: dict[str, int] = {}
        self._ask_again: dict[str, float] = {}
        """Maps a peer to the time from which it may be asked for its term again."""
        self._quorum_deadline = 0.0
        self.open(hard_state, voters, now, may_vote=may_vote)

    def open(self, hard_state: HardState, voters: Iterable[str], now: float, *, may_vote: bool) -> None:
        """Begin with the content of the store, and with the members that the store names. (A shell that must
        answer before its store is open makes an elector without content, and calls this method later.)"""
        self._voters: tuple[str, ...] = tuple(sorted(voters))
        self.may_vote: bool = may_vote
        """Whether the store can be trusted. If not, the node neither votes nor stands for election (S3)."""
        self.term: int = hard_state.term
        self.vote = hard_state.vote
        self.state = State.FOLLOWER if self._self_id in self._voters else State.LEARNER
        # With leases, a restarted voter keeps a promise that it may have given to a leader before.
        self._quiet_until = now + self._settings.timeout_min_s if self._settings.lease_s else now
        self._deadline = now + self._timeout()
        self._next_heartbeat = now

    # What the shell asks

    @property
    def role(self) -> Role:
        """The role that is shown to others."""
        return ROLES[self.state]

    @property
    def round(self) -> int:
        """Number of the last round of heartbeats that this leader sent in its term."""
        return self._round

    @property
    def deadline(self) -> float:
        """Time at which `tick` should be called next."""
        if self.state is State.LEADER:
            return min(self._next_heartbeat, self._quorum_deadline)
        return self._deadline

    @property
    def voters(self) -> tuple[str, ...]:
        """Voting members, sorted."""
        return self._voters

    def may_follow(self, term: int) -> bool:
        """Whether elections can have led to this term. If not, a sender outside the group made it up."""
        return term <= max(self.term + MAX_LEAP, MAX_TOLD_TERM)

    def leaps(self, term: int) -> bool:
        """Whether a request's term is too far ahead to be followed. If so, its sender is asked instead
        (`ask_term`)."""
        return term > self.term + MAX_LEAP

    def ask_term(self, peer: str, now: float) -> list[Effect]:
        """Ask a peer for its term, because a request that claims to be from this peer has a term too far
        ahead.

        If two nodes refused each other's terms for ever, the group would be split. So no node refuses the
        term of a member. An answer over a connection that this node opened comes from the member itself, and
        its term is followed.

        The question is a request that every node answers and that changes nothing. At most one is sent per
        peer and heartbeat interval, because there may be many forged requests. A member that this node does
        not know yet cannot be asked, because there is no connection to it: see `step_towards`.
        """
        if now < self._ask_again.get(peer, -1e9):
            return []
        self._ask_again[peer] = now + self._settings.heartbeat_interval_s
        return [Send(peer, ReadIndexRequest(self.term, self._self_id, NO_READ))]

    def step_towards(self, term: int, now: float) -> list[Effect]:
        """Raise this node's term towards `term`, but at most by MAX_LEAP. If a leader cannot be asked for its
        term, it repeats its message, so later calls raise the term further."""
        return self.higher_term(min(term, self.term + MAX_LEAP), now)

    def quorum(self, count: int) -> bool:
        """Whether `count` is more than half of the voters (isQuorum)."""
        return count > len(self._voters) // 2

    def lease_valid(self, now: float) -> bool:
        """Whether no other leader can exist at `now`. The caller must read the clock after the request has
        arrived (S17).

        Always false once a hand-over was tried in this term, because the vote requests of a hand-over
        override the promise of the voters.
        """
        leading = self.state is State.LEADER and not self._handed_over
        return leading and now < self._lease_from + self._settings.lease_s

    def health_of(self, peer: str) -> int | None:
        """Return the `Health` flags that a peer last reported to this leader; None before the first
        report."""
        return self._peer_health.get(peer)

    # Events

    def trust(self, trusted: bool) -> None:
        """Set whether the store can be trusted. If not, this node neither votes nor stands for election
        (S3)."""
        self.may_vote = trusted

    def feels(self, health: int, *, may_stand: bool, patience_s: float = 0.0) -> None:
        """Set how healthy this node is (`Health` flags) and whether it would be a good leader. `patience_s`
        is added to its time-outs, because delays that it causes itself do not mean that other nodes are
        gone."""
        self.health = health
        self.may_stand = may_stand
        self.patience_s = patience_s

    def peer_feels(self, peer: str, health: int) -> None:
        """Note the health that a peer reported to this leader. It is shown to operators, and checked before a
        hand-over."""
        self._peer_health[peer] = health

    def tick(self, now: float) -> list[Effect]:
        """Act on a deadline that has passed. May also be called earlier."""
        if self.state is State.LEADER:
            return self._tick_leader(now)
        if now < self._deadline:
            return []
        cannot = self.state is State.LEARNER or not (self.may_vote and self.may_stand)
        if cannot or self._self_id not in self._voters:
            self._deadline = now + self._timeout()
            return self._forget_leader(now)
        if self.state is State.PRE_CANDIDATE and len(self._results) == 1 and now < self._round_ends:
            # Nobody has answered, so the links may be slow. A second round would end the rule by which the
            # first one decides who goes first (`_give_way`): all would grant pre-votes and split the votes.
            self._deadline = self._round_ends
            return []
        return self._start_pre_vote(now)

    def receive(self, peer: str, message: Message, now: float) -> list[Effect]:
        """Handle a message of a peer that belongs to elections."""
        handler: Callable[[str, Message, float], list[Effect]] | None = {
            VoteRequest: self._on_vote_request,
            VoteResponse: self._on_vote_response,
            Heartbeat: self._on_heartbeat,
            HeartbeatResponse: self._on_heartbeat_response,
            TimeoutNow: self._on_timeout_now,
        }.get(type(message))  # type: ignore[assignment]
        if handler is None:
            raise TypeError(f"the elector does not handle {type(message).__name__}")
        return handler(peer, message, now)

    def leader_contact(self, leader: str, term: int, now: float) -> list[Effect]:
        """Note a message that only the leader of `term` sends (Heartbeat, Append, Compare ...).

        Call it only with a `term` that is not below the current one.
        """
        effects: list[Effect] = []
        if term > self.term:
            effects += self._follow(term, leader, now)
        elif self.leader_id is None:
            effects += self._become_follower(Cause.LEADER_HEARD, leader, now)
        elif self.leader_id != leader:
            raise InvariantBroken(f"two leaders in term {term}: {self.leader_id} and {leader}")
        self._leader_heard = now
        self._leader_gone = False
        self._absent = None
        self._failed_rounds = 0
        self._deadline = now + self._timeout()
        return effects

    def peer_active(self, peer: str, now: float) -> None:
        """Note that a peer answered this leader in this term, which counts for the check-quorum."""
        if self.state is State.LEADER:
            self._contact[peer] = now

    def heard(self, peer: str, since: float) -> bool:
        """Whether this leader has heard a voter after `since`."""
        return self._contact.get(peer, -1e9) > since

    def awake(self, peer: str, now: float) -> bool:
        """Whether this leader has heard a voter within the longest election time-out. If so, the health that
        the voter last reported may still be right."""
        return self.heard(peer, now - self._settings.timeout_max_s)

    def leader_refused(self, peer: str, now: float) -> list[Effect]:
        """Note that the leader's host refused a connection: no process listens there, so the leader's process
        is gone (S17).

        This is only a hint. It starts a pre-vote early, which disturbs no other node, and ends stickiness.
        With leases it is ignored, because the voters' promise to the leader outlives the leader's process.
        """
        if peer != self.leader_id or self.state is not State.FOLLOWER or self._settings.lease_s:
            return []
        if self._leader_gone:
            return []  # known already, and this node may have given way to another candidate
        self._leader_gone = True
        self._absent = peer
        self._deadline = min(self._deadline, now + self._rng.uniform(0.0, self._settings.retry_min_s))
        return []

    def saved(self, took: float) -> None:
        """Note that term and vote are on disk; the save took `took` seconds.

        While they were being saved this node could send and receive nothing, so the time-out begins now. It
        is longer by the time that the save took (at most by twice the longest time-out). An election needs an
        fsync on two disks, and the other nodes may need as long for theirs.
        """
        self._save_s = min(took, 2 * self._settings.timeout_max_s)
        self._deadline += took + self._save_s

    def higher_term(self, term: int, now: float) -> list[Effect]:
        """Take over a higher term, which a response contained."""
        return self._follow(term, None, now) if term > self.term else []

    def set_members(self, voters: Iterable[str], peers: Iterable[str], now: float) -> list[Effect]:
        """Take over a changed configuration, which is in force as soon as it is appended (S19). `peers` are
        all other members, including learners."""
        before = self._voters
        self._voters = tuple(sorted(voters))
        self._peers = tuple(sorted(peer for peer in peers if peer != self._self_id))
        votes = self._self_id in self._voters
        if self.state is State.LEADER:
            # A learner that became a voter was not counted as heard. A node that left is forgotten, as
            # another store may come under its id.
            self._contact = {
                peer: self._contact.get(peer, -1e9 if peer in before else now) for peer in self._voters
            }
            self._answered = {peer: self._answered.get(peer, 0) for peer in self._voters}
        if self.state is State.LEARNER and votes:
            self._deadline = now + self._timeout()
            self._enter(Cause.PROMOTED, State.FOLLOWER)
            return [RoleChanged(self.role, self.term, self.leader_id, self.entered)]
        if self.state not in (State.LEADER, State.LEARNER) and not votes:
            self._enter(Cause.REMOVED, State.LEARNER)
            return [RoleChanged(self.role, self.term, self.leader_id, self.entered)]
        return self._confirm()

    def start_round(self, now: float) -> list[Effect]:
        """Send a round of heartbeats now. Its number is `round` afterwards. Does nothing unless this node
        leads."""
        if self.state is not State.LEADER:
            return []
        self._next_heartbeat = now + self._settings.heartbeat_interval_s
        self._round += 1
        if self._settings.lease_s:
            self._rounds_sent.append((self._round, now))
        message = Heartbeat(self.term, self._self_id, self._round)
        return [*(Send(peer, message) for peer in self._peers), *self._confirm()]

    def step_down(self, now: float, why: str = Cause.STEP_DOWN.value) -> list[Effect]:
        """Step down without handing leadership over. `why` is the reason for the log."""
        if self.state is not State.LEADER:
            return []
        effects = self._become_follower(Cause.STEP_DOWN, None, now)
        self.stepped_down = self.entered = why
        return effects

    def hand_over(self, target: str, *, commanded: bool = False) -> list[Effect]:
        """Ask a voter that has caught up to stand for election at once. `commanded` says that an operator
        asked for it."""
        if self.state is not State.LEADER or target not in self._voters or target == self._self_id:
            return []
        self._handed_over = True
        return [Send(target, TimeoutNow(self.term, self._self_id, commanded))]

    # Time-outs

    def _timeout(self) -> float:
        return self._rng.uniform(self._settings.timeout_min_s, self._settings.timeout_max_s) + self.patience_s

    def _retry_pause(self) -> float:
        pause: float = self._settings.retry_min_s * (1 << min(self._failed_rounds, 10))
        return self._rng.uniform(0.5, 1.0) * min(pause, self._settings.timeout_min_s)

    def _tick_leader(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._quorum_deadline:
            recent = now - self._settings.timeout_max_s - self.patience_s
            # A leader that is leaving the group leads without counting itself (dissertation 4.2.2).
            alive = sum(
                1 for peer in self._voters if peer == self._self_id or self._contact.get(peer, -1e9) >= recent
            )
            if not self.quorum(alive):
                return self._become_follower(Cause.NO_QUORUM, None, now)
            self._quorum_deadline = now + self._settings.timeout_min_s / 2
        if now >= self._next_heartbeat:
            effects += self.start_round(now)
        return effects

    def _forget_leader(self, now: float) -> list[Effect]:
        if self.leader_id is None or now - self._leader_heard < self._settings.timeout_min_s:
            return []
        self.leader_id = None
        return [RoleChanged(self.role, self.term, None, self.entered)]

    # Elections

    def _start_pre_vote(self, now: float) -> list[Effect]:
        self._failed_rounds += 1
        self._deadline = now + self._retry_pause()
        self._round_ends = now + self._settings.timeout_min_s * self._rng.uniform(0.5, 0.75)
        if self.state is State.FOLLOWER:
            self._votes = {}
        new = self.role is not Role.CANDIDATE or self.leader_id is not None
        self._enter(Cause.TIMEOUT, State.PRE_CANDIDATE)
        self.leader_id = None
        effects: list[Effect] = [RoleChanged(Role.CANDIDATE, self.term, None, self.entered)] if new else []
        return effects + self._ask(self.term + 1, now)

    def _start_vote(self, cause: Cause, now: float) -> list[Effect]:
        self._enter(cause, State.CANDIDATE)
        self.leader_id = None
        self.term += 1
        self.vote = self._self_id
        self._deadline = now + self._settings.timeout_min_s * self._rng.uniform(0.5, 1.0)
        effects: list[Effect] = [
            SaveHardState(HardState(self.term, self.vote)),
            RoleChanged(Role.CANDIDATE, self.term, None, self.entered),
        ]
        return effects + self._ask(self.term, now, transfer=cause is Cause.TIMEOUT_NOW)

    def _ask(self, term: int, now: float, *, transfer: bool = False) -> list[Effect]:
        pre = self.state is State.PRE_CANDIDATE
        last_index, last_term = self._log.last_index, self._log.last_term
        commanded = transfer and self.commanded_term == term
        request = VoteRequest(term, self._self_id, last_index, last_term, pre, transfer, commanded)
        effects: list[Effect] = [Send(peer, request) for peer in self._voters if peer != self._self_id]
        self._results = {self._self_id: VoteResult.ACCEPT}
        if not pre:
            self._votes = self._results
        return effects + self._count(now)

    def _count(self, now: float) -> list[Effect]:
        verdict = arbitrate(self._results, self._voters)
        if verdict is Verdict.PASSED:
            if self.state is State.PRE_CANDIDATE:
                return self._start_vote(Cause.PRE_QUORUM, now)
            return self._become_leader(now)
        if self._lost():
            # No use in waiting for the time-out of the round.
            if verdict is Verdict.WAIT_TO_REVOTE and somebody_is_ahead(self._results):
                self._failed_rounds += 1  # stand back, so that the better log can win
            self._deadline = min(self._deadline, now + self._retry_pause())
        return []

    def _lost(self) -> bool:
        """Whether the current round of votes can no longer be won."""
        absent = {} if self._absent is None else {self._absent: VoteResult.UNKNOWN}
        return lost(absent | self._results, self._voters)

    def votes(self, peer: str) -> bool:
        """Whether a peer votes, that is, it answered in the last round, and not with "does not vote at
        all"."""
        return self._results.get(peer, VoteResult.UNKNOWN) is not VoteResult.UNKNOWN

    def _on_vote_request(self, peer: str, request: VoteRequest, now: float) -> list[Effect]:
        effects: list[Effect] = []
        result = self._refusal(request, now)
        if result is None and not request.pre and self.leaps(request.term):
            return self.ask_term(peer, now)
        if result is None and request.commanded and request.term > self.term:
            self.commanded_term = request.term
        if result is None and not request.pre and request.term > self.term:
            effects += self._follow(request.term, None, now)
        if result is None:
            result = self._compare_logs(request)
        if result is None and request.pre:
            result = self._give_way(request, now)
        if result is None and not request.pre and self.vote is None:
            self.vote = request.candidate
            self._deadline = now + self._timeout()
            effects = [effect for effect in effects if not isinstance(effect, SaveHardState)]
            effects.append(SaveHardState(HardState(self.term, self.vote)))
        answer = VoteResult.ACCEPT if result is None else result
        effects.append(Send(peer, VoteResponse(self.term, request.term, request.pre, answer)))
        return effects

    def _refusal(self, request: VoteRequest, now: float) -> VoteResult | None:
        """Return a reason to refuse a vote request that does not change this node's term; None if there is no
        such reason."""
        # A node that is a learner in its own configuration votes, too: the entry that makes it a voter may
        # not have arrived yet, and a candidate that has it may need the vote (dissertation 4.1). Candidates
        # ask only voters of their configuration, and count only recorded incarnations (S18).
        if not self.may_vote:
            return VoteResult.UNKNOWN
        if request.term < self.term or (request.pre and request.term <= self.term and self.leader_id):
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.term == self.term and self.vote not in (None, request.candidate):
            known = self.leader_id is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if known else VoteResult.REJECT_ALREADY_VOTED
        if request.transfer:
            return None
        if now < self._quiet_until:
            return VoteResult.REJECT_TERM_NOT_READY
        # A late answer to an old request may have raised this node's term to the candidate's. That
        # must not end a promise on which a lease relies. (A voter of this candidate may vote for it again.)
        promised = bool(self._settings.lease_s) and self.vote is None
        if (request.term > self.term or promised) and (self.state is State.LEADER or self._sticks(now)):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        return None

    def _sticks(self, now: float) -> bool:
        """Whether this voter must still keep its promise to a leader, and may not vote for another candidate
        (dissertation 9.6)."""
        heard = now - self._leader_heard < self._settings.timeout_min_s
        if self._settings.lease_s:
            return heard  # with leases nothing ends the promise early
        return heard and self.leader_id is not None and not self._leader_gone

    def _compare_logs(self, request: VoteRequest) -> VoteResult | None:
        """Return a refusal if the candidate's log is not at least as up to date as this voter's (5.4.1)."""
        if request.last_term < self._log.last_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.last_term == self._log.last_term and request.last_index < self._log.last_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < self._log.last_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        return None

    def _give_way(self, request: VoteRequest, now: float) -> VoteResult | None:
        """Decide which of two nodes that stand at the same time goes first. Return None to grant the other's
        pre-vote, and delay this node's own candidacy a little; return a refusal if this node goes first.

        Otherwise both nodes would get each other's pre-vote, vote for themselves, and wait for a time-out. So
        the node with the better log goes first; if the logs are equal, the node with the lower id. This rule
        holds only in the first round, and only while this node can still win that round. A node that goes
        first may be unable to win, because it reaches too few voters, or stood before the others knew that
        their leader is gone. It must not keep others from winning.

        A node with a slow disk must not keep others from winning either. So extra time for its fsyncs is
        given once per term: a candidate that asks again for the same term has not used it.
        """
        if self.state is State.PRE_CANDIDATE:
            better = (request.last_term, request.last_index) > (self._log.last_term, self._log.last_index)
            first = self._failed_rounds == 1 and self.may_vote and self.may_stand and not self._lost()
            if first and not better and self._self_id < request.candidate:
                return VoteResult.REJECT_ALREADY_VOTED
            self._results = {}
        pause = self._settings.retry_min_s * self._rng.uniform(1.0, 2.0)
        if request.term > self._gave_way and not self.leaps(request.term):
            pause += self._save_s
            self._gave_way = request.term
        self._deadline = max(self._deadline, now + pause)
        return None

    def _on_vote_response(self, peer: str, response: VoteResponse, now: float) -> list[Effect]:
        if response.term > self.term and response.result is not VoteResult.ACCEPT:
            return self._follow(response.term, None, now)
        if self.role is not Role.CANDIDATE or peer not in self._voters:
            return []
        if not (self.may_vote and self.may_stand):
            return []  # it began to stand before its disk became faulty
        pre = self.state is State.PRE_CANDIDATE
        if response.asked_term == self.term + pre and response.pre == pre:
            self._results[peer] = response.result
            return self._count(now)
        if self._votes and response.asked_term == self.term and not response.pre:
            return self._late_vote(peer, response.result, now)
        return []

    def _late_vote(self, peer: str, result: VoteResult, now: float) -> list[Effect]:
        """Count a late answer to a request for votes that got no quorum in time. Meanwhile this node asks for
        pre-votes again.

        The answer is late because the voter's disk is slow. The vote is still valid. The term is the same,
        this node votes for no other candidate in this term, and its log loses nothing while it stands for
        election. A voter answers requests in order, so its vote arrives before its pre-vote for the next
        term.
        """
        self._votes[peer] = result
        if arbitrate(self._votes, self._voters) is not Verdict.PASSED:
            return []
        return self._become_leader(now)

    def _on_timeout_now(self, peer: str, message: TimeoutNow, now: float) -> list[Effect]:
        stale = message.term != self.term or message.leader != self.leader_id
        if stale or self.state is not State.FOLLOWER or not (self.may_vote and self.may_stand):
            return []
        if message.commanded:
            self.commanded_term = self.term + 1
        return self._start_vote(Cause.TIMEOUT_NOW, now)

    # States

    def _enter(self, cause: Cause, state: State) -> None:
        self.state = check(self.state, cause, state)
        self.entered = cause.value

    def _become_leader(self, now: float) -> list[Effect]:
        self._enter(Cause.QUORUM, State.LEADER)
        self.leader_id = self._self_id
        self._failed_rounds = 0
        self._peer_health = {}
        self._contact = {peer: now for peer in self._voters if self._votes.get(peer) is VoteResult.ACCEPT}
        self._quorum_deadline = now + self._settings.timeout_max_s
        self._next_heartbeat = now
        self._round = self._confirmed = 0
        self._answered = {}
        self._rounds_sent.clear()
        self._lease_from = -1e9
        self._handed_over = False
        return [RoleChanged(Role.LEADER, self.term, self._self_id, self.entered), *self._tick_leader(now)]

    def _become_follower(self, cause: Cause, leader: str | None, now: float) -> list[Effect]:
        if self.state is State.LEADER:
            handed_over = self._handed_over and cause is Cause.HIGHER_TERM
            self.stepped_down = "it transferred leadership" if handed_over else cause.value
        led = self.state is State.LEADER
        self._enter(cause, State.FOLLOWER if self._self_id in self._voters else State.LEARNER)
        if led:
            self.entered = self.stepped_down
        self.leader_id = leader
        self._leader_gone = False
        self._deadline = now + self._timeout()
        return [RoleChanged(self.role, self.term, leader, self.entered)]

    def _follow(self, term: int, leader: str | None, now: float) -> list[Effect]:
        """Take over a higher term, in which this node has not voted yet."""
        self.term = term
        self.vote = None
        cause = Cause.HIGHER_TERM if leader is None else Cause.LEADER_HEARD
        if self.state is State.LEADER:
            cause = Cause.HIGHER_TERM
        # The change of role comes first: a deposed leader stops serving before the disk is asked.
        return [*self._become_follower(cause, leader, now), SaveHardState(HardState(term, None))]

    # Heartbeats

    def _on_heartbeat(self, peer: str, message: Heartbeat, now: float) -> list[Effect]:
        if message.term < self.term:
            return [Send(peer, HeartbeatResponse(self.term, Code.EXPIRED_TERM))]
        effects = self.leader_contact(message.leader, message.term, now)
        answer = HeartbeatResponse(self.term, Code.SUCCESS, message.round, self.health)
        return [*effects, Send(peer, answer)]

    def _on_heartbeat_response(self, peer: str, message: HeartbeatResponse, now: float) -> list[Effect]:
        if message.term > self.term:
            return self._follow(message.term, None, now)
        if message.term != self.term or self.state is not State.LEADER:
            return []
        self.peer_active(peer, now)
        self.peer_feels(peer, message.health)
        if message.code is not Code.SUCCESS:
            return []
        self._answered[peer] = max(self._answered.get(peer, 0), min(message.round, self._round))
        return self._confirm()

    def _confirm(self) -> list[Effect]:
        """Return the effect that reports the latest round that a quorum of the voters has answered."""
        if self.state is not State.LEADER:
            return []
        answered = (
            self._round if voter == self._self_id else self._answered.get(voter, 0) for voter in self._voters
        )
        confirmed = quorum_index(answered)
        if confirmed <= self._confirmed:
            return []
        self._confirmed = confirmed
        while self._rounds_sent and self._rounds_sent[0][0] <= confirmed:
            self._lease_from = self._rounds_sent.popleft()[1]
        return [RoundConfirmed(confirmed)]
