"""One broker: its parts put together, and the host of its replicated log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from dledger.broker.auditing import AuditJobs
from dledger.broker.background import Background
from dledger.broker.clients import Clients
from dledger.broker.commit_log import Sealer
from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.offsets import PendingOffsets
from dledger.broker.pending_responses import Completions
from dledger.broker.ports import Node
from dledger.broker.processors.audit import AuditProcessor
from dledger.broker.processors.client_manager import ClientProcessor
from dledger.broker.processors.offsets import OffsetProcessor
from dledger.broker.processors.pull import PullProcessor
from dledger.broker.processors.send import SendProcessor
from dledger.broker.processors.settings import SettingsProcessor
from dledger.broker.processors.topic_admin import AdminProcessor
from dledger.broker.registration import Registrar
from dledger.broker.shipping import Shipper, ShipSettings
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.broker.topic_creation import Catalog
from dledger.broker.topic_table import TopicTable
from dledger.broker.topics import system_topics
from dledger.config import NodeConfig
from dledger.host import Chunk, Host, LogReader, Role
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import VERSION
from dledger.remoting.limits import ClientLimits
from dledger.remoting.server import Handler, RemotingServer
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings, SettingsSource

NodeFactory = Callable[[Env, NodeConfig, Host], Node]


class Broker:
    """The parts of a broker. Is the `dledger.host.Host` of its node: the calls below `# -- host`."""

    def __init__(
        self, env: Env, config: BrokerConfig, make_node: NodeFactory, source: SettingsSource | None = None
    ) -> None:
        self.env = env
        self.settings = settings = LiveSettings(env, SETTINGS, config, source)
        self.opened = asyncio.Event()
        """The log is open: role and leader are known as far as they can be."""
        self.completions = Completions()
        """Answers that wait for the commit."""
        self.applied = Completions()
        """Answers that wait until the entry is applied here."""
        self.store = MessageStore(env, config.store_root, config.store)
        self.node = make_node(env, config.node_config(), self)
        self.gate = LeaderGate(self.node, settings)
        self.background = Background()
        self.audit_jobs = AuditJobs(env, config.audit_bytes_per_s)
        ship = ShipSettings(
            config.digest_ship_path,
            config.dledger_group or config.broker_name,
            config.digest_ship_interval_ms,
            config.digest_rescan_hours,
        )
        self.shipper = Shipper(env, ship, config.store_root, config.self_id, self.audit_jobs.pace)
        self.clients = Clients()
        self.client = RemotingClient(
            env, limits=ClientLimits(), on_connection_lost=lambda address: self.registrar.lost(address)
        )
        self._system_topics = system_topics(config)
        self._sealer: Sealer | None = None
        catalog = Catalog(settings)
        reader = Reader(env, self.store, self.node.log)
        self.pending = PendingOffsets(self.store, self.completions)
        self.topic_table = TopicTable(lambda: self.store.state, self._system_topics)
        self.registrar = Registrar(env, settings, self.node, self.topic_table, self.client)
        self.sends = SendProcessor(env, settings, self.gate, catalog, self.completions)
        self.pulls = PullProcessor(
            settings, self.gate, catalog, self.store, self.clients, self.pending, self.background, reader
        )
        self._client_processor = ClientProcessor(self.gate, catalog, self.store, self.clients)
        offsets = OffsetProcessor(self.gate, catalog, self.store, self.pending, self.background, reader)
        self.settings_processor = SettingsProcessor(settings, env.log.child("settings"))
        admin = AdminProcessor(
            self.gate,
            catalog,
            self.store,
            self.applied,
            self.background,
            self.topic_table,
            self.registrar,
            self.runtime_info,
        )
        self.handlers: dict[int, Handler] = {
            **self.sends.handlers(),
            **self.pulls.handlers(),
            **self._client_processor.handlers(),
            **offsets.handlers(),
            **admin.handlers(),
            **self.settings_processor.handlers(),
            **AuditProcessor(config, self.audit_jobs, self.members).handlers(),
        }
        self.server = RemotingServer(
            env,
            handlers=self.handlers,
            limits=config.server,
            name="remoting",
            on_close=self.clients.connection_closed,
        )
        self.store.on_arrival = self.pulls.arrived
        self.store.on_ops = self._ops_applied
        self.sealed_before = 0
        """Messages sealed in earlier leaderships."""
        settings.listen(self._settings_changed)

    @property
    def config(self) -> BrokerConfig:
        """As it counts now."""
        return self.settings.now

    # -- host -----------------------------------------------------------------------------------------

    async def open(self, log: LogReader) -> int:
        """Load derived state."""
        applied = await self.store.open(log)
        await self.topic_table.prepare()
        return applied

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """Topics, groups, offsets, ends of queues."""
        return self.store.snapshot()

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """The log was replaced by a snapshot, or nothing else reaches back to its beginning."""
        await self.store.restore(parts, index, pos)
        await self.topic_table.prepare()
        self.registrar.changed()

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Retention: messages before `pos` are gone."""
        await self.store.log_begins(parts)

    def apply(self, chunk: Chunk) -> None:
        """Committed, durable entries."""
        self.store.apply(chunk)
        self.pending.applied(self.store.applied_index)
        self.applied.on_commit(self.store.applied_index)

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Role, term or leader changed."""
        if leader_id is not None:
            self.registrar.leader_known(term)
            self.registrar.changed()
        if role is not Role.LEADER:
            self.gate.close()
        self.opened.set()

    def on_serving(self, term: int) -> None:
        """The term is open: from here on this node assigns offsets."""
        appender = self.node.appender
        if appender is None:
            return
        if self._sealer is None or self._sealer.term != term:
            # After a hand-over that did not work the same leadership goes on, with its pending offsets.
            self._sealer = Sealer(
                appender,
                self.store.state,
                self._system_topics,
                self.config.store_host,
                table_bytes=self.topic_table.size,
            )
        self.registrar.leader_known(term)
        self.gate.open(self._sealer)
        self._client_processor.create_known_groups(self._sealer)
        self.registrar.changed()

    def on_commit(self, commit_index: int) -> None:
        """Answer what waited for this."""
        self.completions.on_commit(commit_index)

    def on_stopped_serving(self, term: int) -> None:
        """Leadership ended (safety.md S24)."""
        if self._sealer is not None:
            self.sealed_before += self._sealer.messages
            self._sealer = None
        self.gate.close()
        reason = f"leadership of term {term} ended before the entry was committed"
        self.completions.fail_all(reason)
        self.applied.fail_all(reason)
        for connection, request, _ in self.pending.take_waiters():
            self.gate.refuse(connection, request)
        self.pulls.release()
        self.registrar.changed()

    # -- life -----------------------------------------------------------------------------------------

    async def run_offsets(self) -> None:
        """Consumer offsets into the log, until cancelled (safety.md S28)."""
        while True:
            await asyncio.sleep(self.config.offset_flush_s)
            if self.gate.sealer is not None:
                self.pending.flush(self.gate.sealer)

    async def run_client_sweep(self) -> None:
        """Forget clients that fell silent, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.client_sweep_s)
            self.clients.expire(loop.time() - self.config.client_expiry_s)

    async def hand_over(self) -> bool:
        """Give leadership away before a shutdown. True when another node has it."""
        if self.gate.sealer is None:
            return False
        self.pending.flush(self.gate.sealer)
        self.gate.pause()
        moved = await self.node.step_aside(timeout_s=self.config.transfer_timeout_s)
        if self.node.serving and self.gate.sealer is None and self._sealer is not None:
            self.gate.open(self._sealer)  # nobody was there to take over
        return moved

    # -- figures --------------------------------------------------------------------------------------

    @property
    def messages_in(self) -> int:
        """Messages sealed since start."""
        return self.sealed_before + (0 if self._sealer is None else self._sealer.messages)

    def members(self) -> dict[str, str]:
        """Members of the group: node id -> where clients reach it, or empty when this node does not know."""
        status = self.node.status()
        nodes = [*_texts(status.get("voters")), *_texts(status.get("learners"))] or list(self.config.peers)
        known = {node: self.node.peer_meta(node).get("client_addr", "") for node in nodes}
        return {**known, self.config.self_id: self.config.client_addr}

    def runtime_info(self) -> dict[str, str]:
        """28 GET_BROKER_RUNTIME_INFO."""
        status = self.node.status()
        stats = self.server.stats
        return {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": "V5_3_3",
            "brokerActive": "true" if self.node.serving else "false",
            "brokerRole": "SYNC_MASTER" if self.node.serving else "SLAVE",
            "commitLogMinOffset": str(self.node.log.begin_pos),
            "commitLogMaxOffset": str(status.get("end_pos", 0)),
            "dispatchBehindIndex": str(_whole(status.get("committed_index")) - self.store.applied_index),
            "msgPutTotalTodayNow": str(self.messages_in),
            "msgGetTotalTodayNow": str(self.pulls.messages),
            "dispatchedMessages": str(self.store.dispatcher.messages),
            "heldPulls": str(self.pulls.held.count),
            "consumerGroups": str(len(self.clients.consumers)),
            "remotingRequests": str(stats.requests),
            "raftTerm": str(status.get("term", 0)),
            "raftRole": str(status.get("role", "")),
        }

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
        if "topic" in ops:
            self.registrar.changed()


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
