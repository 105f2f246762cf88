"""The status of a node, for its host (the program that runs it), its tools and its operators. Nothing is
changed here."""

from __future__ import annotations

from collections.abc import Iterator

from dledger.context.node_context import NodeContext
from dledger.node.leaderless import STUCK_S, lost_majority
from dledger.node.parts import NodeParts
from dledger.peers.peers import MOVED
from dledger.replication.leader import PushState


class NodeStatus:
    """Reports the status of one node."""

    def __init__(self, context: NodeContext, parts: NodeParts) -> None:
        self._context = context
        self._parts = parts

    def _strayed(self) -> Iterator[str]:
        for peer, address in sorted(self._context.peers.strayed().items()):
            recorded = self._context.members.address(peer)
            yield (
                f"{peer} answers at {address} of dLegerPeers, not at {recorded} as recorded: record it by "
                "`member remove` and `member add`"
            )

    def _unreached(self) -> Iterator[str]:
        """Yield the peers that are connected to this leader but that it cannot reach, so they get no
        messages."""
        if self._context.replicator.leader is not None:
            for peer, address in self._context.peers.not_reached_back().items():
                yield f"{peer} reaches this node, but is not reached at {address}: {MOVED}"

    def _unheard(self) -> Iterator[str]:
        """Yield why no other member reaches this node, although this node reaches others."""
        context, own = self._context, self._context.config.self_id
        peers = [peer for peer in context.members.current.members if peer != own]
        reached = [peer for peer in peers if context.peers.connected(peer)]
        if not reached or any(context.peers.reached_by(peer) for peer in peers):
            return
        here, recorded = context.config.peers[own], context.members.address(own)
        where = here if recorded in (None, here) else f"{here}, but the group has recorded {recorded}"
        reaches = f"this node reaches {', '.join(reached)}, and none of them reaches it at {where}"
        yield f"no leader: {reaches}: {MOVED}"

    def _left_behind(self) -> Iterator[str]:
        """Yield the peers of this leader that cannot catch up, because neither its log nor a snapshot here is
        enough for them."""
        first, leader = self._context.log.first_index, self._context.replicator.leader
        for peer, progress in sorted(leader.progress.items()) if leader else ():
            if progress.state is PushState.INSTALL and progress.offer is None:
                yield (
                    f"{peer} needs entries before {first}, and this leader has no snapshot that would "
                    "help it: `transfer` leadership to a member that has one"
                )

    def _without_leader(self) -> Iterator[str]:
        """Yield why this member may know no leader. A cause that may be over in a moment is not reported at
        once."""
        context, parts = self._context, self._parts
        elector, members = context.elector, context.members
        if elector.leader_id is not None or not members.identity.cluster:
            return
        for reason in parts.joining.apart(members.dialled(context.replicator.commit_index)):
            yield f"no leader: {reason}"
        if context.elections.leaderless_s < STUCK_S:
            return
        current, mine = members.current, parts.trust.hello()
        if parts.trust.removed:
            return
        if mine.node not in current.members:
            yield (
                "no leader: this node is not a member of the group and waits until it is added: add "
                f"it (`dledger member add {mine.node} {context.config.peers[mine.node]}`)"
            )
        elif mine.node not in current.learners and not parts.membership.counts(mine):
            yield (
                "no leader: the group has not recorded this store for any voter; this node waits "
                "for a leader that admits it"
            )
        else:
            yield from self._unheard()
        hellos = {**context.peers.hellos, mine.node: mine}
        needed = lost_majority(current, mine, hellos, elector.votes)
        if needed:
            yield needed

    def report(self) -> dict[str, object]:
        """Return the status for /health, /metrics and `dledger status`."""
        context, parts = self._context, self._parts
        config, log, elector, members = context.config, context.log, context.elector, context.members
        leader = context.replicator.leader
        peers: dict[str, object] = {}
        for peer in parts.membership.others:
            progress = leader.progress.get(peer) if leader else None
            peers[peer] = {
                "connected": context.peers.connected(peer),
                "address": parts.membership.address(peer),
                "state": progress.state.value if progress else None,
                "stored_index": progress.stored if progress else None,
                "durable_index": progress.durable if progress else None,
                "lag_entries": log.last_index - progress.durable if progress else None,
                "throttled": context.replicator.throttle.holds(leader, peer) if leader else None,
            }
        return {
            "group": config.group,
            "id": config.self_id,
            "cluster": members.identity.cluster,
            "role": elector.role.value,
            "term": elector.term,
            "leader": elector.leader_id,
            "serving": parts.leadership.serving,
            "voters": list(members.voters),
            "learners": list(members.current.learners),
            "config_index": members.index,
            "begin_index": log.first_index,
            "end_index": log.last_index,
            "end_pos": log.end_pos,
            "durable_index": log.durable_index,
            "committed_index": context.replicator.commit_index,
            "applied_index": parts.applier.applied_index,
            "pool_ready": log.pool.ready,
            "segments_warm": log.pool.warm_taken,
            "segments_cold": log.pool.cold_taken,
            "peers": peers,
            "group_version": parts.membership.group_version(),
            "read_rounds": parts.reads.rounds,
            "reads_by_lease": parts.reads.by_lease,
            "refused": context.peers.refused(),
            "messages_too_new": context.peers.too_new,
            "used_ratio": round(parts.health.used_ratio, 4),
            "short_of_space": log.short_of_space,
            "health": int(parts.health.flags),
            "clock_off_ms": parts.health.clock_off_ms,
            "store_time_ahead_ms": parts.health.store_time_ahead_ms,
            "election_patience_ms": round(parts.health.patience_s * 1000),
            "reasons": [
                *parts.trust.reasons,
                *parts.health.reasons(),
                *members.doubts(log.last_index),
                *parts.joining.waits_for(),
                *self._without_leader(),
            ],
            "warnings": [*parts.health.warnings(), *context.recorder.warnings()],
            "statements": [
                *parts.trust.statements,
                *filter(None, (parts.trust.unlisted(),)),
                *context.peers.doubled(),
                *self._strayed(),
                *self._unreached(),
                *self._left_behind(),
            ],
            **context.recorder.status(),
            **parts.repairer.status(),
            **parts.scrubber.status(),
            **parts.snapshots.status(),
        } | parts.metrics.snapshot()
