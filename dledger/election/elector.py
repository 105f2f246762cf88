"""Leader election as a pure state machine: `step(event, now) -> effects`.

Raft's election (dissertation 3.4) with pre-vote and leader stickiness (9.6), check-quorum (6.2) and the
vote results of DLedger. One rule carries durability: effects are in order, and what follows a
`SaveHardState` may happen only when term and vote are on disk; until then the shell holds back the rest
and every later event (architecture rule 3).

```
              time-out, or "leader refused" hint                quorum of pre-votes
  FOLLOWER --------------------------------------> CANDIDATE  ------------------------> CANDIDATE
     ^                                             (pre-vote,                           (vote, term + 1)
     |  higher term, or heartbeat of a leader       term kept)                              |
     +----------------------------------------------- - - - - - <---------------------------+
     |                                                                                      | quorum of votes
     +----------- higher term, or no contact to a quorum <------ LEADER <-------------------+
```

A LEARNER never leaves its role by itself: it becomes a FOLLOWER when a configuration names it a voter.
Time is a float in seconds from the shell's monotonic clock; chance is injected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dledger.errors import InvariantBroken
from dledger.host import Role
from dledger.messages import (
    Code,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from formats.store_files import HardState


class LogTip(Protocol):
    """What an election needs to know of the log: the last entry itself, never a remembered number."""

    @property
    def last_index(self) -> int:
        """Index of the last entry, -1 when there is none."""

    @property
    def last_term(self) -> int:
        """Its term, -1 when there is none."""


class Chance(Protocol):
    """The injected source of chance (`random.Random`)."""

    def uniform(self, a: float, b: float) -> float:
        """A number between a and b."""


@dataclass(frozen=True)
class ElectionSettings:
    """Seconds; see `NodeConfig` for what breaks if they are misused."""

    heartbeat_interval_s: float
    timeout_min_s: float
    timeout_max_s: float
    retry_min_s: float


# Effects, performed in order.


@dataclass(frozen=True, slots=True)
class SaveHardState:
    """Make term and vote durable before anything that follows."""

    state: HardState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer; it may be lost."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Role, term or known leader are new."""

    role: Role
    term: int
    leader_id: str | None


Effect = SaveHardState | Send | RoleChanged


