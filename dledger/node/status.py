"""The face of a node: what its host, its tools and its operators ask. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import inf

from dledger.config import NodeConfig, NodeSettings
from dledger.election.elector import Elector
from dledger.election.identity import Hello
from dledger.formats.store_files import Identity
from dledger.host import Role
from dledger.log.appender import Appender
from dledger.log.scrub import Scrubber
from dledger.log.store import LogStore
from dledger.members.config_log import Members
from dledger.members.effects import Membership
from dledger.node.applier import Applier
from dledger.node.health import Fitness
from dledger.node.leaderless import STUCK_S, lost_majority
from dledger.node.leadership import Leadership
from dledger.node.metrics import NodeMetrics
from dledger.node.reads import ReadPoints
from dledger.node.repair import Repairer
from dledger.peers.peers import Peers
from dledger.peers.replicator import Replicator
from dledger.replication.leader import PushState
from dledger.snapshots.service import Snapshots
from dledger.versions import Versions


class NodeFace(ABC):
    """Questions and their answers; `dledger.node.node.Node` makes the parts."""

    config: NodeConfig
    log: LogStore
    elector: Elector
    applier: Applier
    identity: Identity
    membership: Membership
    snapshots: Snapshots
    metrics: NodeMetrics
    commit_index: int
    reasons: list[str]
    """Why this node is not healthy, for /health (see also `Fitness.reasons`)."""
    statements: list[str]
    """What an operator must know although it is over."""
    _members: Members
    _leadership: Leadership
    _reads: ReadPoints
    _versions: Versions
    _peers: Peers
    _replicator: Replicator
    _fitness: Fitness
    _repairer: Repairer
    _scrubber: Scrubber
    _loop: asyncio.AbstractEventLoop
    _leaderless_since: float
    """When this node knew no leader any more; infinite while it knows one."""

    @abstractmethod
    def my_hello(self) -> Hello:
        """The hello to send now."""

    @property
    def appender(self) -> Appender | None:
        """Seals entries; not None only while this node serves."""
        return self._leadership.appender

    @property
    def serving(self) -> bool:
        """This node leads, and its term is open and applied."""
        return self._leadership.serving

    def retune(self, settings: NodeSettings) -> None:
        """Take over what may change while it runs (`hot`)."""
        self._fitness.full_ratio = settings.disk_full_ratio
        self._scrubber.retune(settings.scrub_bytes_per_s, settings.scrub_pause_s)
        self.snapshots.retainer.retune(settings.retention)

    async def step_aside(self, timeout_s: float) -> bool:
        """Before the process ends: stand no more, and hand leadership over to whoever takes it, one after the
        other. True when it moved; the node then still answers and votes until it is cancelled."""
        self._fitness.leave()
        deadline = self._loop.time() + timeout_s
        for _ in self._members.voters:
            left = deadline - self._loop.time()
            if not self.serving or left <= 0:
                break
            if await self.transfer_leadership(timeout_s=left):
                return True
        return False

    async def transfer_leadership(self, target: str | None = None, timeout_s: float = 2.0) -> bool:
        """Hand leadership to `target`, or to the most advanced voter; see `Leadership.transfer`."""
        return await self._leadership.transfer(target, timeout_s)

    @property
    def role(self) -> Role:
        """Raft role."""
        return self.elector.role

    @property
    def term(self) -> int:
        """Current term."""
        return self.elector.term

    @property
    def leader_id(self) -> str | None:
        """Who leads, as far as this node knows."""
        return self.elector.leader_id

    @property
    def applied_index(self) -> int:
        """Last entry that the host applied."""
        return self.applier.applied_index

    async def read_index(self, timeout_s: float = 1.0) -> int:
        """A linearizable read point, applied here; on any member. ReadRefused when there is none in time."""
        return await self._reads.read_index(timeout_s)

    def group_version(self) -> int:
        """Protocol version that all voters know: what is newer must not be written to the log yet."""
        return self._versions.group(self._members.voters)

    def may_write(self, kind: int) -> bool:
        """Whether all voters know this kind of entry."""
        return self._versions.may_write(kind, self._members.voters)

    def may_cover(self) -> bool:
        """Whether all voters know CRCs that cover an entry's channel."""
        return self._versions.may_cover(self._members.voters)

    def peer_meta(self, node_id: str) -> Mapping[str, str]:
        """What a peer told of itself in its hello (empty while it is not connected)."""
        return self.config.meta if node_id == self.config.self_id else self._peers.meta(node_id)

    def peer_address(self, node_id: str) -> str | None:
        """Where a member's peer port is, as far as this node knows."""
        return self._peers.strayed().get(node_id) or self._members.address(node_id)

    def _strayed(self) -> Iterator[str]:
        for peer, address in sorted(self._peers.strayed().items()):
            recorded = self._members.address(peer)
            yield (
                f"{peer} answers at {address} of dLegerPeers, not at {recorded} as recorded: record it by "
                "`member remove` and `member add`"
            )

    def _left_behind(self) -> Iterator[str]:
        """Peers of this leader that nothing here can bring up."""
        leader = self._replicator.leader
        for peer, progress in sorted(leader.progress.items()) if leader else ():
            if progress.state is PushState.INSTALL and progress.offer is None:
                yield (
                    f"{peer} is behind entry {self.log.first_index}, and no snapshot here is of use to it: "
                    "`transfer` leadership to a member that has one"
                )

    def waits_for(self) -> Iterator[str]:
        """Why this new node belongs to no group yet: a group is formed by who reaches all others."""
        if self.identity.cluster or not self.identity.incarnation:
            return
        for reason in self._apart(self.config.peers):
            yield f"no group yet: {reason}"

    def _apart(self, peers: Mapping[str, str]) -> Iterator[str]:
        """Why no connection to some of these peers stands: they, or this node, refuse, or none is reached."""
        for peer, address in sorted(peers.items()):
            if peer == self.config.self_id or self._peers.connected(peer):
                continue
            heard = (
                "it reaches this node: check dLegerPeers" if peer in self._peers.hellos else "nor heard of"
            )
            yield self._peers.refusals.get(peer) or f"{peer} is not reached at {address}, {heard}"

    def _without_leader(self) -> Iterator[str]:
        """Why this member may know no leader. What may be over in a moment is not said at once."""
        if self.leader_id is not None or not self.identity.cluster:
            return
        for reason in self._apart(self._members.dialled(self.commit_index)):
            yield f"no leader: {reason}"
        if self._leaderless_since == inf or self._loop.time() - self._leaderless_since < STUCK_S:
            return
        current, mine = self._members.current, self.my_hello()
        if mine.node not in current.learners and not self.membership.counts(mine):
            yield "no leader: this node waits for one that admits it, as no voter is recorded with its store"
        hellos = {**self._peers.hellos, mine.node: mine}
        needed = lost_majority(current, mine, hellos, self.elector.votes)
        if needed:
            yield needed

    def status(self) -> dict[str, object]:
        """For /health, /metrics and `dledger status`."""
        leader = self._replicator.leader
        peers: dict[str, object] = {}
        for peer in self.membership.others:
            progress = leader.progress.get(peer) if leader else None
            peers[peer] = {
                "connected": self._peers.connected(peer),
                "address": self.peer_address(peer),
                "state": progress.state.value if progress else None,
                "stored_index": progress.stored if progress else None,
                "durable_index": progress.durable if progress else None,
                "lag_entries": self.log.last_index - progress.durable if progress else None,
                "throttled": self._replicator.throttle.holds(leader, peer) if leader else None,
            }
        return {
            "group": self.config.group,
            "id": self.config.self_id,
            "cluster": self.identity.cluster,
            "role": self.role.value,
            "term": self.term,
            "leader": self.leader_id,
            "serving": self.serving,
            "voters": list(self._members.voters),
            "learners": list(self._members.current.learners),
            "config_index": self._members.index,
            "begin_index": self.log.first_index,
            "end_index": self.log.last_index,
            "end_pos": self.log.end_pos,
            "durable_index": self.log.durable_index,
            "committed_index": self.commit_index,
            "applied_index": self.applied_index,
            "pool_ready": self.log.pool.ready,
            "segments_warm": self.log.pool.warm_taken,
            "segments_cold": self.log.pool.cold_taken,
            "peers": peers,
            "group_version": self.group_version(),
            "read_rounds": self._reads.rounds,
            "reads_by_lease": self._reads.by_lease,
            "refused": self._peers.refused(),
            "messages_too_new": self._peers.too_new,
            "used_ratio": round(self._fitness.used_ratio, 4),
            "short_of_space": self.log.short_of_space,
            "health": int(self._fitness.flags),
            "reasons": [
                *self.reasons,
                *self._fitness.reasons(),
                *self._members.doubts(self.log.last_index),
                *self.waits_for(),
                *self._without_leader(),
            ],
            "statements": [*self.statements, *self._strayed(), *self._left_behind()],
            **self._repairer.status(),
            **self._scrubber.status(),
            **self.snapshots.status(),
        } | self.metrics.snapshot()
