"""The NameServer as a program: request handlers over the route tables (DefaultRequestProcessor)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dledger.namesrv.changes import Change, Changes
from dledger.namesrv.config import SETTINGS, NamesrvConfig
from dledger.namesrv.kv import ORDER_TOPICS, KvTable
from dledger.namesrv.replicated_kv import ReplicatedKv
from dledger.namesrv.routes import DEFAULT_TIMEOUT_S, BrokerIdentity, Routes
from dledger.remoting.bodies import BrokerMemberGroupBody, TopicList, TopicRoute, decode_body
from dledger.remoting.bodies import KvTable as KvBody
from dledger.remoting.codes import VERSION_STRICT_JSON, RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import (
    BrokerHeartbeatHeader,
    BrokerIdentityHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicInNamesrvHeader,
    GetRouteHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
    RegisterBrokerHeader,
    TopicHeader,
)
from dledger.remoting.limits import MAX_FRAME_SIZE
from dledger.remoting.registration import KnownTopics, decode_data_version, registration_in_pieces
from dledger.remoting.server import Connection, Handler, RemotingServer
from dledger.remoting.settings_requests import SettingsRequests
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings, SettingsSource

if TYPE_CHECKING:
    from dledger.web.port import HttpPort

FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

CONTROLLER_REQUESTS = (
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.UPDATE_CONTROLLER_CONFIG,
    RequestCode.GET_CONTROLLER_CONFIG,
    RequestCode.CLEAN_BROKER_DATA,
)
"""Requests to a controller that are refused with the reason why they cannot be executed."""
MAX_CACHED_ROUTES = 10_000
"""Largest number of encoded routes that are kept until the tables change. The routes of further topics are
encoded for each request."""
MAX_REGISTRATION = MAX_FRAME_SIZE
"""Limit, in bytes, of a registration, which may have the whole table of topics of a broker group."""
MAX_KNOWN_BYTES = 64 * 1024 * 1024
"""Limit, in bytes, of the encoded topic tables that are kept for the next registrations of their broker
groups. When all tables together are larger, the least recently used table is dropped."""


_REGISTERS = "registers"
"""Name of a connection's attribute, which is set if a broker has registered over the connection."""


