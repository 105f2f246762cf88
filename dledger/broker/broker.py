"""One broker: puts its parts together, and is the host of its replicated log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.broker.core import Core, make_core
from dledger.broker.feature import Task
from dledger.broker.features import Features, Shared, make_features
from dledger.broker.figures import Figure, leader_figures, server_figures
from dledger.broker.forwarding import Forwarder, Origins
from dledger.broker.group_members import GroupMembers
from dledger.broker.health import Health
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.leadership import Leadership
from dledger.broker.ports import Appender, Node
from dledger.broker.requests import Processor, body_limits, declarations, handler_table
from dledger.broker.services import LeaderServices
from dledger.broker.stats.runtime_info import runtime_info
from dledger.broker.store.index_service import IndexService
from dledger.broker.store.message_store import MessageStore
from dledger.broker.topic.topic_names import system_topics
from dledger.broker.topic.topic_table import TopicTable
from dledger.config import NodeConfig
from dledger.formats.state import TABLES, Source, state_version
from dledger.host import Chunk, Host, LogReader, Role
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.limits import ClientLimits
from dledger.remoting.server import Handler, RemotingServer
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings, SettingsSource
from dledger.runtime.standstill import Standstill

NodeFactory = Callable[[Env, NodeConfig, Host], Node]


class Broker:
    """The parts of a broker. It is the `dledger.host.Host` of its node; the methods of the host are below `#
    -- host`."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        make_node: NodeFactory,
        source: SettingsSource | None = None,
        tables: Sequence[Source] = TABLES,
    ) -> None:
        self.env = env
        self.settings: LiveSettings[BrokerConfig] = LiveSettings(env, SETTINGS, config, source)
        self.opened: asyncio.Event = asyncio.Event()
        """Event that is set when the log is open. Role and leader are then known as far as possible."""
        self.boot_ms: int = env.wall.now_ms()
        """When the broker was created, in ms since the epoch."""
        self.store: MessageStore = MessageStore(env, config.store_root, config.store, tables)
        node_config = replace(config.node_config(), state_version=state_version(tables))
        self.node: Node = make_node(env, node_config, self)
        self.members: GroupMembers = GroupMembers(self.node, self.settings)
        self.index: IndexService = IndexService(env, config.store_root, self.store, self.node.log)
        self.client: RemotingClient = self._make_client()
        self.standstill: Standstill = Standstill(lambda: self.config.stalled_loop_s, env.uptime_s)
        self.gate: LeaderGate = LeaderGate(self.node, self.settings, self.standstill)
        self.forwarder: Forwarder = Forwarder(self.node, self.gate, self.client)
        self.gate.forward = self.forwarder.start
        self.leadership: Leadership = Leadership(self.node, self.gate, self._make_writer)
        self.core: Core = make_core(env, self.settings, self.node, self.gate, self.store, self._totals)
        self.features: Features = make_features(self.core, self._make_shared(source))
        self.processors: tuple[Processor, ...] = tuple(
            one for feature in self.features for one in feature.processors
        )
        self.health: Health = self._make_health()
        own = [self.core.applied, self.core.committed, self.core.stats]
        self.leadership.services = LeaderServices(
            [*own, *(one for feature in self.features for one in feature.services)]
        )
        for one in declarations(type(processor) for processor in self.processors):
            self.features.auth.permissions.declare(one.code, one.may, one.does)
        self.handlers: dict[int, Handler] = handler_table(self.processors, self.gate)
        self.server: RemotingServer = self._make_server()
        self._listen()

    # -- making -----------------------------------------------------------------------------------------

    def _make_client(self) -> RemotingClient:
        changed = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        return RemotingClient(
            self.env,
            limits=ClientLimits(),
            handlers={changed: lambda _, request: self.features.clients.relay.pass_on(request)},
            on_connection_lost=lambda address: self.features.all_of("connection_lost")(address),
            tls=self.config.client_tls.client_context(),
        )

    def _make_health(self) -> Health:
        registrar = self.features.registration.registrar
        return Health(self.core, self.opened, lambda: len(self.server.connections), registrar)

    def _totals(self) -> tuple[int, int]:
        return self.leadership.messages, self.features.longpolling.pulls.messages

    def _make_shared(self, source: SettingsSource | None) -> Shared:
        return Shared(
            client=self.client,
            index=self.index,
            table=TopicTable(lambda: self.store.state, system_topics(self.config)),
            members=self.members.addresses,
            origins=Origins(self.node, self.members.older_ips),
            figures=self.runtime_info,
            health=lambda: self.health.report(),
            settings_file=source.path if source else "",
        )

    def _make_server(self) -> RemotingServer:
        auth = self.features.auth
        return RemotingServer(
            self.env,
            handlers=self.handlers,
            limits=self.config.server,
            name="remoting",
            on_close=self.core.clients.connection_closed,
            max_body=body_limits(self.processors),
            authorize=None if auth.access is None else auth.authorize,
            tls=self.config.client_tls.server(self.env.log),
            bulk=self.features.intake.plain_sends.take,
            standstill=self.standstill,
        )

    def _make_writer(self, appender: Appender) -> CommitLogWriter:
        return CommitLogWriter(
            appender,
            self.store.state,
            self.features.topic.table.system_topics,
            self.config.store_host,
            table_bytes=self.features.topic.table.size,
            puts=self.core.stats.puts,
        )

    def _listen(self) -> None:
        all_of = self.features.all_of
        self._applied, self._role_changed = all_of("applied"), all_of("role_changed")
        self.store.on_arrival = all_of("arrived")
        self.store.on_ops = all_of("operations_applied")
        self.store.on_deleted = all_of("topics_deleted")
        self.standstill.listeners.append(self._stood_still)
        self.settings.listen(lambda config: self.node.retune(config.node))

    def _stood_still(self, paused_s: float) -> None:
        self.core.background.cancel()
        self.client.drop_unsent("the event loop stood still: waiting requests may be late")

    @property
    def config(self) -> BrokerConfig:
        """The current settings."""
        return self.settings.now

    # -- host -------------------------------------------------------------------------------------------

    async def open(self, log: LogReader) -> int:
        """Load the derived state. Returns the index of the last entry in it."""
        applied = await self.store.open(log)
        self.index.opened()
        await self.features.topic.table.prepare()
        return applied

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """Return the parts of a snapshot: topics, groups, offsets and the ends of queues."""
        return self.store.snapshot()

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Replace the state by that of a snapshot. The snapshot replaced the log, or the stored state was
        older than the beginning of the log."""
        await self.store.restore(parts, index, pos)
        await self.index.restored()
        await self.features.topic.table.prepare()
        self.features.registration.registrar.changed()

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Note that retention removed the messages before `pos`."""
        await self.store.log_begins(parts)
        await self.index.log_begins()

    async def kept_from(self) -> int | None:
        """Return the log offset of the first message that waits for delivery and must be kept, or None if no
        message waits."""
        return await self.features.schedule.kept.first()

    def apply(self, chunk: Chunk) -> None:
        """Apply committed, durable entries."""
        self.store.apply(chunk)
        index = self.store.applied_index
        self.leadership.applied(index)
        self._applied(index)
        self.core.applied.on_commit(index)

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Called when the role, the term or the leader changed."""
        if role is not Role.LEADER:
            self.gate.close()
        self.forwarder.leads(self.gate.leader_address)
        self._role_changed(role, term, leader_id)
        self.opened.set()

    def on_serving(self, term: int) -> None:
        """Called when the term is open: from then on this node assigns offsets."""
        self.leadership.serving(term)

    def on_commit(self, commit_index: int) -> None:
        """Send the answers that waited until this index was committed."""
        self.core.committed.on_commit(commit_index)

    def on_stopped_serving(self, term: int) -> None:
        """Called when this node no longer serves as the leader (safety.md S24)."""
        self.leadership.ended(term)

    async def hand_over(self) -> bool:
        """Hand leadership over before a shutdown. Returns whether another node has taken it."""
        return await self.leadership.hand_over(self.config.transfer_timeout_s)

    # -- what is asked ----------------------------------------------------------------------------------

    def tasks(self) -> Iterator[tuple[str, Task]]:
        """Background tasks of the broker, in the order in which they start, without the task of the node."""
        yield "background", self.core.background.run
        yield "remoting", self.server.run
        yield "client", self.client.run
        for feature in self.features:
            yield from feature.tasks().items()
        yield "services", self.leadership.services.run

    def figures(self) -> Iterator[Figure]:
        """The figures (numbers for /metrics and runtime info) that the broker shows."""
        yield Figure(lambda: self.opened.is_set(), "1 while the log is open", "up")
        yield from server_figures(self.server, self.standstill)
        yield from leader_figures(self.core, self.leadership, self.forwarder)
        for feature in self.features:
            yield from feature.figures()

    def runtime_info(self) -> dict[str, str]:
        """The content of 28 GET_BROKER_RUNTIME_INFO, except what must be read from the device."""
        return runtime_info(self.core, self.boot_ms) | {
            figure.key: str(figure.read()) for figure in self.figures() if figure.key
        }
