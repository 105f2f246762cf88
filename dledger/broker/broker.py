"""One broker: its parts put together, and the host of its replicated log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from posixpath import dirname, join
from typing import TypeVar

from dledger.broker.admin.admin_processor import AdminProcessor
from dledger.broker.admin.query_processor import QueryProcessor
from dledger.broker.admin.refusal_processor import RefusalProcessor
from dledger.broker.admin.replication_processor import ReplicationProcessor
from dledger.broker.admin.tables_processor import TablesProcessor
from dledger.broker.audit.audit_jobs import AuditJobs
from dledger.broker.audit.audit_processor import AuditProcessor
from dledger.broker.audit.shipping import Shipper, ShipSettings
from dledger.broker.auth.access_control import Access, AccessControl, read_accounts
from dledger.broker.auth.auth_processor import AuthProcessor
from dledger.broker.auth.init_users import InitUsers
from dledger.broker.auth.user_access import UserAccess
from dledger.broker.background import Background
from dledger.broker.clients.client_processor import ClientProcessor
from dledger.broker.clients.client_table import Clients
from dledger.broker.clients.connection_processor import ConnectionProcessor
from dledger.broker.clients.consumer_calls import ConsumerCalls
from dledger.broker.clients.membership_relay import ClientTelling
from dledger.broker.clients.queue_locks import QueueLocks
from dledger.broker.clients.reply_processor import ReplyProcessor
from dledger.broker.clients.takeover_notices import TakeoverNotices
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.broker.context import BrokerContext
from dledger.broker.forwarding import Forwarder, Origins
from dledger.broker.intake.plain_sends import PlainSends
from dledger.broker.intake.resends import Resends
from dledger.broker.intake.send_back_processor import SendBackProcessor
from dledger.broker.intake.send_checks import SendChecks
from dledger.broker.intake.send_processor import SendProcessor
from dledger.broker.latency.fast_failure import FastFailure
from dledger.broker.latency.slow_consumers import SlowConsumers
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.loadbalance.assignment_processor import AssignmentProcessor
from dledger.broker.longpolling.pull_processor import PullProcessor
from dledger.broker.longpolling.stranded_pulls import StrandedPulls
from dledger.broker.offset.offset_processor import OffsetProcessor
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.offset.pull_offsets import PullOffsets
from dledger.broker.offset.reset_processor import ResetProcessor
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.pop.ack_processor import AckProcessor
from dledger.broker.pop.pop_ledger import PopLedger
from dledger.broker.pop.pop_processor import PopProcessor
from dledger.broker.pop.revive_service import PopReviveService
from dledger.broker.ports import Node
from dledger.broker.ratelimit.rate_limits import RateLimits
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.registration.registrar import Registrar
from dledger.broker.requests import Processor, body_limits, handler_table
from dledger.broker.schedule.delay_service import DelayService
from dledger.broker.schedule.kept_messages import KeptMessages
from dledger.broker.services import LeaderService, LeaderServices
from dledger.broker.stats.broker_stats import BrokerStats
from dledger.broker.stats.runtime_info import runtime_info
from dledger.broker.stats.stats_processor import StatsProcessor
from dledger.broker.store.config_export import ConfigExport
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.store.index_service import IndexService
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.broker.timer.recall_processor import RecallProcessor
from dledger.broker.timer.timer_claims import TimerClaims
from dledger.broker.timer.timer_service import TimerService
from dledger.broker.topic.announcements import TopicAnnouncements
from dledger.broker.topic.deletion import Deletions
from dledger.broker.topic.deletion_service import DeletionService
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import system_topics
from dledger.broker.topic.topic_processor import TopicProcessor
from dledger.broker.topic.topic_table import TopicTable
from dledger.broker.transaction.check_relay import CheckRelay
from dledger.broker.transaction.check_service import TransactionCheckService
from dledger.broker.transaction.end_processor import EndTransactionProcessor
from dledger.config import NodeConfig
from dledger.formats.state import TABLES, TOPIC_DELETE, Source, state_version
from dledger.host import Chunk, Host, LogReader, Role
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.limits import ClientLimits
from dledger.remoting.server import Connection, Handler, RemotingServer
from dledger.remoting.settings_requests import SettingsRequests
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings, SettingsSource
from dledger.runtime.standstill import Standstill

PROCESSORS: tuple[type[Processor], ...] = (
    SendProcessor,
    SendBackProcessor,
    RecallProcessor,
    EndTransactionProcessor,
    CheckRelay,
    PullProcessor,
    StrandedPulls,
    ClientProcessor,
    ClientTelling,
    ConnectionProcessor,
    ConsumerCalls,
    ReplyProcessor,
    QueueLocks,
    OffsetProcessor,
    ResetProcessor,
    PopProcessor,
    AckProcessor,
    AssignmentProcessor,
    TopicProcessor,
    AdminProcessor,
    AuthProcessor,
    StatsProcessor,
    QueryProcessor,
    ReplicationProcessor,
    TablesProcessor,
    AuditProcessor,
    RefusalProcessor,
)
"""Who answers requests. One that is a `LeaderService` as well begins and ends with each leadership."""
P = TypeVar("P")
BETWEEN_BROKERS = frozenset(
    {RequestCode.TELL_CONSUMERS, RequestCode.TELL_PULLS, RequestCode.CHECK_TRANSACTION_STATE}
)
"""Requests of other brokers of the group."""
NodeFactory = Callable[[Env, NodeConfig, Host], Node]


class Broker:
    """The parts of a broker. Is the `dledger.host.Host` of its node: the calls below `# -- host`."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        make_node: NodeFactory,
        source: SettingsSource | None = None,
        tables: Sequence[Source] = TABLES,
    ) -> None:
        self.env = env
        settings = LiveSettings(env, SETTINGS, config, source)
        self.settings: LiveSettings[BrokerConfig] = settings
        self.opened: asyncio.Event = asyncio.Event()
        """The log is open: role and leader are known as far as they can be."""
        self.committed: PendingResponses = PendingResponses()
        """Answers that wait for the commit."""
        self.applied: PendingResponses = PendingResponses()
        """Answers that wait until the entry is applied here."""
        self.store: MessageStore = MessageStore(env, config.store_root, config.store, tables)
        node_config = replace(config.node_config(), state_version=state_version(tables))
        self.node: Node = make_node(env, node_config, self)
        self.index: IndexService = IndexService(env, config.store_root, self.store, self.node.log)
        self.client: RemotingClient = RemotingClient(
            env,
            limits=ClientLimits(),
            handlers={
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda _, request: self.telling.pass_on(request)
            },
            on_connection_lost=self._connection_lost,
            tls=config.client_tls.client_context(),
        )
        self.standstill: Standstill = Standstill(lambda: settings.now.stalled_loop_s, env.uptime_s)
        self.gate: LeaderGate = LeaderGate(self.node, settings, self.standstill)
        self.forwarder: Forwarder = Forwarder(self.node, self.gate, self.client)
        self.gate.forward = self.forwarder.start
        self.background: Background = Background()
        self.audit_jobs: AuditJobs = AuditJobs(env, config.audit_bytes_per_s)
        ship = ShipSettings(
            config.digest_ship_path,
            config.dledger_group or config.broker_name,
            config.digest_ship_interval_ms,
            config.digest_rescan_hours,
        )
        self.shipper: Shipper = Shipper(env, ship, config.store_root, config.self_id, self.audit_jobs.pace)
        self.clients: Clients = Clients()
        self._system_topics = system_topics(config)
        self._writer: CommitLogWriter | None = None
        self.offsets: PendingOffsets = PendingOffsets(
            self.store, self.committed, self.gate, config.offset_flush_s
        )
        self.pull_offsets: PullOffsets = PullOffsets()
        self.offsets.reset_listeners.append(self.pull_offsets.reset)
        self.stats: BrokerStats = BrokerStats(
            env, config.cluster_name, lambda: (self.messages_in, self.pulls.messages)
        )
        self.pop_ledger: PopLedger = PopLedger(self.store, settings)
        self.timer_claims: TimerClaims = TimerClaims(settings)
        self.topic_table: TopicTable = TopicTable(lambda: self.store.state, self._system_topics)
        self.name_servers: NameServers = NameServers(env, settings)
        self.registrar: Registrar = Registrar(
            env, settings, self.node, self.topic_table, self.client, self.name_servers
        )
        self.exports: ConfigExport = ConfigExport(
            env,
            config.store_root,
            self.store,
            self.topic_table,
            self.registrar.data_version,
            lambda: settings.now.config_export_s,
        )
        self.settings_requests: SettingsRequests = SettingsRequests(settings, env.log.child("settings"))
        self.deletions: Deletions = Deletions(self.store, self.clients)
        self.deletions.listeners += [
            self.offsets.forget,
            self.pull_offsets.forget,
            self.pop_ledger.forget,
            self.stats.forget,
        ]
        reader = Reader(env, self.store, self.node.log)
        self._kept = KeptMessages(self.store, reader)
        self.fast_failure: FastFailure = FastFailure(self.committed, settings)
        self.slow_consumers: SlowConsumers = SlowConsumers(env, settings, self.store)
        self.rates: RateLimits = RateLimits(settings)
        self.send_checks: SendChecks = SendChecks((self.fast_failure, self.rates.send_check))
        self.resends: Resends = Resends(self.store, self.index, reader, self.gate, settings)
        origins = Origins(self.node, self.older_ips)
        self.access: Access | None = None
        """Who may make which request; None: everybody may."""
        self.accounts: AccessControl | None = None
        """The same, where it is by accounts in a file."""
        file = config.acl_file or join(dirname(source.path) if source else "", "plain_acl.yml")
        if config.acl_enable:
            self.access = self.accounts = AccessControl(env, file, origins)
            self.accounts.load()
        users: UserAccess | None = None
        if config.authentication_enabled:
            self.access = users = UserAccess(
                self.store,
                origins,
                config.cluster_name,
                config.authorization_enabled,
                config.authentication_whitelist,
                config.authorization_whitelist,
            )
        migrated = None
        if config.migrate_auth:
            _, migrated = read_accounts(env.files, file, "migrateAuthFromV1Enabled")
        context = BrokerContext(
            env=env,
            settings=settings,
            node=self.node,
            gate=self.gate,
            store=self.store,
            reader=reader,
            index=self.index,
            creation=TopicCreation(settings),
            announcements=TopicAnnouncements(self.registrar, self.applied),
            deletions=self.deletions,
            clients=self.clients,
            client=self.client,
            name_servers=self.name_servers,
            offsets=self.offsets,
            pull_offsets=self.pull_offsets,
            pops=self.pop_ledger,
            timers=self.timer_claims,
            committed=self.committed,
            applied=self.applied,
            stats=self.stats,
            background=self.background,
            slow_consumers=self.slow_consumers,
            rates=self.rates,
            send_checks=self.send_checks,
            resends=self.resends,
            topic_table=self.topic_table,
            registrar=self.registrar,
            audit_jobs=self.audit_jobs,
            members=self.members,
            origins=origins,
            check_needed=lambda *asked: None if self.access is None else self.access.check_needed(*asked),
            by_super_user=(lambda request: True) if users is None else users.is_super,
            settings_requests=self.settings_requests,
            figures=self.runtime_info,
        )
        self.processors: tuple[Processor, ...] = tuple(kind(context) for kind in PROCESSORS)
        self.pulls: PullProcessor = self._processor(PullProcessor)
        self.plain_sends: PlainSends = PlainSends(
            context, self._processor(SendProcessor).answers, self.access
        )
        self.telling: ClientTelling = self._processor(ClientTelling)
        self.pops: PopProcessor = self._processor(PopProcessor)
        self.stranded: StrandedPulls = self._processor(StrandedPulls)
        self.pulls.held.on_hold = self.stranded.waits
        own = (one for one in self.processors if isinstance(one, LeaderService))
        self.delays: DelayService = DelayService(context)
        self.timers: TimerService = TimerService(context)
        self.revives: PopReviveService = PopReviveService(context)
        self.transactions: TransactionCheckService = TransactionCheckService(context)
        self.forgetting: DeletionService = DeletionService(context)
        self.services: LeaderServices = LeaderServices(
            (
                self.registrar,
                self.offsets,
                self.pull_offsets,
                self.applied,
                self.committed,
                self.stats,
                self.pop_ledger,
                self.timer_claims,
                self.resends,
                self.fast_failure,
                self.slow_consumers,
                *own,
                self.delays,
                self.timers,
                self.revives,
                self.transactions,
                self.forgetting,
                TakeoverNotices(context),
                InitUsers(config, migrated, env.log.child("auth")),
            )
        )
        """In this order at the beginning of a leadership, backwards at its end."""
        self.handlers: dict[int, Handler] = handler_table(self.processors, self.gate)
        self.server: RemotingServer = RemotingServer(
            env,
            handlers=self.handlers,
            limits=config.server,
            name="remoting",
            on_close=self.clients.connection_closed,
            max_body=body_limits(self.processors),
            authorize=None if self.access is None else self._authorize,
            tls=config.client_tls.server(env.log),
            bulk=self.plain_sends.take,
            standstill=self.standstill,
        )
        self.standstill.listeners.append(self._stood_still)
        self.store.on_arrival = self._arrived
        self.store.on_ops = self._ops_applied
        self.store.on_deleted = self._deleted
        self.sealed_before: int = 0
        """Messages sealed in earlier leaderships."""
        self.boot_ms: int = env.wall.now_ms()
        """When it was made, in ms since the epoch."""
        settings.listen(self._settings_changed)

    def _stood_still(self, paused_s: float) -> None:
        self.background.cancel()
        self.client.drop_unsent("the event loop stood still: what waits may be late")

    @property
    def config(self) -> BrokerConfig:
        """As it counts now."""
        return self.settings.now

    def _processor(self, kind: type[P]) -> P:
        return next(one for one in self.processors if isinstance(one, kind))

    # -- host -----------------------------------------------------------------------------------------

    async def open(self, log: LogReader) -> int:
        """Load derived state."""
        applied = await self.store.open(log)
        self.index.opened()
        await self.topic_table.prepare()
        return applied

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """Topics, groups, offsets, ends of queues."""
        return self.store.snapshot()

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """The log was replaced by a snapshot, or nothing else reaches back to its beginning."""
        await self.store.restore(parts, index, pos)
        await self.index.restored()
        await self.topic_table.prepare()
        self.registrar.changed()

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Retention: messages before `pos` are gone."""
        await self.store.log_begins(parts)
        await self.index.log_begins()

    async def kept_from(self) -> int | None:
        """Where the first message lies that waits for its time."""
        return await self._kept.first()

    def apply(self, chunk: Chunk) -> None:
        """Committed, durable entries."""
        self.store.apply(chunk)
        index = self.store.applied_index
        if self._writer is not None:
            self._writer.applied(index)
        self.offsets.applied(index)
        self.applied.on_commit(index)
        self.resends.applied(index)

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Role, term or leader changed."""
        if leader_id is not None:
            self.registrar.leader_known(term)
            self.registrar.changed()
        elif self.node.removed:
            self.registrar.changed()
        if role is not Role.LEADER:
            self.gate.close()
        self.forwarder.leads(self.gate.leader_address)
        self.telling.leads(self.gate.leader_address)
        if leader_id is not None and role is not Role.LEADER:
            self.stranded.leads(term)
        self.opened.set()

    def on_serving(self, term: int) -> None:
        """The term is open: from here on this node assigns offsets."""
        appender = self.node.appender
        if appender is None:
            return
        if self._writer is None or self._writer.term != term:
            # After a hand-over that did not work the same leadership goes on, with its pending offsets.
            self._writer = CommitLogWriter(
                appender,
                self.store.state,
                self._system_topics,
                self.config.store_host,
                table_bytes=self.topic_table.size,
                puts=self.stats.puts,
            )
            self.services.begin(self._writer)
        self.gate.open(self._writer)

    def on_commit(self, commit_index: int) -> None:
        """Answer what waited for this."""
        self.committed.on_commit(commit_index)

    def on_stopped_serving(self, term: int) -> None:
        """Leadership ended (safety.md S24)."""
        if self._writer is not None:
            self.sealed_before += self._writer.messages
            self._writer = None
        self.gate.close()
        self.services.end(f"leadership of term {term} ended before the entry was committed")

    # -- life -----------------------------------------------------------------------------------------

    async def run_client_sweep(self) -> None:
        """Forget clients that fell silent, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.client_sweep_s)
            self.clients.expire(loop.time() - self.config.client_expiry_s)

    async def hand_over(self) -> bool:
        """Give leadership away before a shutdown. True when another node has it."""
        if self.gate.writer is None:
            return False
        self.services.hand_over()
        self.gate.pause()
        moved = await self.node.step_aside(timeout_s=self.config.transfer_timeout_s)
        if self.node.serving and self.gate.writer is None and self._writer is not None:
            self.gate.open(self._writer)  # nobody was there to take over
        return moved

    def _authorize(self, connection: Connection, request: Request) -> None:
        # What brokers say to each other has no account; its processor asks for the proof of a member.
        if self.access is not None and request.code not in BETWEEN_BROKERS:
            self.access.check(connection, request)

    def _connection_lost(self, address: str) -> None:
        self.registrar.lost(address)
        self.telling.lost(address)

    def _arrived(self, queues: list[ConsumeQueue]) -> None:
        self.pulls.arrived(queues)
        self.pops.arrived(queues)
        self.delays.arrived(queues)
        self.timers.arrived(queues)

    # -- figures --------------------------------------------------------------------------------------

    @property
    def messages_in(self) -> int:
        """Messages sealed since start."""
        return self.sealed_before + (0 if self._writer is None else self._writer.messages)

    def members(self) -> dict[str, str]:
        """Members of the group: node id -> where clients reach it, or empty when this node does not know."""
        status = self.node.status()
        nodes = [*_texts(status.get("voters")), *_texts(status.get("learners"))] or list(self.config.peers)
        known = {node: self.node.peer_meta(node).get("client_addr", "") for node in nodes}
        return {**known, self.config.self_id: self.config.client_addr}

    def older_ips(self) -> set[str]:
        """Addresses, as numbers, of connected members whose older programs make no proofs."""
        known = {self.node.peer_meta(peer).get("store_ip", "") for peer in self.node.peers_without_proofs}
        return known - {""}

    def runtime_info(self) -> dict[str, str]:
        """28 GET_BROKER_RUNTIME_INFO, but for what has to be read from the device."""
        return runtime_info(self)

    def _settings_changed(self, config: BrokerConfig) -> None:
        """Tell the parts that do not read the settings each time."""
        self.audit_jobs.pace.limit(config.audit_bytes_per_s)
        self.node.retune(config.node)
        for topic in system_topics(config).values():
            if self._system_topics.get(topic.name) != topic:
                self._system_topics[topic.name] = topic
                self.topic_table.put_system(topic)
                self.registrar.changed()

    def _ops_applied(self, ops: list[str]) -> None:
        if "topic" in ops or TOPIC_DELETE in ops:
            self.registrar.changed()

    def _deleted(self, topics: list[str]) -> None:
        self.topic_table.deleted(topics)
        for topic in topics:
            self.pulls.deleted(topic)
            self.pops.deleted(topic)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
