"""Changes of the members and of the leader. The leader decides them one at a time, in one task.

Only a serving leader changes anything, that is, after an entry of its own term is committed (the bug fix of
2015 to Raft). And it changes the configuration only when the previous configuration is committed.

Without a command it does three things. It promotes learners that have caught up. If a member came back with
an empty store, it replaces the member's incarnation: first the old incarnation is removed from the voters,
then the new one joins them. And it hands over to a preferred leader. Commands of operators come as jobs
(`submit`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from dledger.context.node_context import NodeContext
from dledger.election.configuration import Configuration, ConfigurationRefused, Member, MemberRole
from dledger.election.preferred import PreferredLeader
from dledger.errors import ChangeRefused
from dledger.log.index_units import ColdUnit, settled
from dledger.members.effects import MemberEffects
from dledger.messages import Code, Health, health_text
from dledger.node.leadership import Leadership
from dledger.replication.leader import PushState

MAX_JOBS = 16
"""Largest number of commands that wait for their turn; one more is refused."""
PROBE_HEARTBEATS = 2.5
"""Time, in heartbeat intervals, for which a removal waits for answers of the voters."""
CONFIG_PROTOCOL = 2
"""Lowest version of the peer protocol with which a node can read configurations of version 2."""


class Reconfiguration:
    """Changes the members and the leader on behalf of one node. It does nothing while the node does not
    serve."""

    def __init__(self, context: NodeContext, membership: MemberEffects, leadership: Leadership) -> None:
        self._say = context.env.log.child(f"changes.{context.config.self_id}")
        self._config = context.config
        self._log = context.log
        self._members = context.members
        self._versions = context.versions
        self._peers = context.peers
        self._elector = context.elector
        self._elections = context.elections
        self._replicator = context.replicator
        self._membership = membership
        self._leadership = leadership
        self._preferred = PreferredLeader(self._config.preferred)
        self._jobs: deque[Callable[[], Awaitable[None]]] = deque()
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        """Set when a peer has answered, or another leader is known. Commands wait for it."""
        self._heard: dict[str, float] = {}
        self._said = ""

    async def run(self) -> None:
        """Make changes until cancelled."""
        pause = 2 * self._config.heartbeat_interval_s
        while True:
            try:
                async with asyncio.timeout(pause if self._leadership.term is not None else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            while self._jobs:
                await self._jobs.popleft()()
            self._leave()
            self._membership.settle()
            self._grow()
            await self._prefer()

    # Events

    def submit(self, job: Callable[[], Awaitable[None]]) -> None:
        """Queue a command to be executed in its turn. Raises ChangeRefused if too many commands wait."""
        if len(self._jobs) >= MAX_JOBS:
            raise ChangeRefused(Code.CONFIG_PENDING, f"more than {MAX_JOBS} commands wait: try again later")
        self._jobs.append(job)
        self._wake.set()

    def heard(self, peer: str, now: float) -> None:
        """Note that a peer answered this leader. Wakes `run` if a change may have waited for this answer."""
        self._heard[peer] = now
        self._news.set()
        if self._leadership.serving and self._unfinished(peer) and self.caught_up(peer):
            self._wake.set()

    def leader_changed(self, leader: str | None, term: int, now: float) -> None:
        """Note that this node sees another leader, or none, in this term."""
        commanded = self._elector.commanded_term == term
        self._preferred.leader_changed(leader, now, commanded=commanded)
        self._wake.set()
        self._news.set()

    def told_who_should_lead(self) -> None:
        """Note that an operator has set the preferred leaders, here or with an entry of the log."""
        self._preferred.forgive()

    def committed(self, before: int, index: int) -> None:
        """Note that the commit index moved."""
        if before < self._members.index <= index:
            self._wake.set()

    # What is known of a peer

    def caught_up(self, peer: str) -> bool:
        """Whether a peer answers, and has all entries durable except the last few. Also False while it is not
        known how many bytes the peer lacks; the peer's next answer tells it."""
        try:
            return self._has_caught_up(peer)
        except ColdUnit:
            return False

    def _has_caught_up(self, peer: str) -> bool:
        leader = self._replicator.leader
        progress = leader.progress.get(peer) if leader else None
        if progress is None or progress.state is not PushState.APPEND or not self._peers.connected(peer):
            return False
        now = asyncio.get_running_loop().time()
        if now - self._heard.get(peer, -1e9) > self._config.election_timeout_max_s:
            return False
        lag = self._log.last_index - progress.durable
        if lag > self._config.promote_lag_entries or progress.durable < self._log.first_index - 1:
            return False
        return lag <= 0 or self._log.end_pos - self._log.end_of(progress.durable) <= (
            self._config.promote_lag_bytes
        )

    def health(self, peer: str) -> Health:
        """Return the health that a member last reported. A member that is not connected counts as GOOD."""
        if peer == self._config.self_id:
            return Health(self._elector.health)
        return Health((self._elector.health_of(peer) or 0) if self._peers.connected(peer) else 0)

    def fit(self, peer: str) -> bool:
        """Whether leadership may be handed to this peer without an operator's command that names it."""
        counts = peer in self._members.voters and self._membership.acknowledges(peer)
        return counts and self.caught_up(peer) and self.health(peer) is Health.GOOD

    @property
    def preferred(self) -> tuple[str, ...]:
        """The preferred leaders: those set for the group, otherwise those in this node's settings."""
        told = self._members.current.preferred
        return self._config.preferred_leaders if told is None else told

    # Commands; each gives the index of the entry to wait for

    def add(self, node: str, address: str, stays: bool) -> int:
        """Add a new member, as a learner. Adding the same member again changes nothing. It is refused if the
        address or `stays` differs from that of the existing member."""
        current = self._ready()
        member = current.members.get(node)
        if member is not None and (member.address or self._config.peers.get(node)) == address:
            if why := _other_wish(node, member, stays):
                raise ChangeRefused(Code.CONFIG_REFUSED, why)
            return self._members.index
        known = current.addressed(self._config.peers)
        return self._append(lambda: known.with_learner(node, address, stays=stays))

    async def promote(self, node: str) -> int:
        """Promote a learner to a voter now. Raises ChangeRefused if it has not caught up."""
        caught_up = await settled(lambda: self._has_caught_up(node))
        current = self._ready()
        member = current.members.get(node)
        if member is not None and member.role is MemberRole.LEARNER and not caught_up:
            raise ChangeRefused(Code.CONFIG_REFUSED, f"{node} has not caught up: {self._lag(node)}")
        return self._append(lambda: current.with_voter(node, self._incarnation(node)))

    def remove(self, node: str, since: float | None) -> int:
        """Remove a member.

        A majority of the remaining voters must have been heard after the time `since`. If `since` is None, no
        majority is needed, and it does not matter whether voters were seen with a program that can read the
        new configuration."""
        return self._append(lambda: self._without(node, since), leaves=node, forced=since is None)

    async def check_removal(self, node: str) -> float:
        """Ask which voters are there now, and check whether a member may be removed. Return `since` for
        `remove`. Raises ChangeRefused if the removal is refused.

        A removal is in force at once and cannot be taken back. If the remaining voters then have no live
        majority, the group stops, even if it had a majority with the removed member. So only answers that
        come after the command count.
        """
        self._ready()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(PROBE_HEARTBEATS * self._config.heartbeat_interval_s):
                while any(not self._live(voter, began) for voter in self._members.voters):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        try:
            self._without(node, began)
        except ConfigurationRefused as refused:
            raise ChangeRefused(Code.CONFIG_REFUSED, str(refused)) from refused
        return began

    def prefer(self, nodes: tuple[str, ...] | None) -> int:
        """Set the preferred leaders. None means that each node's own setting decides."""
        current = self._ready()
        index = self._append(lambda: current.preferring(nodes))
        self.told_who_should_lead()
        return index

    async def transfer(self, target: str | None, timeout_s: float) -> str:
        """Hand leadership over. Return the new leader, which may be another node than `target`. Raises
        ChangeRefused if no other node took leadership over, and (TERM_CHANGED) if no new leader is known in
        time."""
        self._ready(config=False)
        if target is not None:
            if target == self._config.self_id:
                return target
            if target not in self._members.voters:
                raise ChangeRefused(Code.UNKNOWN_MEMBER, f"{target} is not a voter")
            if not await settled(lambda: self._has_caught_up(target)):
                raise ChangeRefused(Code.CONFIG_REFUSED, f"{target} has not caught up: {self._lag(target)}")
            if self.health(target) is not Health.GOOD:
                raise ChangeRefused(
                    Code.CONFIG_REFUSED, f"{target} is not healthy: {health_text(self.health(target))}"
                )
        deadline = asyncio.get_running_loop().time() + timeout_s
        if not await self._leadership.transfer(target, timeout_s, commanded=True):
            raise ChangeRefused(Code.CONFIG_REFUSED, "no voter took leadership over in time")
        return await self._successor(deadline)

    async def _successor(self, deadline: float) -> str:
        """Return the leader that follows this node. So far this node only knows that it does not lead any
        more."""
        elector = self._elector
        try:
            async with asyncio.timeout_at(deadline):
                while elector.leader_id is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        if elector.leader_id is None:
            raise ChangeRefused(
                Code.TERM_CHANGED, "leadership was transferred, and the new leader is not known yet"
            )
        if elector.leader_id == self._config.self_id:
            raise ChangeRefused(Code.CONFIG_REFUSED, "no other voter kept leadership: this node leads again")
        return elector.leader_id

    def overview(self) -> dict[str, object]:
        """Return the members as this leader sees them."""
        leader = self._replicator.leader
        rows: list[dict[str, object]] = []
        for node, member in sorted(self._members.current.members.items()):
            mine = node == self._config.self_id
            progress = leader.progress.get(node) if leader else None
            durable = self._log.durable_index if mine else progress.durable if progress else -1
            rows.append(
                {
                    "id": node,
                    "address": self._members.address(node) or "",
                    "role": member.role.value,
                    "stays": member.stays,
                    "leader": mine and leader is not None,
                    "connected": mine or self._peers.connected(node),
                    "durable_index": durable,
                    "lag_entries": self._log.last_index - durable,
                    "health": int(self.health(node)),
                    "incarnation": member.incarnation,
                }
            )
        return {
            "members": rows,
            "preferred": list(self.preferred),
            "config_index": self._members.index,
            "pending": self._members.pending(self._replicator.commit_index),
            "term": self._elector.term,
        }

    # Steps

    def _ready(self, *, config: bool = True) -> Configuration:
        """Return the current configuration, from which a change starts. Raises ChangeRefused if it may not be
        changed now."""
        if not self._leadership.serving:
            raise ChangeRefused(Code.NOT_LEADER, "this node does not lead, or its term is not open yet")
        if config and self._members.pending(self._replicator.commit_index):
            raise ChangeRefused(
                Code.CONFIG_PENDING,
                f"the configuration at index {self._members.index} is not committed yet: change one "
                "member at a time",
            )
        return self._members.current

    def _append(
        self, change: Callable[[], Configuration], leaves: str | None = None, *, forced: bool = False
    ) -> int:
        try:
            after = change().addressed(self._config.peers)
            if not forced:
                self._check_readable(after)
        except ConfigurationRefused as refused:
            raise ChangeRefused(Code.CONFIG_REFUSED, str(refused)) from refused
        return self._leadership.append_config(after, leaves)

    def _check_readable(self, after: Configuration) -> None:
        """Check that every voter can read the first configuration of version 2.

        Nothing is checked if this node refuses older programs at the hello. In that case a check could only
        do harm: it would block the removal of a lost node, which is never seen again."""
        if self._config.protocol_min >= CONFIG_PROTOCOL:
            return
        before = self._members.current
        for node in after.voters:
            known = before.recorded and node in before.voters
            if node != self._config.self_id and not known and self._versions.of(node) < CONFIG_PROTOCOL:
                raise ConfigurationRefused(
                    f"{node} has not connected, or its version cannot read the new configuration: "
                    "start or upgrade it, or remove it first (with --force if several are gone)"
                )

    def _without(self, node: str, since: float | None) -> Configuration:
        after = self._ready().without(node)
        live = [voter for voter in after.voters if since is None or self._live(voter, since)]
        if len(live) <= len(after.voters) // 2:
            raise ConfigurationRefused(
                f"without {node} only {', '.join(live) or 'none'} of {', '.join(after.voters)} would "
                "be alive, which is no majority: the group would stop until the others are back "
                "(--force removes it anyway)"
            )
        return after

    def _live(self, voter: str, since: float) -> bool:
        mine = voter == self._config.self_id
        return mine or (self._peers.connected(voter) and self._elector.heard(voter, since))

    def _commits_without(self, node: str) -> bool:
        """Whether the connected voters that have their own stores are a majority of all voters except this
        one."""
        rest = [voter for voter in self._members.voters if voter != node]
        here = [v for v in rest if v == self._config.self_id or self._membership.acknowledges(v)]
        return len(here) > len(rest) // 2

    def _incarnation(self, node: str) -> str:
        hello = self._peers.dialled_hello(node)
        return (
            hello.incarnation if hello is not None and hello.cluster == self._members.identity.cluster else ""
        )

    def _lag(self, node: str) -> str:
        leader = self._replicator.leader
        progress = leader.progress.get(node) if leader else None
        if progress is None or not self._peers.connected(node):
            return "it is not connected"
        return f"it lacks {self._log.last_index - progress.durable} entries"

    def _unfinished(self, peer: str) -> bool:
        """Whether this member is a learner that waits for its promotion, or a voter that came back with
        another store."""
        member = self._members.current.members.get(peer)
        if member is None:
            return False
        if member.role is MemberRole.LEARNER:
            return not member.stays
        return member.incarnation != self._incarnation(peer)

    def _grow(self) -> None:
        """Promote learners that have caught up. If a voter came back with a new store under its id, replace
        its old store in the configuration."""
        if not self._leadership.serving or self._members.pending(self._replicator.commit_index):
            return
        current = self._members.current
        for peer in sorted(current.members):
            if peer == self._config.self_id or not self._unfinished(peer):
                continue
            incarnation = self._incarnation(peer)
            if not incarnation or not self.caught_up(peer):
                continue
            lost = current.members[peer].role is MemberRole.VOTER
            if lost and not self._commits_without(peer):
                # In force at once and never committed, it would keep the old store, come back, from helping.
                self._remark(
                    f"{peer}: its store is lost, and without it no majority of the voters is connected"
                )
                continue
            try:
                if lost:
                    self._append(lambda peer=peer: current.demoted(peer))  # type: ignore[misc]
                else:
                    self._append(lambda peer=peer, store=incarnation: current.with_voter(peer, store))  # type: ignore[misc]
            except ChangeRefused as refused:
                self._remark(f"{peer}: {refused.text}")
                continue
            self._say.info(
                "the store of a member is lost: its new store replaces it" if lost else "promoted", node=peer
            )
            return

    def _leave(self) -> None:
        """If the group has removed this leader, ask another voter to stand, and step down."""
        if self._leadership.term is None or not self._members.removed(self._replicator.commit_index):
            return
        if self._config.self_id not in self._members.current.members:
            self._leadership.nominate()
            self._elections.step_down("the group removed it")

    async def _prefer(self) -> None:
        now = asyncio.get_running_loop().time()
        preferred = self.preferred
        if not preferred or not self._leadership.serving:
            return
        fit = [node for node in preferred if node != self._config.self_id and self.fit(node)]
        chosen = self._preferred.choose(preferred, self._config.self_id, fit, now)
        if chosen is None:
            return
        self._say.info("transferring leadership to the preferred leader", node=chosen)
        moved = await self._leadership.transfer(chosen, self._config.election_timeout_max_s)
        self._preferred.tried(chosen, moved, asyncio.get_running_loop().time())

    def _remark(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say.warning("a change of members is postponed", reason=text)


def _other_wish(node: str, member: Member, stays: bool) -> str:
    """Return why a member cannot be added again with this value of `stays`; empty if the member is, or will
    be, as wanted."""
    if stays and member.role is MemberRole.VOTER:
        return f"{node} is already a voter: remove it first"
    if stays and not member.stays:
        return f"{node} is already being added as a voter: remove it first"
    if member.stays and not stays:
        return f"{node} is already a permanent learner: promote it"
    return ""
