"""The node: its parts, its start and end, and the order in which parts are notified of an event.

* `Elections`, `Replicator` and the parts report events to the node (`NodeEvents`, `ReplicatorEvents`). This
  module defines which parts are notified, and in which order.
* An error that ends the node reaches `run` as NodeFailed (architecture rule 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dledger.config import NodeConfig, NodeSettings
from dledger.context.applier import Applier
from dledger.context.config_entries import decode_config, unreadable_config
from dledger.context.config_log import ConfigLog
from dledger.context.elections import Elections
from dledger.context.node_context import NodeContext
from dledger.election.effects import RoleChanged
from dledger.election.elector import Elector
from dledger.errors import EXIT_STORE, NodeFailed, why_ended
from dledger.files.identity import Opened, StoreFiles
from dledger.flight.recorder import FlightRecorder
from dledger.formats.snapshot import Manifest
from dledger.formats.store_files import Checkpoint, HardState
from dledger.host import Host, Role
from dledger.log.appender import Appender
from dledger.log.poison import leave_marker
from dledger.log.scrub import Scrubber
from dledger.log.store import LogStore
from dledger.members.config_search import ConfigSearch
from dledger.members.effects import MemberEffects
from dledger.members.joining import Joining
from dledger.node.device_watch import WatchedWorkers
from dledger.node.health import HealthWatch
from dledger.node.inbox import Inbox
from dledger.node.invariants import check_order
from dledger.node.leadership import Leadership
from dledger.node.metrics import NodeMetrics
from dledger.node.parts import NodeParts
from dledger.node.reads import ReadPoints
from dledger.node.reconfiguration import Reconfiguration
from dledger.node.repair import Repairer
from dledger.node.requests import ClientRequests
from dledger.node.role_history import RoleHistory
from dledger.node.status import NodeStatus
from dledger.node.trust import Trust
from dledger.peers.held import HeldMessages
from dledger.peers.listener import PeerPort
from dledger.peers.peers import Peers
from dledger.peers.replicator import Replicator
from dledger.runtime import Env
from dledger.runtime.tls import PeerTls
from dledger.snapshots.service import Snapshots
from dledger.versions import Versions

QUESTION_BITS = 62
"""The first number of this node's requests for read points is random, with this many bits (see
`ReadPoints`)."""

ACKNOWLEDGED_BEFORE_FSYNC = (
    "flushDiskType=ASYNC_FLUSH: acknowledged does not mean fsynced. A message is acknowledged as "
    "soon as a majority has written it into the page cache; if a majority loses power, the newest "
    "messages may be lost"
)


class Node:
    """A member of a DLedger group, or a single node. See the package docstring for the path of a message."""

    def __init__(
        self,
        env: Env,
        config: NodeConfig,
        host: Host,
        *,
        port: PeerPort | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        workers = WatchedWorkers(env.workers)
        env = replace(env, workers=workers)
        self.config = config
        self._env = env
        self._host = host
        self._say = env.log.child(f"node.{config.self_id}")
        self._store = StoreFiles(env, config)
        first_question = env.random.getrandbits(QUESTION_BITS)
        # What all parts may use.
        self.log: LogStore = LogStore(
            env,
            config.node_dir,
            segment_size=config.segment_size,
            index_units_per_file=config.index_units_per_file,
            pool_segments=config.pool_segments,
            sync_flush=config.sync_flush,
        )
        self.members: ConfigLog = ConfigLog(config)
        self.held: HeldMessages = HeldMessages(
            lambda peer, message: self.inbox.handle(peer, message), self._released
        )
        self.peers: Peers = Peers(env, config, self.fail, port=port, tls=tls)
        self.recorder: FlightRecorder = FlightRecorder(env, config)
        shared = (env, config, self.log, self.peers, self.held, self, self.recorder)
        self.elections: Elections = Elections(*shared)
        self.elector: Elector = self.elections.elector
        self.replicator: Replicator = Replicator(*shared)
        context = self._make_context(env, config, host)
        # The parts, each with the parts whose methods it calls.
        self.applier: Applier = Applier(context, self)
        self.membership: MemberEffects = MemberEffects(context, self)
        self.joining: Joining = Joining(context, self._store, self.membership)
        self.trust: Trust = Trust(context, self.membership, self.joining.wake)
        self.snapshots: Snapshots = Snapshots(context, self.applier, self.trust.install_begins, self)
        self.leadership: Leadership = Leadership(context, self.membership, self.applier, self)
        self.reconfiguration: Reconfiguration = Reconfiguration(context, self.membership, self.leadership)
        self.reads: ReadPoints = ReadPoints(context, self.leadership, self.applier, first_question)
        self.repairer: Repairer = Repairer(context, self)
        self.scrubber: Scrubber = Scrubber(
            self.log, bytes_per_s=config.scrub_bytes_per_s, pause_s=config.scrub_pause_s
        )
        self.metrics: NodeMetrics = NodeMetrics(env.pauses)
        self.history: RoleHistory = RoleHistory()
        self.health: HealthWatch = HealthWatch(context, self.leadership, self.trust, workers, self.metrics)
        self.snapshots.retainer.now_ms = self.health.cautious_now_ms
        self._search = ConfigSearch(context, self.snapshots.base_config, self)
        # Parts that use all others.
        parts = self._make_parts()
        self._status = NodeStatus(context, parts)
        self._requests = ClientRequests(context, parts, self._status)
        self.inbox: Inbox = Inbox(context, parts, self._requests, self)

    def _make_context(self, env: Env, config: NodeConfig, host: Host) -> NodeContext:
        return NodeContext(
            env=env,
            config=config,
            log=self.log,
            host=host,
            members=self.members,
            versions=Versions(config),
            peers=self.peers,
            held=self.held,
            elector=self.elector,
            elections=self.elections,
            replicator=self.replicator,
            recorder=self.recorder,
        )

    def _make_parts(self) -> NodeParts:
        return NodeParts(
            applier=self.applier,
            snapshots=self.snapshots,
            membership=self.membership,
            joining=self.joining,
            trust=self.trust,
            leadership=self.leadership,
            reconfiguration=self.reconfiguration,
            reads=self.reads,
            repairer=self.repairer,
            scrubber=self.scrubber,
            health=self.health,
            metrics=self.metrics,
        )

    # What its host and its operators ask

    @property
    def role(self) -> Role:
        """Role of this node in Raft: leader, follower or candidate."""
        return self.elector.role

    @property
    def term(self) -> int:
        """Current term."""
        return self.elector.term

    @property
    def leader_id(self) -> str | None:
        """Id of the leader, as far as this node knows; None while none is known."""
        return self.elector.leader_id

    @property
    def commit_index(self) -> int:
        """Index of the last entry that is known to be committed."""
        return self.replicator.commit_index

    @property
    def applied_index(self) -> int:
        """Index of the last entry that the host applied."""
        return self.applier.applied_index

    @property
    def appender(self) -> Appender | None:
        """Seals entries at the end of the log; None unless this node serves."""
        return self.leadership.appender

    @property
    def serving(self) -> bool:
        """Whether this node leads and its term is open, that is, the entry that opens it is committed and
        applied."""
        return self.leadership.serving

    @property
    def removed(self) -> bool:
        """Whether the group is known to have removed this node."""
        return self.trust.removed

    def status(self) -> dict[str, object]:
        """Return the status for /health, /metrics and `dledger status`."""
        return self._status.report()

    def role_changes(self) -> list[dict[str, object]]:
        """Return the last changes of role, term and leader, as plain values (`RoleHistory`)."""
        return self.history.report()

    @property
    def cluster_id(self) -> str:
        """Id of the group's log, chosen when the group was formed; empty while this node does not know it."""
        return self.members.identity.cluster

    def peer_meta(self, node_id: str) -> Mapping[str, str]:
        """Return the `meta` of a peer's hello; empty while the peer is not connected."""
        return self.config.meta if node_id == self.config.self_id else self.peers.meta(node_id)

    def prove(self, peer: str, content: Sequence[bytes]) -> str:
        """Make a proof for a peer that a request with this content comes from a member. Empty if the peer
        sent no secret (`dledger.peers.proofs`)."""
        return self.peers.proofs.make(peer, content)

    def proves(self, proof: str, content: Sequence[bytes]) -> bool:
        """Whether a member made this proof for this content and this process, and the proof was not used
        before."""
        peer = self.peers.proofs.check(proof, content)
        return peer is not None and peer in self.peers.addresses()

    @property
    def proof_receivers(self) -> Sequence[str]:
        """Peers for which proofs can be made."""
        return self.peers.proofs.receivers

    @property
    def peers_without_proofs(self) -> Sequence[str]:
        """Connected peers with older programs, which make no proofs."""
        return self.peers.without_proofs()

    def retune(self, settings: NodeSettings) -> None:
        """Apply the settings that may change while the node runs (`hot`)."""
        self.health.full_ratio = settings.disk_full_ratio
        self.scrubber.retune(settings.scrub_bytes_per_s, settings.scrub_pause_s)
        self.snapshots.retainer.retune(settings.retention)

    def delete_expired(self) -> None:
        """Let retention remove expired segments now, whatever hour is set for it."""
        self.snapshots.retainer.delete_expired()

    def ask_read_point(self, timeout_s: float, done: Callable[[int | None], None]) -> None:
        """Ask for a read point that begins now, and call `done` with it when it is applied here; with None if
        there is none in time. Raises ReadRefused if too many requests wait."""
        self.reads.ask(timeout_s, done)

    async def step_aside(self, timeout_s: float) -> bool:
        """Prepare the end of the process: do not stand for election any more, and try to hand leadership over
        to one voter after another. Returns True if this node's leadership has ended.

        The node still answers and votes until it is cancelled."""
        self.health.leave()
        deadline = self._loop.time() + timeout_s
        for _ in self.members.voters:
            left = deadline - self._loop.time()
            if not self.serving or left <= 0:
                break
            if await self.leadership.transfer(None, left):
                return True
        return False

    # Life

    async def run(self) -> None:
        """Open the store, join the group, and serve until cancelled. Raises NodeFailed, which says why the
        node had to end."""
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        opened = await self._store.open(self.log, self.snapshots)
        if not self.config.sync_flush:
            self._say.warning(ACKNOWLEDGED_BEFORE_FSYNC)
        try:
            await self._start(opened)
            async with asyncio.TaskGroup() as group:
                self._spawn(group)
        except NodeFailed:
            raise
        except Exception as failure:  # a group of exceptions from its tasks, or an error of the start
            raise why_ended(failure) from failure
        finally:
            await self._close()

    def _spawn(self, group: asyncio.TaskGroup) -> None:
        for name, work in (
            ("failure", self._watch_failure()),
            ("flusher", self.log.run_flusher()),
            ("pool", self.log.run_pool()),
            ("applier", self.applier.run()),
            ("cold-reads", self.replicator.cold.run()),
            ("cuts", self.replicator.run_cuts()),
            ("checkpoint", self._run_checkpoints()),
            ("identity", self.joining.run()),
            ("loop-lag", self.metrics.watch_loop(self.config.lag_probe_s, self._say)),
            ("dials", self.membership.dials.run()),
            ("sources", self.peers.sources.run()),
            ("changes", self.reconfiguration.run()),
            ("repair", self.repairer.run()),
            ("config-search", self._search.run()),
            ("repair-answers", self.repairer.run_answers()),
            ("scrub", self.scrubber.run()),
            ("health", self.health.run()),
            *self.snapshots.tasks(),
        ):
            group.create_task(work, name=f"{self.config.self_id}-{name}")

    async def _start(self, opened: Opened) -> None:
        now = self._loop.time()
        log = self.log
        self.elections.open(opened.hard_state)
        self.replicator.known_committed(min(opened.checkpoint.committed_index, log.last_index))
        self.members.open(opened.identity, opened.configs, self.snapshots.base_config(), opened.unsure)
        log.on_durable = self._on_durable
        log.on_flush = self.metrics.flushed
        log.before_roll = self.joining.save_configs
        applied = await self.snapshots.start_host(await self._host.open(log))
        if applied > log.last_index:
            raise NodeFailed(
                f"the derived state is at entry {applied}, but the log ends at entry "
                f"{log.last_index}: remove the derived state to rebuild it (a broker's directories "
                "state/ and consumequeue/, the file count of `dledger serve`)",
                EXIT_STORE,
            )
        self.applier.open(applied)
        self.replicator.known_committed(applied)
        voters, others = self.membership.voters, self.membership.others
        hard_state = opened.hard_state.loaded or HardState()
        await self.recorder.open()
        self.elector.open(hard_state, voters, now, may_vote=opened.may_vote)
        self.elector.set_members(voters, others, now)
        self.membership.connect()
        self.trust.open(opened.may_vote, opened.reason, opened.lost_power)
        self.trust.members_changed()
        log.on_damage = self._on_damage
        self.health.look()
        self.repairer.damage()
        self._search.wake()
        self.applier.commit_to(self.commit_index)
        await self.peers.listen(self.inbox)
        self._host.on_role(self.elector.role, self.elector.term, None)
        started = RoleChanged(self.elector.role, self.elector.term, None)
        self._note_role(started)
        self.elections.start(now)
        self.joining.wake()

    async def _close(self) -> None:
        self.elections.close()
        self.reads.close()
        await self.peers.close()
        await self.recorder.close()
        clean = False
        try:
            clean = await self.log.close()
        except (OSError, TimeoutError) as error:
            self._say.error("log not closed cleanly", error=repr(error))
        await self._store.close(self._checkpoint(), clean=clean)

    async def _watch_failure(self) -> None:
        try:
            await self._failure
        except NodeFailed as failure:
            if failure.poisons:
                await leave_marker(self._env, self.config.node_dir, failure.reason)
            raise

    def fail(self, error: BaseException) -> None:
        """End the node, because a callback failed."""
        self._say.error("node stops", error=repr(error))
        if not self._failure.done():
            self._failure.set_exception(error)

    def stepped(self) -> None:
        """Check the conditions that must hold after a step. Raises InvariantBroken if one does not."""
        log = self.log
        last = log.last_index
        committed = self.replicator.commit_index
        check_order(log.first_index, last, log.durable_mark, committed, self.applier.applied_index)

    def _released(self) -> None:
        self.log.flush()
        self.elections.schedule()
        self.stepped()

    async def _run_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self.config.checkpoint_interval_s)
            await self.log.keep_index()
            self._search.wake()
            await self._store.save_checkpoint(self._checkpoint())

    def _checkpoint(self) -> Checkpoint:
        durable = self.log.durable_index
        return Checkpoint(durable, min(self.commit_index, durable))

    # Elections

    def role_changed(self, change: RoleChanged) -> None:
        """Notify the parts that role, term or known leader changed. A deposed leader stops serving before
        anything else happens."""
        leads = change.role is Role.LEADER
        if self.leadership.term is not None and self.leadership.term != (change.term if leads else None):
            self.leadership.stop()
            self._requests.stopped_serving()
        self.replicator.follow(change.term)
        self._note_role(change)
        self._host.on_role(change.role, change.term, change.leader_id)
        self.reconfiguration.leader_changed(change.leader_id, change.term, self._loop.time())
        self.membership.connect()
        if leads:
            self.leadership.start(change.term)
        self.reads.role_changed()

    def _note_role(self, change: RoleChanged) -> None:
        now_ms, why = self._env.wall.now_ms(), change.why or "the node started"
        self.history.note(now_ms, change.role, change.term, change.leader_id, why)

    def round_confirmed(self, number: int) -> None:
        """Notify the parts that a quorum answered this leader's round of heartbeats with this number."""
        self.reads.round_confirmed(number)

    # Replication

    def committed(self, before: int, index: int) -> None:
        """Notify the parts that the commit index is now `index`. It was `before`, which may be equal."""
        if index > before:
            self.leadership.committed(index)
            self._host.on_commit(index)
            self._requests.committed(index)
            self.applier.commit_to(index)
            self.membership.committed(before, index)
            self.reconfiguration.committed(before, index)
        self.trust.check_refilled()  # the commit index may have been known before

    def applied(self) -> None:
        """Notify the parts that the applied index moved."""
        self.leadership.applied()
        self.reads.applied()
        self.stepped()

    def segment_applied(self, index: int, pos: int) -> None:
        """Notify the parts that entry `index` is applied, and that the next entry begins a segment at
        `pos`."""
        self.snapshots.boundary.reached(index, pos)

    def _on_durable(self) -> None:
        self.replicator.durable_moved()
        self.applier.durable_moved()
        self.trust.check_refilled()
        self.stepped()

    def log_cut(self, last_index: int) -> None:
        """Notify the parts that entries above `last_index` were cut from the log."""
        self.membership.cut(last_index)
        self.health.look()  # entries that may be configurations may be known now

    # Rot and installs

    def _on_damage(self) -> None:
        self.health.look()
        self.repairer.damage()

    def repaired(self) -> None:
        """Notify the parts that entries were repaired, so that they continue the work that waited for these
        entries."""
        self.health.look()
        self.replicator.durable_moved()
        self.applier.durable_moved()
        self.trust.check_refilled()
        self.replicator.resume_paused()
        self._search.wake()

    def installed(self, leader: str, manifest: Manifest) -> None:
        """Notify the parts that a snapshot replaced the log and the state of the host."""
        self.replicator.installed(leader, manifest.index)  # first: never less committed than applied
        self.applier.restored(manifest.index)
        self.members.replaced(manifest.index, manifest.config)
        self.membership.changed()
        self.health.look()
        self.trust.installed()

    # Members

    def config_appended(self, index: int, body: bytes) -> None:
        """Notify the parts that a configuration entry came from the leader."""
        configuration = decode_config(body)
        if configuration is None:
            raise NodeFailed(unreadable_config(index), EXIT_STORE)
        told = configuration.same_members(self.members.current)
        self.membership.adopted(index, configuration)
        if told:
            self.reconfiguration.told_who_should_lead()

    def configs_found(self) -> None:
        """Some of the entries that may be configurations could be read."""
        self._say.info("configurations found", at=self.members.indexes, unsure=list(self.members.unsure))
        self.membership.changed()
        self.health.look()

    def members_changed(self) -> None:
        """Notify the parts that the configuration changed, or that more of it is known to be committed."""
        self.trust.members_changed()
        self.joining.wake()
        self.elections.schedule()
