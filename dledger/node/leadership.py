"""Leading: opening the term, sealing and appending entries, serving, handing over, changing the
configuration.

A leader first seals the entry that opens its term. (To seal an entry is to fix its content and its place in
the log.) The leader serves when that entry is committed and applied (architecture rule 6). Everything sealed
in one turn of the loop becomes one append, one push per follower and one fsync (architecture rule 4).
"""

from __future__ import annotations

import asyncio

from dledger.context.applier import Applier
from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.election.configuration import Configuration, encode_configuration, single_step
from dledger.errors import InvariantBroken
from dledger.formats.entry import Kind
from dledger.log.appender import Appender
from dledger.log.index_units import ColdUnit
from dledger.members.effects import MemberEffects
from dledger.messages import Health
from dledger.replication.leader import LeaderReplication
from dledger.versions import OLDEST_KINDS

FAREWELL_S = 0.2
"""Time, in seconds, for which a node that stops, and has handed leadership over, still answers clients with
the new leader. A client that gets the answer NOT_LEADER knows the outcome of its request. If its connection
closed before an answer, the client would not know it."""


class Leadership:
    """The leadership of one node. `appender` is set while the node serves."""

    def __init__(
        self, context: NodeContext, membership: MemberEffects, applier: Applier, events: NodeEvents
    ) -> None:
        self.appender: Appender | None = None
        """Seals entries at the end of the log; None unless this node serves."""
        self.serving: bool = False
        """Whether this node leads and its term is open, that is, the entry that opens it is committed and
        applied."""
        self._say = context.env.log.child(f"leader.{context.config.self_id}")
        self._config = context.config
        self._log = context.log
        self._host = context.host
        self._members = context.members
        self._peers = context.peers
        self._elector = context.elector
        self._elections = context.elections
        self._replicator = context.replicator
        self._recorder = context.recorder
        self._membership = membership
        self._applier = applier
        self._events = events
        self._leading: Appender | None = None
        self._pump_scheduled = False
        self._handing_over = False
        self._progress = asyncio.Event()

    @property
    def disk_lag(self) -> float:
        """Return `Appender.disk_lag` while this node leads, otherwise 0.0."""
        return 0.0 if self._leading is None else self._leading.disk_lag

    # Start, serve, stop

    @property
    def term(self) -> int | None:
        """Term in which this node leads; None if it does not lead."""
        return None if self._leading is None else self._leading.term

    def start(self, term: int) -> None:
        """Begin to lead in this term, because this node was elected: open the term, and find out how far the
        logs of the peers reach."""
        config = self._config
        appender = Appender(
            self._log,
            term,
            pending_bytes=config.pending_bytes,
            pending_entries=config.pending_entries,
            schedule_pump=self._schedule_pump,
            max_entry_bytes=config.max_entry_bytes,
            known_kinds=OLDEST_KINDS,
            may_write=self._membership.may_write,
            may_cover=self._membership.may_cover,
            state_version=self._membership.state_version,
        )
        self._leading = appender
        leader = self._recorder.make_leader(
            term,
            config.self_id,
            tuple(self._members.voters),
            tuple(self._membership.others),
            self._log,
            self._replicator.commit_index,
            self._log.last_index + 1,
            push_bytes=config.push_bytes,
            inflight_bytes=config.inflight_bytes,
            inflight_frames=config.inflight_frames,
            offer=self._replicator.offer,
        )
        self._replicator.lead(leader)
        body = self._members.opening_body(term, config.self_id)
        appender.add_system(body, Kind.TERM_OPENING)
        self._pump()
        for peer in self._membership.others:
            if self._peers.connected(peer):
                self._replicator.perform(leader.peer_up(peer, self._membership.acknowledges(peer)))

    def stop(self) -> None:
        """End the leadership."""
        appender = self._leading
        self._leading = None
        self.appender = None
        self.serving = False
        self._replicator.stop_leading()
        self._membership.leaving.clear()
        self._progress.set()
        if appender is not None:
            appender.take()  # sealed in this turn and not appended: dropped, nobody has seen it
            self._host.on_stopped_serving(appender.term)

    def applied(self) -> None:
        """Note that the applied index moved. Begin to serve if the term is open now."""
        leader = self._replicator.leader
        if leader is None or self.serving or self._leading is None or self._handing_over:
            return
        if self._applier.applied_index >= leader.opening_index:
            self.serving = True
            self.appender = self._leading
            self._say.info("serving", term=leader.term, opening=leader.opening_index)
            self._host.on_serving(leader.term)

    def disk_full(self, full: bool) -> None:
        """Set whether clients are refused with DISK_FULL."""
        if self._leading is not None:
            self._leading.disk_full = full

    def committed(self, index: int) -> None:
        """Note that the commit index moved to `index`."""
        self._count_pending(index)
        self._progress.set()

    def _count_pending(self, committed: int) -> None:
        """Count the entries after entry `committed` as pending."""
        if self._leading is None or committed < self._replicator.commit_index:
            return
        try:
            self._leading.committed(committed, self._log.end_of(committed))
        except ColdUnit as cold:
            cold.fetched.add_done_callback(
                lambda fetched: None if fetched.cancelled() else self._count_pending(committed)
            )

    def progressed(self) -> None:
        """Make a hand-over that waits check its conditions again, because they may have changed."""
        self._progress.set()

    # Sealing

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        appender = self._leading
        leader = self._replicator.leader
        if appender is None or leader is None:
            return
        try:
            for batch in appender.take():
                self._log.join(batch)
            self._log.flush()
            self._replicator.perform(leader.extended())
            self._events.stepped()
        except Exception as error:
            self._events.fail(error)  # a loop callback has no caller: the node ends through `run` (rule 7)

    # Members

    def append_config(self, configuration: Configuration, leaves: str | None = None) -> int:
        """Seal a configuration entry, and return its index. The configuration is in force at once (S19).
        `leaves` names the member that the entry removes."""
        leading = self._leading
        pending = self._members.pending(self._replicator.commit_index)
        if leading is None or not self.serving or pending:
            raise InvariantBroken("a new configuration needs a committed previous one, and an open term")
        if not single_step(self._members.current, configuration):
            raise InvariantBroken("a configuration may change only one voter")
        if leaves is not None and leaves != self._config.self_id:
            self._membership.leave(leaves, leading.next_index)
        body = encode_configuration(configuration)
        index = leading.add_system(body, Kind.CONFIG)
        self._membership.adopted(index, configuration)
        self._pump()
        return index

    def nominate(self) -> None:
        """Ask the most advanced voter to stand for election, because this leader is about to end. Do not wait
        for the result."""
        leader = self._replicator.leader
        candidates = self._candidates(leader, None) if leader is not None else []
        if leader is not None and candidates:
            chosen = max(candidates, key=lambda peer: (leader.watermark(peer), peer))
            self._elections.perform(self._elector.hand_over(chosen))

    def _candidates(self, leader: LeaderReplication, target: str | None) -> list[str]:
        """Return connected voters to which leadership may be handed over.

        Voters that are silent, or report bad health, are included only if there are no others, or if `target`
        names one. (The process of a silent voter may be paused: it stays connected, and its last report may
        be good.)"""
        elector = self._elector
        candidates = [
            peer
            for peer in elector.voters
            if peer in leader.progress and self._peers.connected(peer) and target in (None, peer)
        ]
        now = asyncio.get_running_loop().time()
        awake = [peer for peer in candidates if elector.awake(peer, now)]
        well = [peer for peer in awake if (elector.health_of(peer) or 0) == Health.GOOD]
        return well or awake or candidates

    # Hand-over

    async def transfer(
        self, target: str | None = None, timeout_s: float = 2.0, *, commanded: bool = False
    ) -> bool:
        """Hand leadership to `target`, or without `target` to the most advanced connected voter. Returns True
        if this leadership has ended. `commanded` says that an operator asked for it.

        The leader stops serving, waits until the target holds everything, and asks it to stand for election
        (Raft dissertation 3.10). It serves again if that does not work in time, or if the target disconnects.
        (If the target stands for election all the same, its higher term ends this leadership.)
        """
        leader = self._replicator.leader
        if leader is None or not self.serving:
            return False
        candidates = self._candidates(leader, target)
        if not candidates:
            return False
        chosen = max(candidates, key=lambda peer: (leader.watermark(peer), peer))
        self.serving = False
        self.appender = None
        self._handing_over = True
        if self._leading is not None:
            self._leading.paused = True
        self._say.info("transferring leadership", to=chosen)
        # Append what was sealed in this turn: without it a target would lose its election.
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                while self._leads_beside(leader, chosen) and self._behind(leader, chosen):
                    await self._next_progress(leader)
                if self._leads_beside(leader, chosen):
                    self._replicator.tell_commits()
                    self._elections.perform(self._elector.hand_over(chosen, commanded=commanded))
                while self._leads_beside(leader, chosen):
                    await self._next_progress(leader)
            if self._replicator.leader is leader:
                self._say.warning("leadership transfer failed: its target disconnected", to=chosen)
        except TimeoutError:
            self._say.warning("leadership transfer timed out", to=chosen)
        finally:
            self._handing_over = False
            if self._replicator.leader is leader:
                if self._leading is not None:
                    self._leading.paused = False
                self.applied()
        return self._replicator.leader is not leader

    def _leads_beside(self, leader: LeaderReplication, chosen: str) -> bool:
        return self._replicator.leader is leader and self._peers.connected(chosen)

    def _behind(self, leader: LeaderReplication, chosen: str) -> bool:
        last = self._log.last_index
        return leader.watermark(chosen) < last or self._replicator.commit_index < last

    async def _next_progress(self, leader: LeaderReplication) -> None:
        if self._replicator.leader is leader:
            self._progress.clear()
            await self._progress.wait()
