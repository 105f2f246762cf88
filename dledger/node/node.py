"""One member of a group: the shell that runs the pure parts on asyncio.

The node owns the log, the links, the timers and the order of things. Its rules:

* Election effects are performed in order; while a `SaveHardState` is on its way to the disk, everything that
  came after it and every later peer message waits (rule 3).
* What ends the node reaches `run` as NodeFailed (rule 7).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from math import inf

from dledger.config import NodeConfig
from dledger.election import effects as election
from dledger.election.elector import ElectionSettings, Elector
from dledger.election.identity import form_or_join
from dledger.errors import EXIT_BUG, EXIT_START, EXIT_STORE, PASSING, InvariantBroken, NodeFailed
from dledger.files.identity import Opened, StoreFiles
from dledger.formats.snapshot import Manifest
from dledger.formats.store_files import Checkpoint, HardState, Identity
from dledger.host import Host, Role
from dledger.log.flushing import FlushStats
from dledger.log.poison import leave_marker
from dledger.log.scrub import Scrubber
from dledger.log.store import LogStore
from dledger.members.config_log import Members, decode_config, unreadable_config
from dledger.members.effects import Membership
from dledger.members.reconfiguration import Changes
from dledger.members.search import ConfigSearch
from dledger.messages import (
    Message,
)
from dledger.node.applier import Applier
from dledger.node.device_watch import WatchedWorkers
from dledger.node.health import Fitness
from dledger.node.inbox import Conversation
from dledger.node.leadership import Leadership
from dledger.node.metrics import NodeMetrics
from dledger.node.powerloss import Verdict, judge
from dledger.node.reads import ReadPoints
from dledger.node.repair import Repairer
from dledger.node.requests import ClientRequests
from dledger.peers.links import PeerConnection
from dledger.peers.listener import PeerPort
from dledger.peers.peers import Peers
from dledger.peers.replicator import Replicator
from dledger.runtime import Env, Lane
from dledger.runtime.tls import PeerTls
from dledger.snapshots.service import Snapshots
from dledger.versions import Versions

QUESTION_BITS = 62
"""Questions for read points are numbered from a random number of so many bits: see `ReadPoints`."""
SLOW_SAVE_S = 0.05
"""Saving term and vote took so long that the log says so: an election waits for it twice."""
INSTALLING = "a snapshot is being installed"
REMOVED = "this node was removed from the group: stop it, or add it again"
TOO_MANY_LOST_POWER = (
    "voters lost power under ASYNC_FLUSH, and those that kept everything are no majority: "
    "acknowledged entries may be gone, the longest log wins"
)

FOUNDING_S = 10.0
"""How long a new node waits for the others before its log says who is missing."""


class Node(Conversation):
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
        self.config = config
        self._watch = WatchedWorkers(env.workers)
        env = replace(env, workers=self._watch)
        self.log = LogStore(
            env,
            config.node_dir,
            segment_size=config.segment_size,
            index_units_per_file=config.index_units_per_file,
            pool_segments=config.pool_segments,
            sync_flush=config.sync_flush,
        )
        self.commit_index = -1
        self.metrics = NodeMetrics(env.pauses)
        self.reasons: list[str] = []
        """Why this node is not healthy, for /health (see also `Fitness.reasons`)."""
        self.statements: list[str] = []
        """What an operator must know although it is over."""
        self._env = env
        self._host = host
        self._say = env.log.child(f"node.{config.self_id}")
        self._store = StoreFiles(env, config)
        self._members = Members(config)
        self._peers = Peers(env, config, self, self._fail, port=port, tls=tls)
        self._replicator = Replicator(env, config, self.log, self._peers, self)
        self.snapshots = Snapshots(
            env, config, self.log, host, self._peers, self._replicator, self._members.state_at, self
        )
        self._reads = ReadPoints(config, self._peers, self, env.random.getrandbits(QUESTION_BITS))
        self._requests = ClientRequests(self, self._reads)
        self._versions = Versions(config)
        # Until the store is open this node is an empty learner, so that it can be asked at any time.
        self.identity = Identity(config.group, config.self_id, "", config.segment_size)
        self.membership = Membership(env, config, self._members, self._peers, self._replicator, self)
        self.elector = self._new_elector(HardState(), False, 0.0)
        self._leadership = Leadership(
            env,
            config,
            self.log,
            host,
            self._members,
            self.membership,
            self._peers,
            self._replicator,
            self._requests,
            self,
            self._fail,
        )
        self.changes = Changes(
            env,
            config,
            self.log,
            self._members,
            self.membership,
            self._peers,
            self._replicator,
            self._leadership,
            self._versions,
            self,
        )
        self.applier = self._new_applier(-1)
        self._repairer = Repairer(env, self.log, self._peers, self, answer_bytes=config.push_bytes)
        self._scrubber = Scrubber(
            self.log, bytes_per_s=config.scrub_bytes_per_s, pause_s=config.scrub_pause_s
        )
        self._fitness = Fitness(
            env,
            config,
            self.log,
            self._watch,
            self._leadership,
            self._replicator,
            self,
            self._reconsider,
            self._in_doubt,
        )
        self._search = ConfigSearch(self.log, self._members, self.snapshots.base_config, self)
        self._lost_power = self._voted = False
        self._leaderless_since = inf
        self._undecided = 0.0
        self._yield_until = 0.0
        self._closed = False
        self._held: deque[tuple[PeerConnection | None, str, Message]] = deque()
        self._holds = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._identity_wake = asyncio.Event()

    # Life

    async def run(self) -> None:
        """Open the store, join the group, serve until cancelled. NodeFailed says why it had to end."""
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        opened = await self._store.open(self.log, self.snapshots)
        try:
            await self._start(opened)
            async with asyncio.TaskGroup() as group:
                self._spawn(group)
        except NodeFailed:
            raise
        except Exception as failure:  # a group of what its tasks raised, or what kept it from starting
            raise _reason(failure) from failure
        finally:
            await self._close()

    def _spawn(self, group: asyncio.TaskGroup) -> None:
        for name, work in (
            ("failure", self._watch_failure()),
            ("flusher", self.log.run_flusher()),
            ("pool", self.log.run_pool()),
            ("applier", self.applier.run()),
            ("cold-reads", self._replicator.cold.run()),
            ("cuts", self._replicator.run_cuts()),
            ("checkpoint", self._run_checkpoints()),
            ("identity", self._run_identity()),
            ("loop-lag", self.metrics.watch_loop(self.config.lag_probe_s, self._say)),
            ("dials", self.membership.dials.run()),
            ("changes", self.changes.run()),
            ("repair", self._repairer.run()),
            ("config-search", self._search.run()),
            ("repair-answers", self._repairer.run_answers()),
            ("scrub", self._scrubber.run()),
            ("fitness", self._fitness.run()),
            *self.snapshots.tasks(),
        ):
            group.create_task(work, name=f"{self.config.self_id}-{name}")

    async def _start(self, opened: Opened) -> None:
        now = self._loop.time()
        self.identity = opened.identity
        self._hard_state = opened.hard_state
        self.commit_index = min(opened.checkpoint.committed_index, self.log.last_index)
        self._members.open(opened.identity, opened.configs, self.snapshots.base_config(), opened.unsure)
        self.log.on_durable = self._on_durable
        self.log.on_flush = self._on_flush
        self.log.before_roll = self._save_configs
        applied = await self.snapshots.start_host(await self._host.open(self.log))
        if applied > self.log.last_index:
            raise NodeFailed(
                f"derived state is at index {applied}, the log ends at {self.log.last_index}: "
                "remove it to rebuild it (a broker's directories state/ and consumequeue/, "
                "the file count of `dledger serve`)",
                EXIT_STORE,
            )
        self.applier = self._new_applier(applied)
        self.commit_index = max(self.commit_index, applied)
        self.elector = self._new_elector(opened.hard_state.loaded or HardState(), opened.may_vote, now)
        self.elector.set_members(self.membership.voters, self.membership.others, now)
        self.membership.connect()
        if not opened.may_vote:
            self.reasons.append(f"{opened.reason}: no vote before a leader has refilled it")
        self._lost_power = opened.lost_power
        self._replicator.trusted = opened.may_vote
        self.log.on_damage = self._on_damage
        self._fitness.look()
        self._repairer.damage()
        self._search.wake()
        self.applier.commit_to(self.commit_index)
        await self._peers.listen()
        self._host.on_role(self.elector.role, self.elector.term, None)
        self._leaderless_since = now
        self._schedule_tick()
        self._identity_wake.set()

    def _new_applier(self, applied: int) -> Applier:
        reached = self.snapshots.boundary.reached
        return Applier(self.log, self._host, applied, self.config.apply_bytes, self._on_applied, reached)

    def _new_elector(self, state: HardState, may_vote: bool, now: float) -> Elector:
        config = self.config
        settings = ElectionSettings(
            config.heartbeat_interval_s,
            config.election_timeout_min_s,
            config.election_timeout_max_s,
            config.vote_retry_min_s,
            config.lease_s,
        )
        return Elector(
            settings,
            config.self_id,
            self.membership.voters,
            state,
            self.log,
            self._env.random,
            now,
            may_vote=may_vote,
        )

    async def _close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._reads.close()
        await self._peers.close()
        clean = False
        try:
            clean = await self.log.close()
        except (OSError, TimeoutError) as error:
            self._say.error("log not closed in order", error=repr(error))
        checkpoint = Checkpoint(self.log.durable_index, min(self.commit_index, self.log.durable_index))
        await self._store.close(checkpoint, clean=clean)

    async def _watch_failure(self) -> None:
        try:
            await self._failure
        except NodeFailed as failure:
            if failure.poisons:
                await leave_marker(self._env, self.config.node_dir, failure.reason)
            raise

    def _fail(self, error: BaseException) -> None:
        self._say.error("node ends", error=repr(error))
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _run_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self.config.checkpoint_interval_s)
            await self.log.keep_index()
            self._search.wake()
            await self._store.save_checkpoint(
                Checkpoint(self.log.durable_index, min(self.commit_index, self.log.durable_index))
            )

    # Election: timers, effects, the order of things

    def _schedule_tick(self) -> None:
        if self._closed:
            return
        when = self.elector.deadline
        if self._timer is not None:
            if self._timer_at <= when:
                return  # it fires early and comes back
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)
        self._timer_at = when  # not `when()` of the handle: uvloop's has none if it is due at once

    def _tick(self) -> None:
        self._timer = None
        if self._holds:
            return  # whoever holds schedules it again
        try:
            self.perform(self.elector.tick(self._loop.time()))
        except Exception as error:
            self._fail(error)
            return
        self._schedule_tick()

    def perform(self, effects: list[election.Effect]) -> None:
        for place, effect in enumerate(effects):
            if isinstance(effect, election.SaveHardState):
                self._save(effect.state, effects[place + 1 :])
                return
            if isinstance(effect, election.Send):
                self._peers.send(effect.peer, effect.message)
            elif isinstance(effect, election.RoleChanged):
                self._role_changed(effect)
            else:
                self._reads.round_confirmed(effect.round)

    def _save(self, state: HardState, then: list[election.Effect]) -> None:
        release = self.hold()
        began = self._loop.time()
        saving = self._env.workers.run(Lane.FLUSH, self._hard_state.save, state)

        def saved(future: asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if future.cancelled():
                return
            if error is not None:
                self._fail(NodeFailed(f"cannot save term and vote: {error}", EXIT_STORE, poisons=True))
                return
            try:
                took = self._loop.time() - began
                if took > SLOW_SAVE_S:
                    self._say.info("slow save of term and vote", term=state.term, ms=round(took * 1e3))
                self.elector.saved(took)
                self.perform(then)
                release()
                self._schedule_tick()
            except Exception as failure:
                self._fail(failure)

        saving.add_done_callback(saved)

    def _role_changed(self, change: election.RoleChanged) -> None:
        self._say.info("role", role=change.role.value, term=change.term, leader=change.leader_id)
        if self._leadership.term is not None and self._leadership.term != (
            change.term if change.role is Role.LEADER else None
        ):
            self._leadership.stop()
        if self._replicator.follower is not None and self._replicator.follower.term != change.term:
            self._replicator.follower = None
        now = self._loop.time()
        self._leaderless_since = min(self._leaderless_since, now) if change.leader_id is None else inf
        self._host.on_role(change.role, change.term, change.leader_id)
        self.changes.leader_changed(change.leader_id, change.term, now)
        self.membership.connect()
        if change.role is Role.LEADER:
            self._leadership.start(change.term)
        self._reads.role_changed()

    # Replication outcomes

    def commit_to(self, index: int) -> None:
        """Entries up to `index` are committed (bounded by what this node holds)."""
        index = min(index, self.log.last_index)
        if index <= self.commit_index:
            self._check_refilled()  # all that is committed may have been known before the leader agreed
            return
        before, self.commit_index = self.commit_index, index
        self._leadership.committed(index)
        self._host.on_commit(index)
        self._requests.committed(index)
        self.applier.commit_to(index)
        self.membership.committed(before, index)
        self.changes.committed(before, index)
        self._check_refilled()

    def _check_refilled(self) -> None:
        follower = self._replicator.follower
        if self.elector.may_vote or follower is None or follower.leader_commit < 0:
            return
        # A commit index is the leader's own only when it committed in its term; and only what agreed with
        # this leader is a refill, not what the store still had.
        mark = follower.leader_commit
        agreed = min(follower.matched, self.log.durable_index)
        if agreed >= mark and self.log.term_of(mark) == follower.term:
            self._say.info("store is refilled: this node votes again", index=self.log.durable_index)
            self._trust()

    def _trust(self) -> None:
        self.elector.may_vote = self._replicator.trusted = True
        if self._replicator.follower is not None:
            self._replicator.follower.trusted = True
        self._lost_power = False
        self.reasons = [reason for reason in self.reasons if reason == REMOVED]
        self._identity_wake.set()

    def _in_doubt(self) -> bool:
        """Whether this node may not know who the members are (S19)."""
        return self._members.doubtful(self.log.last_index)

    def _reconsider(self, now: float) -> bool:
        """After a loss of power under ASYNC_FLUSH (S9): must this node leave standing to others?"""
        if self._lost_power:
            verdict = self._judge()
            replacing = self.snapshots.receiver.replacing  # a crash would take what it said with the log
            if verdict is Verdict.WAIT or self.elector.leader_id is not None or replacing:
                self._undecided = now
            elif now - self._undecided >= 2 * self.config.election_timeout_max_s:
                self._say.error(TOO_MANY_LOST_POWER, then=verdict.value, end=self.log.last_index)
                self.statements.append(TOO_MANY_LOST_POWER)
                self._trust()
                if verdict is Verdict.VOTE:
                    self._yield_until = now + 10 * self.config.election_timeout_max_s
        if self.elector.leader_id is not None:
            self._yield_until = 0.0
        return now < self._yield_until

    def _judge(self) -> Verdict:
        if self._in_doubt():
            return Verdict.WAIT
        membership = self.membership
        voters = membership.voters
        hellos = {
            node: hello
            for node, hello in self._peers.hellos.items()
            if node not in voters or membership.counts(hello)
        }
        own = (self.log.last_term, self.log.last_index)
        return judge(self.my_hello(), own, voters, hellos)

    def _on_damage(self) -> None:
        self._fitness.look()
        self._repairer.damage()

    def repaired(self) -> None:
        """Entries are whole again: whoever waited for them goes on."""
        self._fitness.look()
        self._replicator.durable_moved()
        self.applier.durable_moved()
        self._check_refilled()
        self._replicator.resume_paused()
        self._search.wake()

    def _on_applied(self) -> None:
        self._leadership.applied()
        self._reads.applied()

    def _on_durable(self) -> None:
        self._replicator.durable_moved()
        self.applier.durable_moved()
        self._check_refilled()

    def _on_flush(self, stats: FlushStats) -> None:
        self.metrics.flushed(stats.entries, stats.size, stats.seconds)

    def config_appended(self, index: int, body: bytes) -> None:
        """A configuration entry came from the leader."""
        configuration = decode_config(body)
        if configuration is None:
            raise NodeFailed(unreadable_config(index), EXIT_STORE)
        told = configuration.same_members(self._members.current)
        self.membership.adopted(index, configuration)
        if told:
            self.changes.told_who_should_lead()

    def log_cut(self, last_index: int) -> None:
        """Entries above `last_index` are gone."""
        self.membership.cut(last_index)
        self._fitness.look()  # what may be a configuration may count again

    def configs_found(self) -> None:
        """Some of what may be configurations could be looked at."""
        self._say.info(
            "configurations are found", at=self._members.indexes, unsure=list(self._members.unsure)
        )
        self.membership.changed()
        self._fitness.look()

    def install_begins(self) -> None:
        """A snapshot is about to replace the log: no vote while that lasts (S20)."""
        self._voted = self.elector.may_vote
        self.elector.may_vote = False
        self.reasons.append(INSTALLING)

    def installed(self, leader: str, manifest: Manifest) -> None:
        """Log and host are those of a snapshot."""
        self.commit_index = max(self.commit_index, manifest.index)  # first: never less than what is applied
        self.applier.restored(manifest.index)
        self._replicator.installed(leader, manifest.index)
        self._members.replaced(manifest.index, manifest.config)
        self.membership.changed()
        self._fitness.look()
        self.reasons = [reason for reason in self.reasons if reason != INSTALLING]
        if self._voted:  # what the log held was committed and lies before the snapshot, or never will be
            self._trust()

    def members_changed(self) -> None:
        """The configuration, or what is known to be committed of it, is another."""
        removed = self._members.removed(self.commit_index)
        if removed != (REMOVED in self.reasons):
            self.reasons = [reason for reason in self.reasons if reason != REMOVED] + [REMOVED] * removed
        self._identity_wake.set()
        self._schedule_tick()

    def step_down(self) -> None:
        """Give leadership up without a successor."""
        self.perform(self.elector.step_down(self._loop.time()))
        self._schedule_tick()

    # Identity

    async def _run_identity(self) -> None:
        """Form or join a group, record members; file writes away from the message path."""
        loop = asyncio.get_running_loop()
        patience: float | None = loop.time() + FOUNDING_S
        waits = False
        while True:
            try:
                async with asyncio.timeout_at(patience):
                    await self._identity_wake.wait()
            except TimeoutError:
                patience = None
                for reason in self.waits_for():
                    self._say.warning(reason)
                continue
            self._identity_wake.clear()
            try:
                formed = form_or_join(
                    self.identity, self.config.peers, self._peers.hellos, self._peers.founders()
                )
                if formed is not None:
                    await self._become(formed)
                await self._save_configs()
                if self.elector.may_vote:
                    await self._store.clear_poison()
                waits = False
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                if not waits:
                    self._say.warning("identity or members not saved, trying again", error=error)
                waits = True
                await asyncio.sleep(self.config.disk_check_s)
                self._identity_wake.set()

    async def _save_configs(self) -> None:
        noted = [(index, self.log.term_of(index) or 0, config) for index, config in self._members.noted]
        await self._store.save_configs(noted, self._members.unsure)

    async def _become(self, identity: Identity) -> None:
        await self._store.save_identity(identity)
        self.identity = identity
        self._say.info("group formed or joined", cluster=identity.cluster, members=identity.members)
        self.membership.founded(identity)
        self._peers.refresh()


def _reason(error: BaseException) -> NodeFailed:
    """What the operator is told of a node's failure; of those of several tasks the first one counts."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NodeFailed):
        return error
    if isinstance(error, OSError) and error.errno in PASSING:
        return NodeFailed(f"{error}: start it again when that is over", EXIT_START)
    if isinstance(error, OSError):
        return NodeFailed(f"the disk failed: {error}", EXIT_STORE)
    if isinstance(error, InvariantBroken):
        return NodeFailed(f"invariant broken: {error}", EXIT_BUG)
    return NodeFailed(f"unexpected {error!r}", EXIT_BUG)
