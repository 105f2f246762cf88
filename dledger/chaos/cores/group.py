"""A group of pure cores: the members, the messages between them, and what was promised so far (see the
package)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dledger.chaos.cores.list_log import Entry, ListLog
from dledger.chaos.cores.mail import Envelope
from dledger.chaos.invariants import NodeState, check_node, check_step
from dledger.election import effects as election
from dledger.election.elector import Chance, ElectionSettings, Elector
from dledger.errors import InvariantBroken
from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import (
    Append,
    Code,
    Commit,
    Compare,
    Message,
    PushResponse,
    Truncate,
    VoteResponse,
    VoteResult,
)
from dledger.replication import follower as following
from dledger.replication import leader as leading
from dledger.replication.follower import FollowerReplication
from dledger.replication.leader import LeaderReplication

SETTINGS = ElectionSettings(heartbeat_interval_s=0.1, timeout_min_s=0.4, timeout_max_s=0.8, retry_min_s=0.02)

Push = Compare | Truncate | Append | Commit


class PromiseBroken(AssertionError):
    """Raised when the group does something that Raft forbids."""


class FixedChance:
    """A stand-in for a random generator that returns fixed numbers. Each number lies at the same share (0 to
    1) of the way between the bounds."""

    def __init__(self, share: float) -> None:
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        """Return the number that lies at the fixed share of the way from `a` to `b`."""
        return a + self.share * (b - a)


class CoreNode:
    """One member: the content of its disk and, while it runs, its elector and its replication."""

    def __init__(self, name: str, chance: Chance) -> None:
        self.name = name
        self.chance = chance
        self.hard_state: HardState = HardState()
        self.log: ListLog = ListLog()
        self.may_vote = True
        self.manual_disk = False
        self.elector: Elector | None = None
        self.leader: LeaderReplication | None = None
        self.follower: FollowerReplication | None = None
        self.commit_index = -1
        self.saving: tuple[HardState, list[election.Effect], float] | None = None
        """The hard state that is being saved, the effects that wait for the save, and when the save began."""
        self.held: deque[Envelope] = deque()
        self.life = 0
        """How often this member was started."""
        self.seen: NodeState | None = None
        """The state at the last check, None before the first check."""

    @property
    def core(self) -> Elector:
        """The elector of a member that runs. Raises RuntimeError if the member does not run."""
        if self.elector is None:
            raise RuntimeError(f"{self.name} does not run")
        return self.elector

    @property
    def state(self) -> NodeState:
        """The state of a member that runs. Entries count as applied if they are committed and durable on this
        member."""
        core, log = self.core, self.log
        return NodeState(
            self.name,
            self.life,
            core.role,
            core.term,
            core.vote,
            serving=False,
            first_index=log.first_index,
            last_index=log.last_index,
            last_term=log.last_term,
            durable_index=log.durable_index,
            commit_index=self.commit_index,
            applied_index=min(self.commit_index, log.durable_index),
        )


class CoreGroup:
    """A group of pure cores: its members, the messages between them, and what was promised so far. Promises
    are the leaders of terms, the votes, and the committed entries."""

    def __init__(
        self,
        voters: Sequence[str],
        learners: Sequence[str] = (),
        *,
        chances: Callable[[int], Chance] = lambda place: FixedChance(min(place * 0.25, 1.0)),
        settings: ElectionSettings = SETTINGS,
        push_bytes: int = 300,
        window_bytes: int = 600,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.founders: tuple[str, ...] = tuple(voters)
        self.names: tuple[str, ...] = (*voters, *learners)
        self.nodes: dict[str, CoreNode] = {
            name: CoreNode(name, chances(place)) for place, name in enumerate(self.names)
        }
        self.now: float = 0.0
        self.bag: list[Envelope] = []
        self.cuts: dict[tuple[str, str], bool] = {}
        """Maps (source, target) to whether the connection is known to be broken. Messages in these directions
        are lost."""
        self.say = say
        self._settings = settings
        self._push_bytes = push_bytes
        self._window_bytes = window_bytes
        self._checked = -1
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._committed: dict[int, Entry] = {}

    # What happens to a member

    def start(self, name: str) -> None:
        """Start or restart a member. Everything on its disk is made durable (S2); all other state begins
        anew."""
        node = self.nodes[name]
        if node.elector is not None:
            raise RuntimeError(f"{name} runs")
        node.log.durable_index = node.log.last_index
        node.commit_index = -1
        node.life += 1
        node.elector = Elector(
            self._settings,
            name,
            self.voters(node),
            node.hard_state,
            node.log,
            node.chance,
            self.now,
            may_vote=node.may_vote,
        )
        node.elector.set_members(self.voters(node), self.names, self.now)
        for other in self.running():
            if other is not node and self.linked(other.name, name):
                self._link_changed(other, name)

    def stop(self, name: str, *, power: bool = False) -> None:
        """Kill the process of a member. If `power` is set, the power fails as well, and entries that were not
        fsynced are lost."""
        node = self.nodes[name]
        node.elector = node.leader = node.follower = node.saving = None
        node.held.clear()
        if power:
            node.log.cut(max(node.log.durable_index + 1, node.log.first_index))
        self.bag = [envelope for envelope in self.bag if name not in (envelope.source, envelope.target)]
        for other in self.running():
            self._link_changed(other, name)

    def synced(self, name: str) -> None:
        """Let this member's disk complete its work: the state that is being saved, and all entries of the
        log, become durable."""
        node = self.nodes[name]
        if node.saving is not None:
            state, rest, since = node.saving
            node.saving = None
            node.hard_state = state
            node.core.saved(self.now - since)
            self._perform(node, rest)
            self._release(node)
        if node.elector is not None and node.log.durable_index < node.log.last_index:
            node.log.durable_index = node.log.last_index
            self._durable_moved(node)

    def tick(self, name: str) -> None:
        """Let the member's timer fire."""
        node = self.nodes[name]
        if node.saving is None:
            self._perform(node, node.core.tick(self.now))

    def propose(self, name: str, texts: Iterable[str]) -> None:
        """Append entries with these texts to the leader's log."""
        self._append_as_leader(name, lambda term: [Entry(term, text) for text in texts])

    def reconfigure(self, name: str, voters: Sequence[str]) -> None:
        """Append a configuration to the leader's log. It is in force at once."""
        self._append_as_leader(
            name, lambda term: [Entry(term, "voters=" + ",".join(voters), tuple(sorted(voters)))]
        )
        self._members_changed(self.nodes[name])

    def hand_over(self, name: str, target: str) -> None:
        """Let the leader `name` ask `target` to start an election."""
        node = self.nodes[name]
        self._perform(node, node.core.hand_over(target))

    def refused(self, name: str, peer: str) -> None:
        """Tell the member `name` that the address of `peer` refuses connections."""
        node = self.nodes[name]
        self._perform(node, node.core.leader_refused(peer, self.now))

    def running(self) -> list[CoreNode]:
        """All members whose process runs."""
        return [self.nodes[name] for name in self.names if self.nodes[name].elector is not None]

    def voters(self, node: CoreNode) -> tuple[str, ...]:
        """The voters in the last configuration of a member's log, which is in force even before it is
        committed (S19)."""
        for index in range(node.log.last_index, node.log.first_index - 1, -1):
            found = node.log.entry(index).voters
            if found is not None:
                return found
        return self.founders

    # Network

    def linked(self, source: str, target: str) -> bool:
        """Whether messages from `source` can reach `target`."""
        return self.nodes[target].elector is not None and not self.cuts.get((source, target), False)

    def cut(self, source: str, target: str, *, noticed: bool) -> None:
        """Lose messages from `source` to `target` from now on. If `noticed` is set, the connection breaks as
        well, so that `source` notices the cut."""
        self.cuts[source, target] = noticed
        if noticed:
            self.bag = [
                envelope for envelope in self.bag if (envelope.source, envelope.target) != (source, target)
            ]
            self._link_changed(self.nodes[source], target)

    def heal(self, source: str, target: str) -> None:
        """Stop losing messages from `source` to `target`; a broken connection is restored."""
        if self.cuts.pop((source, target), False):
            self._link_changed(self.nodes[source], target)

    def deliver(self, envelope: Envelope) -> None:
        """Take one message out of the bag and deliver it. The message is lost if its direction is cut or its
        target does not run."""
        self.bag.remove(envelope)
        target = self.nodes[envelope.target]
        if target.elector is None or (envelope.source, envelope.target) in self.cuts:
            return
        if target.saving is not None:
            target.held.append(envelope)
        else:
            self._handle(target, envelope)
        self.check()

    def settle(self, limit: int = 100_000) -> None:
        """Deliver all messages in order until the bag is empty. Raises PromiseBroken if the bag is not empty
        after `limit` messages."""
        for _ in range(limit):
            if not self.bag:
                return
            self.deliver(self.bag[0])
        raise PromiseBroken("messages without end")

    def run_for(self, seconds: float) -> None:
        """Let time pass. Timers fire when they are due; messages arrive at once and in order."""
        end = self.now + seconds
        self.settle()
        while self.running():
            first = min(self.running(), key=lambda node: node.core.deadline)
            if first.core.deadline > end:
                break
            self.now = max(self.now, first.core.deadline)
            self.tick(first.name)
            self.settle()
        self.now = end

    def _link_changed(self, node: CoreNode, peer: str) -> None:
        if node.leader is None:
            return
        if self.linked(node.name, peer):
            self._replicate(node, node.leader.peer_up(peer, True))
        else:
            self._replicate(node, node.leader.peer_down(peer))

    def _send(self, source: str, target: str, message: Message, entries: tuple[Entry, ...] = ()) -> None:
        envelope = Envelope(source, target, message, entries)
        if isinstance(message, VoteResponse) and not message.pre and message.result is VoteResult.ACCEPT:
            before = self._votes.setdefault((source, message.asked_term), target)
            if before != target:
                raise PromiseBroken(
                    f"{source} voted for {before} and {target} in term {message.asked_term} (5.2)"
                )
        if self.linked(source, target):
            self.bag.append(envelope)
            self.say(str(envelope))
        else:
            self.say(f"{envelope}  (no connection)")

    # The shell around the cores, as in dledger/node/node.py and dledger/peers/replicator.py

    def _handle(self, node: CoreNode, envelope: Envelope) -> None:
        peer, message = envelope.source, envelope.message
        try:
            if isinstance(message, PushResponse):
                self._on_push_response(node, peer, message)
            elif isinstance(message, Push):
                self._on_push(node, envelope, message)
            else:
                self._perform(node, node.core.receive(peer, message, self.now))
        except InvariantBroken as error:
            self.say(f"{node.name} ends: {error}")
            self.stop(node.name)

    def _on_push(self, node: CoreNode, envelope: Envelope, push: Push) -> None:
        core = node.core
        if push.term < core.term:
            refusal = PushResponse(core.term, Code.EXPIRED_TERM, -1, -1, node.log.last_index)
            self._send(node.name, envelope.source, refusal)
            return
        self._perform(node, core.leader_contact(push.leader, push.term, self.now))
        if node.saving is not None:
            node.held.appendleft(envelope)  # the new term goes to disk first
            return
        follower = node.follower
        if follower is None or follower.term != push.term or follower.leader != push.leader:
            follower = node.follower = FollowerReplication(push.term, push.leader, node.log)
        self._follow(node, envelope, push, follower.receive(push, node.commit_index))

    def _on_push_response(self, node: CoreNode, peer: str, message: PushResponse) -> None:
        core = node.core
        if message.term > core.term:
            self._perform(node, core.higher_term(message.term, self.now))
        elif node.leader is not None and message.term == node.leader.term:
            core.peer_active(peer, self.now)
            self._replicate(node, node.leader.response(peer, message))

    def _perform(self, node: CoreNode, effects: list[election.Effect]) -> None:
        for place, effect in enumerate(effects):
            if isinstance(effect, election.SaveHardState):
                vote = effect.state.vote or "-"
                if node.manual_disk:
                    self.say(f"{node.name} saves term {effect.state.term} vote {vote} ...")
                    node.saving = (effect.state, effects[place + 1 :], self.now)
                    return
                self.say(f"{node.name} saves term {effect.state.term} vote {vote}")
                node.hard_state = effect.state
            elif isinstance(effect, election.Send):
                self._send(node.name, effect.peer, effect.message)
            elif isinstance(effect, election.RoleChanged):
                self._role_changed(node, effect)
            # RoundConfirmed is about read points, which tests/dledger checks
            elif not isinstance(effect, election.RoundConfirmed):
                self.say(f"{node.name} {effect}")

    def _release(self, node: CoreNode) -> None:
        while node.held and node.saving is None:
            self._handle(node, node.held.popleft())

    def _role_changed(self, node: CoreNode, change: election.RoleChanged) -> None:
        self.say(
            f"{node.name} is {change.role.value} in term {change.term}, leader {change.leader_id or '-'}"
        )
        if node.leader is not None:
            node.leader = None
        if node.follower is not None and node.follower.term != change.term:
            node.follower = None
        if change.role is Role.LEADER:
            self._lead(node, change.term)

    def _lead(self, node: CoreNode, term: int) -> None:
        other = self._leaders.setdefault(term, node.name)
        if other != node.name:
            raise PromiseBroken(f"{other} and {node.name} lead in term {term} (election safety)")
        for index, entry in self._committed.items():
            if entry.term < term and (index > node.log.last_index or self._differs(node, index, entry)):
                raise PromiseBroken(
                    f"{node.name} leads term {term} without the committed entry {index} (leader completeness)"
                )
        node.follower = None
        node.leader = LeaderReplication(
            term,
            node.name,
            self.voters(node),
            self.names,
            node.log,
            node.commit_index,
            node.log.last_index + 1,
            push_bytes=self._push_bytes,
            inflight_bytes=self._window_bytes,
        )
        self._append_as_leader(node.name, lambda now: [Entry(now, "open")])
        for peer in self.names:
            if node.leader is not None and peer != node.name and self.linked(node.name, peer):
                self._replicate(node, node.leader.peer_up(peer, True))

    def _append_as_leader(self, name: str, make: Callable[[int], list[Entry]]) -> None:
        node = self.nodes[name]
        if node.leader is None:
            raise RuntimeError(f"{name} does not lead")
        node.log.append(make(node.leader.term))
        self._replicate(node, node.leader.extended())
        self._appended(node)

    def _appended(self, node: CoreNode) -> None:
        if not node.manual_disk and node.log.durable_index < node.log.last_index:
            node.log.durable_index = node.log.last_index
            self._durable_moved(node)

    def _durable_moved(self, node: CoreNode) -> None:
        if node.leader is not None:
            self._replicate(node, node.leader.local_durable())
        elif node.follower is not None:
            for effect in node.follower.durable_moved():
                if isinstance(effect, following.Respond):
                    self._send(node.name, node.follower.leader, effect.response)

    def _replicate(self, node: CoreNode, effects: list[leading.Effect]) -> None:
        leader = node.leader
        if leader is None:
            return
        term, name, commit = leader.term, node.name, leader.commit_index
        for effect in effects:
            if isinstance(effect, leading.SendCompare):
                self._send(name, effect.peer, Compare(term, name, effect.index, effect.entry_term, commit))
            elif isinstance(effect, leading.SendTruncate):
                self._send(name, effect.peer, Truncate(term, name, effect.index, effect.entry_term, commit))
            elif isinstance(effect, leading.SendAppend):
                prev, first, last = effect.first - 1, effect.first, effect.last
                message = Append(term, name, prev, effect.prev_term, first, last, 0, commit, b"")
                self._send(name, effect.peer, message, node.log.entries(first, last))
            elif isinstance(effect, leading.SendCommit):
                self._send(name, effect.peer, Commit(term, name, commit))
            elif isinstance(effect, leading.Committed):
                self._commit_to(node, effect.index)
            elif isinstance(effect, leading.NeedsSnapshot):
                self.say(f"{name} cannot serve {effect.peer}: it needs a snapshot")
            else:
                self.say(f"{name} {effect}")

    def _follow(
        self, node: CoreNode, envelope: Envelope, push: Push, effects: list[following.Effect]
    ) -> None:
        for effect in effects:
            if isinstance(effect, following.Respond):
                self._send(node.name, envelope.source, effect.response)
            elif isinstance(effect, following.CommitTo):
                self._commit_to(node, min(effect.index, node.log.last_index))
            elif isinstance(effect, following.StoreEntries) and isinstance(push, Append):
                self._store(node, envelope, push)
            elif isinstance(effect, following.CutLog):
                self.say(f"{node.name} cuts {effect.index}..{node.log.last_index}")
                node.log.cut(effect.index)
                self._members_changed(node)
                self._handle(node, envelope)
                return

    def _store(self, node: CoreNode, envelope: Envelope, push: Append) -> None:
        follower = node.follower
        if follower is None:
            return
        first = push.first
        overlaps = first <= node.log.last_index
        if overlaps:
            effects = follower.overlap(first, [entry.term for entry in envelope.entries], node.commit_index)
            first = node.log.last_index + 1
            for effect in effects:
                if isinstance(effect, following.StoreEntries):
                    first = effect.first
                else:
                    self._follow(node, envelope, push, [effect])
                    return
        if first > node.log.last_index + 1:
            raise PromiseBroken(f"{node.name} would leave a hole before {first}")
        if first <= push.last:
            node.log.append(envelope.entries[first - push.first :])
            self.say(f"{node.name} stores {first}..{push.last}")
            self._members_changed(node)
        self._follow(node, envelope, push, follower.stored(push.last))
        if overlaps:
            self._durable_moved(node)
        self._appended(node)

    def _members_changed(self, node: CoreNode) -> None:
        voters = self.voters(node)
        core = node.core
        if voters != core.voters:
            self.say(f"{node.name} has voters {','.join(voters)}")
            self._perform(node, core.set_members(voters, self.names, self.now))
            if node.leader is not None:
                self._replicate(node, node.leader.set_members(voters, self.names))

    # Promises

    def committed_texts(self) -> list[str]:
        """The texts of all entries that any member ever committed, in the order of their indexes."""
        return [str(self._committed[index]) for index in sorted(self._committed)]

    def _commit_to(self, node: CoreNode, index: int) -> None:
        if index <= node.commit_index:
            return
        for place in range(max(node.commit_index + 1, node.log.first_index), index + 1):
            entry = node.log.entry(place)
            if self._committed.setdefault(place, entry) != entry:
                raise PromiseBroken(
                    f"{node.name} commits {entry} at {place}, where {self._committed[place]} was committed "
                    "(state machine safety)"
                )
        node.commit_index = index
        self.say(f"{node.name} commits up to {index}")

    def _differs(self, node: CoreNode, index: int, entry: Entry) -> bool:
        return index >= node.log.first_index and node.log.entry(index) != entry

    def check(self) -> None:
        """Check the whole group. Raises PromiseBroken or InvariantViolated if a check fails.

        Each running node is checked by itself, and against its state at the last check (`chaos.invariants`).
        Logs are checked against each other (Log Matching). The other promises of Raft are checked when their
        events happen.
        """
        for node in self.running():
            state = node.state
            check_node(state)
            if node.seen is not None and node.seen.life == state.life:
                check_step(node.seen, state)
            node.seen = state
        nodes = list(self.nodes.values())
        changes = sum(node.log.changes for node in nodes)
        if changes == self._checked:
            return
        self._checked = changes
        for place, node in enumerate(nodes):
            for other in nodes[place + 1 :]:
                self._check_matching(node.log, other.log)

    def _check_matching(self, one: ListLog, other: ListLog) -> None:
        equal = True
        for index in range(
            max(one.first_index, other.first_index), min(one.last_index, other.last_index) + 1
        ):
            same = one.entry(index) == other.entry(index)
            if one.entry(index).term == other.entry(index).term and not (same and equal):
                raise PromiseBroken(f"index {index}: equal terms, but the logs differ (log matching)")
            equal = equal and same