class NameServer:
    """One NameServer: its tables and its handlers. `main` runs it."""

    def __init__(self, env: Env, config: NamesrvConfig, source: SettingsSource | None = None) -> None:
        self.settings: LiveSettings[NamesrvConfig] = LiveSettings(env, SETTINGS, config, source)
        self.routes: Routes = Routes()
        self._changes = Changes()
        self.kv: ReplicatedKv | KvTable = (
            ReplicatedKv(env, config.kv_path, config.kv) if config.kv.peers else KvTable(env, config.kv_path)
        )
        self._log = env.log.child("namesrv")
        self.settings_requests: SettingsRequests = SettingsRequests(self.settings, self._log)
        self._encoded: dict[tuple[str, bool], bytes] = {}
        self._encoded_revision = 0
        self._known: dict[str, KnownTopics] = {}
        """Maps a broker name to its topic table; the most recently used table comes last."""
        self._known_bytes = 0
        self.server: RemotingServer = RemotingServer(
            env,
            handlers=self._handlers(),
            limits=config.server,
            name="server",
            on_close=self._connection_closed,
            max_body={RequestCode.REGISTER_BROKER: MAX_REGISTRATION},
            tls=config.tls.server(env.log),
        )

    def _handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self._changes.handler(self._register),
            RequestCode.UNREGISTER_BROKER: self._changes.handler(self._unregister),
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._changes.handler(self._delete_topic),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._changes.handler(self._register_topic),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._changes.handler(self._wipe_write_perm),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._changes.handler(self._add_write_perm),
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_namespace,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.settings_requests.update,
            RequestCode.GET_NAMESRV_CONFIG: self.settings_requests.show,
            **dict.fromkeys(CONTROLLER_REQUESTS, self._no_controller),
        }

    def _no_controller(self, connection: Connection, request: Request) -> None:
        """Refuse requests to a controller. RocketMQ 5 can run one in its NameServers; this project does
        not."""
        raise RemotingError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "this NameServer has no controller: the brokers of a group elect their leader among "
            "themselves, by Raft (`dledger transfer` moves leadership)",
        )

    # --- brokers --------------------------------------------------------------------------------------

    def _register(self, connection: Connection, request: Request) -> Change:
        header = request.header(RegisterBrokerHeader)
        if connection.closed:
            return  # it waited for its turn, and its end was already handled
        connection.attributes[_REGISTERS] = True
        known = self._forget(header.brokerName) or KnownTopics()
        registration = yield from registration_in_pieces(
            request.body, compressed=header.compressed, crc=header.bodyCrc32, known=known
        )
        identity = BrokerIdentity(header.clusterName, header.brokerName, header.brokerId, header.brokerAddr)
        timeout_ms = header.heartbeatTimeoutMillis
        revision = self.routes.revision
        result = yield from self.routes.register(
            self.server.loop.time(),
            identity,
            registration,
            channel=connection.serial,
            ha_address=header.haServerAddr,
            timeout_s=timeout_ms / 1000 if timeout_ms else DEFAULT_TIMEOUT_S,
            enable_acting_master=header.enableActingMaster,
            whole_table=header.wholeTable,
            zone=header.zoneName or None,
        )
        self._remember(header.brokerName, known)
        if self.routes.revision != revision:
            version = registration.data_version
            self._log.info(
                "broker registered",
                broker=identity.name,
                id=identity.id,
                address=identity.address,
                topics=len(registration.topics),
                term=version.stateVersion,
                counter=version.counter,
            )
        ext = {}
        if result.master_address is not None:
            ext = {"masterAddr": result.master_address, "haServerAddr": result.ha_address or ""}
        orders = self.kv.namespace(ORDER_TOPICS) if self.settings.now.return_orders else None
        body = KvBody(dict(orders)).encode() if orders else b""
        connection.respond(request, ResponseCode.SUCCESS, ext=ext, body=body)

    def _forget(self, name: str) -> KnownTopics | None:
        known = self._known.pop(name, None)
        if known is not None:
            self._known_bytes -= known.size
        return known

    def _remember(self, name: str, known: KnownTopics) -> None:
        """Keep a topic table for the next registration of this group. The least recently used tables are
        dropped first."""
        self._known[name] = known
        self._known_bytes += known.size
        if len(self._known) > self.routes.group_count:
            for gone in [other for other in self._known if not self.routes.has_group(other)]:
                self._forget(gone)
        while self._known_bytes > MAX_KNOWN_BYTES:
            self._forget(next(iter(self._known)))

    def _unregister(self, connection: Connection, request: Request) -> Change:
        header = request.header(BrokerIdentityHeader)
        identity = _identity(header)
        if (yield from self.routes.unregister(identity)):
            self._log.info("broker unregistered", broker=identity.name, address=identity.address)
        connection.respond(request, ResponseCode.SUCCESS)

    def _heartbeat(self, connection: Connection, request: Request) -> None:
        header = request.header(BrokerHeartbeatHeader)
        timeout_ms = header.heartbeatTimeoutMills
        timeout_s = timeout_ms / 1000 if timeout_ms else None
        self.routes.heartbeat(self.server.loop.time(), header.brokerAddr, timeout_s)
        connection.respond(request, ResponseCode.SUCCESS)

    def _query_data_version(self, connection: Connection, request: Request) -> None:
        identity = _identity(request.header(BrokerIdentityHeader))
        theirs = decode_data_version(request.body)
        ours = self.routes.data_version(identity)
        changed = ours != theirs
        if not changed:
            self.routes.heartbeat(self.server.loop.time(), identity.address)
        connection.respond(
            request,
            ResponseCode.SUCCESS,
            ext={"changed": "true" if changed else "false"},
            body=b"" if ours is None else ours.encode(),
        )

    def _wipe_write_perm(self, connection: Connection, request: Request) -> Change:
        name = request.header(BrokerNameHeader).brokerName
        count = yield from self.routes.wipe_write_perm(name)
        self._log.info("write permission wiped", broker=name, topics=count, peer=connection.peer)
        connection.respond(request, ResponseCode.SUCCESS, ext={"wipeTopicCount": str(count)})

    def _add_write_perm(self, connection: Connection, request: Request) -> Change:
        name = request.header(BrokerNameHeader).brokerName
        count = yield from self.routes.add_write_perm(name)
        self._log.info("write permission added", broker=name, topics=count, peer=connection.peer)
        connection.respond(request, ResponseCode.SUCCESS, ext={"addTopicCount": str(count)})

    # --- questions ------------------------------------------------------------------------------------

    def _route(self, connection: Connection, request: Request) -> None:
        header = request.header(GetRouteHeader)
        strict = header.acceptStandardJsonOnly or request.version >= VERSION_STRICT_JSON
        zone = header.zoneName or "" if (header.zoneMode or "").lower() == "true" else ""
        body = self._encoded_route(header.topic, strict, zone.strip())
        if body is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            connection.respond(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        else:
            connection.respond(request, ResponseCode.SUCCESS, body=body)

    def _encoded_route(self, topic: str, strict: bool, zone: str) -> bytes | None:
        """Return the encoded route. With `strict` it is strict JSON. Clients before 4.9.4 get fastjson's
        form, because some of them cannot read strict JSON."""
        order = self.kv.get(ORDER_TOPICS, topic) if self.settings.now.order_messages else None
        kept = order is None and not zone
        if self._encoded_revision != self.routes.revision:
            self._encoded.clear()
            self._encoded_revision = self.routes.revision
        body = self._encoded.get((topic, strict)) if kept else None
        if body is None and (route := self.routes.route(topic, order)) is not None:
            if zone:
                route = route.in_zone(zone)
            body = route.encode() if strict else route.encode_relaxed()
            if kept and len(self._encoded) < MAX_CACHED_ROUTES:
                self._encoded[topic, strict] = body
        return body

    def _cluster_info(self, connection: Connection, request: Request) -> None:
        connection.respond(request, ResponseCode.SUCCESS, body=self.routes.cluster_info().encode())

    def _member_group(self, connection: Connection, request: Request) -> None:
        header = request.header(BrokerMemberGroupHeader)
        group = self.routes.member_group(header.clusterName, header.brokerName)
        if group is None:
            remark = f"no broker group {header.brokerName} in cluster {header.clusterName}"
            raise RemotingError(ResponseCode.SYSTEM_ERROR, remark)
        connection.respond(request, ResponseCode.SUCCESS, body=BrokerMemberGroupBody(group).encode())

    def _all_topics(self, connection: Connection, request: Request) -> None:
        connection.respond(request, ResponseCode.SUCCESS, body=TopicList(self.routes.topics()).encode())

    def _topics_of_cluster(self, connection: Connection, request: Request) -> None:
        topics = self.routes.topics_of_cluster(request.header(ClusterHeader).cluster)
        connection.respond(request, ResponseCode.SUCCESS, body=TopicList(topics).encode())

    def _system_topics(self, connection: Connection, request: Request) -> None:
        connection.respond(
            request, ResponseCode.SUCCESS, body=TopicList(*self.routes.system_topics()).encode()
        )

    def _delete_topic(self, connection: Connection, request: Request) -> Change:
        header = request.header(DeleteTopicInNamesrvHeader)
        if self.routes.delete_topic(header.topic, header.clusterName or None):
            self._log.info("topic deleted", topic=header.topic, cluster=header.clusterName)
        connection.respond(request, ResponseCode.SUCCESS)
        yield from ()

    def _register_topic(self, connection: Connection, request: Request) -> Change:
        topic = request.header(TopicHeader).topic
        route = decode_body(request.body, TopicRoute, "route")
        self.routes.register_topic(topic, route.queueDatas)
        connection.respond(request, ResponseCode.SUCCESS)
        yield from ()

    # --- key-value table ------------------------------------------------------------------------------

    def _put_kv(self, connection: Connection, request: Request) -> None:
        header = request.header(PutKvConfigHeader)
        self.kv.change(header.namespace, header.key, header.value, _answer(connection, request))

    def _delete_kv(self, connection: Connection, request: Request) -> None:
        header = request.header(KvConfigHeader)
        self.kv.change(header.namespace, header.key, None, _answer(connection, request))

    def _get_kv(self, connection: Connection, request: Request) -> None:
        header = request.header(KvConfigHeader)
        self._check_kv()
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            raise RemotingError(ResponseCode.QUERY_NOT_FOUND, remark)
        connection.respond(request, ResponseCode.SUCCESS, ext={"value": value})

    def _kv_namespace(self, connection: Connection, request: Request) -> None:
        namespace = request.header(KvNamespaceHeader).namespace
        self._check_kv()
        entries = self.kv.namespace(namespace)
        if entries is None:
            remark = f"No config item, Namespace: {namespace}"
            raise RemotingError(ResponseCode.QUERY_NOT_FOUND, remark)
        connection.respond(request, ResponseCode.SUCCESS, body=KvBody(dict(entries)).encode())

    def _check_kv(self) -> None:
        if self.kv.problem:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, self.kv.problem)

    # --- life -----------------------------------------------------------------------------------------

    def _connection_closed(self, connection: Connection) -> None:
        if _REGISTERS in connection.attributes:  # the end of a client's connection changes nothing
            self._changes.event(partial(self._channel_closed, connection.serial))

    def _channel_closed(self, channel: int) -> Change:
        for identity in (yield from self.routes.channel_closed(channel)):
            self._log.warning(
                "broker removed: its connection was closed",
                broker=identity.name,
                id=identity.id,
                address=identity.address,
            )

    async def expire(self) -> None:
        """Remove brokers that became silent and close their connections, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.now.scan_interval_ms / 1000)
            self._changes.event(self._remove_silent)

    def _remove_silent(self) -> Change:
        for broker in (yield from self.routes.expire(self.server.loop.time())):
            self._log.warning(
                "broker removed: it sent no heartbeat",
                broker=broker.identity.name,
                id=broker.identity.id,
                address=broker.identity.address,
                timeout_s=broker.timeout_s,
            )
            for connection in self.server.connections:
                if connection.serial == broker.channel:
                    connection.close()


def _identity(header: BrokerIdentityHeader) -> BrokerIdentity:
    return BrokerIdentity(header.clusterName, header.brokerName, header.brokerId, header.brokerAddr)


def _answer(connection: Connection, request: Request) -> Callable[[RemotingError | None], None]:
    def done(error: RemotingError | None) -> None:
        if error is None:
            connection.respond(request, ResponseCode.SUCCESS)
        else:
            connection.respond(request, error.code or ResponseCode.SYSTEM_ERROR, remark=error.remark)

    return done


async def _cancel_when(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    await stop.wait()
    for task in tasks:
        task.cancel()


async def main(
    env: Env,
    config: NamesrvConfig,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[NameServer], None] | None = None,
    source: SettingsSource | None = None,
) -> None:
    """Run a NameServer until `stop` is set or the call is cancelled. Raises OSError if it cannot listen."""
    nameserver = NameServer(env, config, source)
    http = _make_http(nameserver, config)
    await nameserver.kv.load()
    await nameserver.server.start(config.bind_address, config.listen_port)
    try:
        if http is not None:
            await http.start(config.http_address, config.http_port)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(nameserver.server.run(), name="namesrv idle sweep"),
                tasks.create_task(nameserver.expire(), name="namesrv expiry"),
                tasks.create_task(nameserver.kv.run(), name="namesrv kv writer"),
                tasks.create_task(nameserver.settings_requests.run(), name="namesrv settings"),
            ]
            if stop is not None:
                tasks.create_task(_cancel_when(stop, background), name="namesrv stop")
            if on_ready is not None:
                on_ready(nameserver)
    finally:
        if http is not None:
            await http.close()
        await nameserver.server.close()


def _make_http(nameserver: NameServer, config: NamesrvConfig) -> HttpPort | None:
    if not config.http_port:
        return None
    from dledger.namesrv.http_server import HttpServer  # load aiohttp only if it is needed

    return HttpServer(nameserver).port