class Elector:
    """Election state of one node. All methods are events: they return the effects to perform."""

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
        self._voters: tuple[str, ...] = tuple(sorted(voters))
        self._peers: tuple[str, ...] = ()
        self.may_vote = may_vote
        """False while the store is not to be trusted: neither votes nor stands (S3)."""
        self.may_stand = True
        """False while this node would be a bad leader (rotten entries, a full or stalled disk): it votes, but
        does not stand."""
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.role = Role.FOLLOWER if self_id in self._voters else Role.LEARNER
        self.leader_id: str | None = None
        self._leader_heard = -1e9
        self._leader_gone = False
        self._pre = False
        self._granted: dict[str, bool] = {}
        self._failed_rounds = 0
        self._transfer = False
        self._contact: dict[str, float] = {}
        self._quorum_deadline = 0.0
        self._deadline = now + self._timeout()
        self._next_heartbeat = now

    # What the shell asks

    @property
    def deadline(self) -> float:
        """When `tick` wants to be called next."""
        if self.role is Role.LEADER:
            return min(self._next_heartbeat, self._quorum_deadline)
        return self._deadline

    @property
    def voters(self) -> tuple[str, ...]:
        """Voting members, sorted."""
        return self._voters

    def quorum(self, count: int) -> bool:
        """More than half of the voters (isQuorum)."""
        return count > len(self._voters) // 2

    # Events

    def tick(self, now: float) -> list[Effect]:
        """A deadline passed, or might have."""
        if self.role is Role.LEADER:
            return self._tick_leader(now)
        if now < self._deadline:
            return []
        cannot = self.role is Role.LEARNER or not (self.may_vote and self.may_stand)
        if cannot or self._self_id not in self._voters:
            self._deadline = now + self._timeout()
            return self._forget_leader(now)
        return self._start_pre_vote(now)

    def receive(self, peer: str, message: Message, now: float) -> list[Effect]:
        """A message of a peer that this module handles."""
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
        """A message that only the leader of `term` sends arrived (Heartbeat, Append, Compare ...).

        Call only with `term` not below the current one.
        """
        effects: list[Effect] = []
        if term > self.term:
            effects += self._follow(term, leader, now)
        elif self.leader_id is None or self.role is Role.CANDIDATE:
            effects += self._become_follower(leader, now)
        elif self.leader_id != leader:
            raise InvariantBroken(f"two leaders in term {term}: {self.leader_id} and {leader}")
        self._leader_heard = now
        self._leader_gone = False
        self._failed_rounds = 0
        self._deadline = now + self._timeout()
        return effects

    def peer_active(self, peer: str, now: float) -> None:
        """A peer answered this leader in this term: it counts for the check-quorum."""
        if self.role is Role.LEADER:
            self._contact[peer] = now

    def leader_refused(self, peer: str, now: float) -> list[Effect]:
        """The leader's host answers that nobody listens there: its process is gone (S17).

        Only a hint: it starts a pre-vote early, which disturbs nobody, and gives up stickiness.
        """
        if peer != self.leader_id or self.role is not Role.FOLLOWER:
            return []
        self._leader_gone = True
        self._deadline = min(self._deadline, now + self._rng.uniform(0.0, self._settings.retry_min_s))
        return []

    def higher_term(self, term: int, now: float) -> list[Effect]:
        """A response carried a term above ours."""
        return self._follow(term, None, now) if term > self.term else []

    def set_members(self, voters: Iterable[str], peers: Iterable[str], now: float) -> list[Effect]:
        """The configuration changed (effective at append, S19); `peers` are all others, also learners."""
        self._voters = tuple(sorted(voters))
        self._peers = tuple(sorted(peer for peer in peers if peer != self._self_id))
        if self.role is Role.LEARNER and self._self_id in self._voters:
            self._deadline = now + self._timeout()
            self.role = Role.FOLLOWER
            return [RoleChanged(self.role, self.term, self.leader_id)]
        if (
            self.role is not Role.LEADER
            and self._self_id not in self._voters
            and self.role is not Role.LEARNER
        ):
            self.role = Role.LEARNER
            return [RoleChanged(self.role, self.term, self.leader_id)]
        return []

    def step_down(self, now: float) -> list[Effect]:
        """Give leadership up without a successor: this node cannot serve (its disk does not answer)."""
        return self._become_follower(None, now) if self.role is Role.LEADER else []

    def hand_over(self, target: str) -> list[Effect]:
        """Tell a caught-up voter to stand at once."""
        if self.role is not Role.LEADER or target not in self._voters or target == self._self_id:
            return []
        return [Send(target, TimeoutNow(self.term, self._self_id))]

    # Time-outs

    def _timeout(self) -> float:
        return self._rng.uniform(self._settings.timeout_min_s, self._settings.timeout_max_s)

    def _retry_pause(self) -> float:
        pause: float = self._settings.retry_min_s * (1 << min(self._failed_rounds, 10))
        return self._rng.uniform(0.5, 1.0) * min(pause, self._settings.timeout_min_s)

    def _tick_leader(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._quorum_deadline:
            recent = now - self._settings.timeout_max_s
            alive = 1 + sum(
                1
                for peer in self._voters
                if peer != self._self_id and self._contact.get(peer, -1e9) >= recent
            )
            if not self.quorum(alive):
                return self._become_follower(None, now)
            self._quorum_deadline = now + self._settings.timeout_min_s / 2
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._settings.heartbeat_interval_s
            effects += [Send(peer, Heartbeat(self.term, self._self_id)) for peer in self._peers]
        return effects

    def _forget_leader(self, now: float) -> list[Effect]:
        if self.leader_id is None or now - self._leader_heard < self._settings.timeout_min_s:
            return []
        self.leader_id = None
        return [RoleChanged(self.role, self.term, None)]

    # Elections

    def _start_pre_vote(self, now: float) -> list[Effect]:
        self._pre = True
        self._granted = {}
        self._transfer = False
        self._failed_rounds += 1
        self._deadline = now + self._retry_pause()
        effects: list[Effect] = []
        if self.role is not Role.CANDIDATE or self.leader_id is not None:
            self.role = Role.CANDIDATE
            self.leader_id = None
            effects.append(RoleChanged(Role.CANDIDATE, self.term, None))
        return effects + self._ask(self.term + 1, now)

    def _start_vote(self, now: float) -> list[Effect]:
        self._pre = False
        self._granted = {}
        self.role = Role.CANDIDATE
        self.leader_id = None
        self.term += 1
        self.vote = self._self_id
        self._deadline = now + self._settings.timeout_min_s * self._rng.uniform(0.5, 1.0)
        effects: list[Effect] = [
            SaveHardState(HardState(self.term, self.vote)),
            RoleChanged(Role.CANDIDATE, self.term, None),
        ]
        return effects + self._ask(self.term, now)

    def _ask(self, term: int, now: float) -> list[Effect]:
        request = VoteRequest(
            term, self._self_id, self._log.last_index, self._log.last_term, self._pre, self._transfer
        )
        effects: list[Effect] = [Send(peer, request) for peer in self._voters if peer != self._self_id]
        self._granted[self._self_id] = True
        return effects + self._count(now)

    def _count(self, now: float) -> list[Effect]:
        granted = sum(1 for voter in self._voters if self._granted.get(voter))
        if self.quorum(granted):
            return self._start_vote(now) if self._pre else self._become_leader(now)
        refused = sum(1 for voter in self._voters if self._granted.get(voter) is False)
        if len(self._voters) - refused <= len(self._voters) // 2:
            # Lost: no use in waiting for the time-out of the round.
            self._deadline = min(self._deadline, now + self._retry_pause())
        return []

    def _on_vote_request(self, peer: str, request: VoteRequest, now: float) -> list[Effect]:
        effects: list[Effect] = []
        result = self._refusal(request, now)
        if result is None and not request.pre and request.term > self.term:
            effects += self._follow(request.term, None, now)
        if result is None:
            result = self._compare_logs(request)
        if result is None and not request.pre:
            if self.vote not in (None, request.candidate):
                known = self.leader_id is not None
                result = VoteResult.REJECT_ALREADY_HAS_LEADER if known else VoteResult.REJECT_ALREADY_VOTED
            elif self.vote is None:
                self.vote = request.candidate
                self._deadline = now + self._timeout()
                effects = [effect for effect in effects if not isinstance(effect, SaveHardState)]
                effects.append(SaveHardState(HardState(self.term, self.vote)))
        answer = VoteResult.ACCEPT if result is None else result
        effects.append(Send(peer, VoteResponse(self.term, request.term, request.pre, answer)))
        return effects

    def _refusal(self, request: VoteRequest, now: float) -> VoteResult | None:
        """Reasons that leave this node's term as it is."""
        # Being a learner in the own configuration is no reason: the entry that makes this node a voter may
        # not have arrived, and the candidate that has it may need this vote (dissertation 4.1). Candidates
        # ask only voters of theirs, and count only recorded incarnations (S18).
        if not self.may_vote:
            return VoteResult.UNKNOWN
        if request.term < self.term or (request.pre and request.term <= self.term and self.leader_id):
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.transfer:
            return None
        if self.role is Role.LEADER and request.term > self.term:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        heard = now - self._leader_heard < self._settings.timeout_min_s
        if self.leader_id is not None and heard and not self._leader_gone and request.term > self.term:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        return None

    def _compare_logs(self, request: VoteRequest) -> VoteResult | None:
        """A voter refuses a candidate whose log is not at least as up to date (5.4.1)."""
        if request.last_term < self._log.last_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.last_term == self._log.last_term and request.last_index < self._log.last_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < self._log.last_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        return None

    def _on_vote_response(self, peer: str, response: VoteResponse, now: float) -> list[Effect]:
        if response.term > self.term and response.result is not VoteResult.ACCEPT:
            return self._follow(response.term, None, now)
        asked = self.term + 1 if self._pre else self.term
        current = response.asked_term == asked and response.pre == self._pre
        if self.role is not Role.CANDIDATE or not current or peer not in self._voters:
            return []
        self._granted[peer] = response.result is VoteResult.ACCEPT
        return self._count(now)

    def _on_timeout_now(self, peer: str, message: TimeoutNow, now: float) -> list[Effect]:
        stale = message.term != self.term or message.leader != self.leader_id
        if stale or self.role is not Role.FOLLOWER or not (self.may_vote and self.may_stand):
            return []
        self._transfer = True
        return self._start_vote(now)

    # Roles

    def _become_leader(self, now: float) -> list[Effect]:
        self.role = Role.LEADER
        self.leader_id = self._self_id
        self._failed_rounds = 0
        self._transfer = False
        self._contact = {peer: now for peer in self._voters if self._granted.get(peer)}
        self._quorum_deadline = now + self._settings.timeout_max_s
        self._next_heartbeat = now
        return [RoleChanged(Role.LEADER, self.term, self._self_id), *self._tick_leader(now)]

    def _become_follower(self, leader: str | None, now: float) -> list[Effect]:
        self.role = Role.FOLLOWER if self._self_id in self._voters else Role.LEARNER
        self.leader_id = leader
        self._leader_gone = False
        self._transfer = False
        self._deadline = now + self._timeout()
        return [RoleChanged(self.role, self.term, leader)]

    def _follow(self, term: int, leader: str | None, now: float) -> list[Effect]:
        """Take over a higher term; no vote given in it yet."""
        self.term = term
        self.vote = None
        # The change of role comes first: a deposed leader stops serving before the disk is asked.
        return [*self._become_follower(leader, now), SaveHardState(HardState(term, None))]

    # Heartbeats

    def _on_heartbeat(self, peer: str, message: Heartbeat, now: float) -> list[Effect]:
        if message.term < self.term:
            return [Send(peer, HeartbeatResponse(self.term, Code.EXPIRED_TERM))]
        effects = self.leader_contact(message.leader, message.term, now)
        return [*effects, Send(peer, HeartbeatResponse(self.term, Code.SUCCESS))]

    def _on_heartbeat_response(self, peer: str, message: HeartbeatResponse, now: float) -> list[Effect]:
        if message.term > self.term:
            return self._follow(message.term, None, now)
        if message.term == self.term:
            self.peer_active(peer, now)
        return []
