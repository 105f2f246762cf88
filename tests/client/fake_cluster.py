"""A scripted NameServer and broker group: enough of the protocol for client tests, no log, no Raft.

All brokers share one store, as replicas that are never behind. `lead(n)` makes broker n the leader (and
tells the NameServer unless asked not to), `kill(n)` closes its port and its connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace

from dledger.client import AsyncProducer
from dledger.formats.message_ids import encode_message_id, pack_ipv4_host, tags_code
from dledger.formats.properties import MAX_PROPERTIES_SIZE, decode_properties
from dledger.formats.record import encode_record
from dledger.remoting.bodies import (
    BrokerData,
    ClientConnection,
    ClusterInfo,
    ConsumerConnections,
    ConsumerIdList,
    KvTable,
    LockAnswer,
    LockRequest,
    QueueData,
    Subscription,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    TopicRoute,
    decode_body,
    decode_heartbeat,
    subscription_codes,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import (
    ConsumerGroupHeader,
    ConsumerSendMsgBackHeader,
    CreateTopicHeader,
    EndTransactionHeader,
    GetRouteHeader,
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendMessageV2Header,
    TopicHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)
from dledger.remoting.limits import ServerLimits
from dledger.remoting.messages import decode_batch
from dledger.remoting.registration import TopicConfig, TopicTable
from dledger.remoting.server import Connection, RemotingServer
from dledger.runtime import Env
from dledger.runtime.env import production_env
from dledger.runtime.remoting_tls import ServerTls

GROUP = "broker-a"
STORED_AT_MS = 1_700_000_000_000
"""Store time of the first message of each queue; each further one is stored 1 ms later."""
STORE_HOST = pack_ipv4_host("127.0.0.1", 10911)


class Stored:
    """One message of the fake store."""

    def __init__(
        self, topic: str, queue_id: int, offset: int, header: SendMessageV2Header, body: bytes, text: str
    ):
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.body = body
        self.properties = decode_properties(text)
        self.header = header
        self.text = text

    def record(self) -> bytes:
        return encode_record(
            topic=self.topic,
            body=self.body,
            properties=self.text,
            queue_id=self.queue_id,
            queue_offset=self.offset,
            physical_offset=self.offset * 1000 + self.queue_id,
            sys_flag=self.header.sysFlag,
            flag=self.header.flag,
            born_timestamp=self.header.bornTimestamp,
            store_timestamp=STORED_AT_MS + self.offset,
            store_host=STORE_HOST,
            born_host=STORE_HOST,
        )


class FakeBroker:
    """One broker process: a port, connections, held pulls."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.held: list[tuple[Connection, Request, PullMessageHeader]] = []
        self.heartbeats: list[str] = []
        self.warning: str | None = None
        """Remark of the answers to heartbeats."""
        self.refusal: tuple[int, str] | None = None
        """Code and remark with which heartbeats are refused."""
        self.clients: dict[str, dict[str, Connection]] = {}
        self.wanted: dict[str, list[str]] = {}
        """Topics that the last heartbeat of a consumer group named."""
        self.requests: list[int] = []
        """Codes, as they came."""
        self.alive = False
        self.hints = True
        self.silent = False
        self.index = True
        """Whether it says that it keeps an index of keys."""
        self.shows_settings = True
        self.oldest_ms: int | None = None
        """Store time of the oldest entry of its log; None: it does not say."""
        self.port = 0
        self.server: RemotingServer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        handlers = {
            RequestCode.SEND_MESSAGE_V2: self._leading(self._send),
            RequestCode.SEND_BATCH_MESSAGE: self._leading(self._send),
            RequestCode.PULL_MESSAGE: self._leading(self._pull),
            RequestCode.GET_MAX_OFFSET: self._leading(self._max_offset),
            RequestCode.GET_MIN_OFFSET: self._leading(self._min_offset),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._leading(self._search),
            RequestCode.QUERY_CONSUMER_OFFSET: self._leading(self._query_offset),
            RequestCode.UPDATE_CONSUMER_OFFSET: self._leading(self._update_offset),
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._leading(self._create_topic),
            RequestCode.DELETE_TOPIC_IN_BROKER: self._leading(self._delete_topic),
            RequestCode.CONSUMER_SEND_MSG_BACK: self._leading(self._send_back),
            RequestCode.END_TRANSACTION: self._leading(self._end),
            RequestCode.LOCK_BATCH_MQ: self._leading(self._lock),
            RequestCode.UNLOCK_BATCH_MQ: self._leading(self._unlock),
            RequestCode.RECALL_MESSAGE: self._leading(self._done),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._leading(self._done),
            RequestCode.ACK_MESSAGE: self._leading(self._done),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._leading(self._done),
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumers,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_TOPIC_CONFIG: self._leading(self._topic_config),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
        }
        self.server = RemotingServer(
            self.cluster.env,
            handlers=handlers,
            limits=ServerLimits(close_grace_s=0.05),
            name=f"fake-{self.number}",
            on_close=self._closed,
            tls=self.cluster.tls_of_brokers,
        )
        await self.server.start("127.0.0.1", self.port)
        self.port = self.server.addresses[0][1]
        self.alive = True

    async def kill(self) -> None:
        self.alive = False
        self.held.clear()
        for connection in self.server.connections:
            connection.abort()
        await self.server.close()

    def _leading(self, serve: Callable[[Connection, Request], None]) -> Callable[[Connection, Request], None]:
        def handler(connection: Connection, request: Request) -> None:
            self.requests.append(request.code)
            if self.silent:
                return
            script = self.cluster.script
            if script is not None and script(self, connection, request):
                return
            if self.cluster.leader != self.number:
                leader = self.cluster.leader
                hint = (
                    {"leaderAddr": self.cluster.brokers[leader].address} if leader >= 0 and self.hints else {}
                )
                connection.respond(
                    request, ResponseCode.SERVICE_NOT_AVAILABLE, ext=hint, remark="this node does not lead"
                )
            else:
                serve(connection, request)

        return handler

    def _send(self, connection: Connection, request: Request) -> None:
        header = request.header(SendMessageV2Header)
        if header.topic not in self.cluster.topics:
            if self.cluster.default_queues == 0:
                connection.respond(request, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
                return
            self.cluster.topics[header.topic] = header.defaultTopicQueueNums
        connection.respond(request, 0, ext=self.cluster.store(header, request.body))
        self._wake(header.topic, header.queueId)

    def _wake(self, topic: str, queue_id: int) -> None:
        ready = [entry for entry in self.held if (entry[2].topic, entry[2].queueId) == (topic, queue_id)]
        self.held = [entry for entry in self.held if entry not in ready]
        for connection, request, _ in ready:
            self._pull(connection, request)

    def _pull(self, connection: Connection, request: Request) -> None:
        header = request.header(PullMessageHeader)
        queue = self.cluster.queue(header.topic, header.queueId)
        lowest = self.cluster.lowest.get((header.topic, header.queueId), 0)
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(header.queueOffset),
            "minOffset": str(lowest),
            "maxOffset": str(len(queue)),
        }
        if header.queueOffset < lowest:
            ext["nextBeginOffset"] = str(lowest)
            connection.respond(request, ResponseCode.PULL_OFFSET_MOVED, ext=ext, remark="OFFSET_TOO_SMALL")
            return
        if header.queueOffset > len(queue):
            ext["nextBeginOffset"] = str(len(queue))
            connection.respond(request, ResponseCode.PULL_OFFSET_MOVED, ext=ext)
            return
        found = queue[header.queueOffset : header.queueOffset + header.maxMsgNums]
        if not found:
            self.held.append((connection, request, header))
            return
        ext["nextBeginOffset"] = str(header.queueOffset + len(found))
        _, codes = subscription_codes(header.subscription)
        wanted = [item for item in found if not codes or tags_code(item.properties.get("TAGS")) in codes]
        code = ResponseCode.SUCCESS if wanted else ResponseCode.PULL_RETRY_IMMEDIATELY
        connection.respond(request, code, ext=ext, body=b"".join(item.record() for item in wanted))

    def _max_offset(self, connection: Connection, request: Request) -> None:
        header = request.header(QueueHeader)
        queue = self.cluster.queue(header.topic, header.queueId)
        connection.respond(request, 0, ext={"offset": str(len(queue))})

    def _min_offset(self, connection: Connection, request: Request) -> None:
        header = request.header(QueueHeader)
        lowest = self.cluster.lowest.get((header.topic, header.queueId), 0)
        connection.respond(request, 0, ext={"offset": str(lowest)})

    def _search(self, connection: Connection, request: Request) -> None:
        header = request.header(SearchOffsetHeader)
        queue = self.cluster.queue(header.topic, header.queueId)
        later = [item.offset for item in queue if STORED_AT_MS + item.offset >= header.timestamp]
        connection.respond(request, 0, ext={"offset": str(later[0] if later else len(queue))})

    def _query_offset(self, connection: Connection, request: Request) -> None:
        header = request.header(QueryConsumerOffsetHeader)
        offset = self.cluster.offsets.get((header.consumerGroup, header.topic, header.queueId))
        ext = {"membership": "1.7"} if header.askMembership else {}
        if offset is None and header.setZeroIfNotFound is not False and not self.cluster.lowest:
            offset = 0  # as brokers answer while they have the queue's first message in memory
        if offset is None:
            connection.respond(request, ResponseCode.QUERY_NOT_FOUND, ext=ext, remark="no offset")
        else:
            connection.respond(request, 0, ext={"offset": str(offset), **ext})

    def _update_offset(self, connection: Connection, request: Request) -> None:
        header = request.header(UpdateConsumerOffsetHeader)
        self.cluster.commits.append(header)
        key = header.consumerGroup, header.topic, header.queueId
        back = header.setsBack is not False
        if back or header.commitOffset > self.cluster.offsets.get(key, -1):
            self.cluster.offsets[key] = header.commitOffset
        connection.respond(request, 0)

    def _create_topic(self, connection: Connection, request: Request) -> None:
        header = request.header(CreateTopicHeader)
        if "topicFilterType" not in request.ext():  # as Apache's brokers answer
            connection.respond(
                request, ResponseCode.SYSTEM_ERROR, remark="topicFilterType = [null] value invalid"
            )
            return
        self.cluster.topics[header.topic] = header.writeQueueNums
        connection.respond(request, 0)

    def _delete_topic(self, connection: Connection, request: Request) -> None:
        self.cluster.topics.pop(request.header(TopicHeader).topic, None)
        connection.respond(request, 0)

    def _send_back(self, connection: Connection, request: Request) -> None:
        if not self.cluster.takes_back:
            connection.respond(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")
            return
        self.cluster.sent_back.append(request.header(ConsumerSendMsgBackHeader))
        connection.respond(request, 0)

    def _done(self, connection: Connection, request: Request) -> None:
        connection.respond(request, 0)

    def _end(self, connection: Connection, request: Request) -> None:
        self.cluster.ends.append(request.header(EndTransactionHeader))
        connection.respond(request, 0)

    def ask_for(self, half: Stored) -> None:
        """Ask a client how a transaction ended: the first that is connected."""
        position = half.offset * 1000 + half.queue_id
        fields = {"tranStateTableOffset": str(half.offset), "commitLogOffset": str(position), "topic": "HALF"}
        connection = next(iter(self.server.connections))
        connection.send_oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, half.record())

    def _lock(self, connection: Connection, request: Request) -> None:
        asked = decode_body(request.body, LockRequest)
        locks = self.cluster.locks
        own = []
        for queue in asked.mqSet:
            key = (asked.consumerGroup, queue.topic, queue.queueId)
            if locks.setdefault(key, asked.clientId) == asked.clientId:
                own.append(queue)
        connection.respond(request, 0, body=LockAnswer(own).encode())

    def _unlock(self, connection: Connection, request: Request) -> None:
        asked = decode_body(request.body, LockRequest)
        for queue in asked.mqSet:
            key = (asked.consumerGroup, queue.topic, queue.queueId)
            if self.cluster.locks.get(key) == asked.clientId:
                del self.cluster.locks[key]
        connection.respond(request, 0)

    def _runtime_info(self, connection: Connection, request: Request) -> None:
        figures = {"raftTerm": "1"} if self.cluster.ours else {"brokerVersionDesc": "V5_3_3"}
        if self.oldest_ms is not None:
            figures["earliestMessageTimeStamp"] = str(self.oldest_ms)
        connection.respond(request, 0, body=KvTable(figures).encode())

    def _config(self, connection: Connection, request: Request) -> None:
        if not self.shows_settings:
            connection.respond(request, ResponseCode.NO_PERMISSION, remark="not for you")
            return
        text = f"brokerName={GROUP}\nmessageIndexEnable={str(self.index).lower()}\n"
        if self.cluster.ours:
            text += f"dLegerSelfId=n{self.number}\nidempotencyKeys=true\n"
        connection.respond(request, 0, body=text.encode())

    def _all_topics(self, connection: Connection, request: Request) -> None:
        self.requests.append(request.code)
        topics = {name: TopicConfig(name, count, count) for name, count in self.cluster.topics.items()}
        ext = {"totalTopicNum": str(len(topics) + self.cluster.kept_back)}
        connection.respond(request, 0, ext=ext, body=TopicTable(topics).encode())

    def _topic_config(self, connection: Connection, request: Request) -> None:
        topic = request.header(TopicHeader).topic
        if topic not in self.cluster.topics:
            connection.respond(request, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
            return
        life = {"life": f"C.{self.cluster.births.get(topic, 0)}"} if self.cluster.ours else {}
        connection.respond(request, 0, ext=life)

    def _all_groups(self, connection: Connection, request: Request) -> None:
        groups = {name: SubscriptionGroupConfig(name, retryMaxTimes=5) for name in self.cluster.groups}
        connection.respond(request, 0, body=SubscriptionGroupTable(groups).encode())

    def _heartbeat(self, connection: Connection, request: Request) -> None:
        heartbeat = decode_heartbeat(request.body)
        self.heartbeats.append(heartbeat.clientID)
        if self.refusal is not None:
            connection.respond(request, self.refusal[0], remark=self.refusal[1])
            return
        for data in heartbeat.consumerDataSet:
            members = self.clients.setdefault(data.groupName, {})
            self.wanted[data.groupName] = [wanted.topic for wanted in data.subscriptionDataSet]
            if heartbeat.clientID not in members:
                members[heartbeat.clientID] = connection
                self._notify(data.groupName)
        connection.respond(request, 0, remark=self.warning)

    def _unregister(self, connection: Connection, request: Request) -> None:
        header = request.header(UnregisterClientHeader)
        if header.consumerGroup and self.clients.get(header.consumerGroup, {}).pop(header.clientID, None):
            self._notify(header.consumerGroup)
        connection.respond(request, 0)

    def _consumers(self, connection: Connection, request: Request) -> None:
        members = self.clients.get(request.header(ConsumerGroupHeader).consumerGroup)
        if not members:
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
        else:
            connection.respond(request, 0, body=ConsumerIdList(list(members)).encode())

    def _connections(self, connection: Connection, request: Request) -> None:
        group = request.header(ConsumerGroupHeader).consumerGroup
        members = self.clients.get(group)
        if not members:
            connection.respond(request, ResponseCode.CONSUMER_NOT_ONLINE, remark="not online")
            return
        clients = [ClientConnection(client, "127.0.0.1:1", "OTHER", 0) for client in members]
        wanted = {topic: Subscription(topic, "*") for topic in self.wanted.get(group, ())}
        body = ConsumerConnections(clients, subscriptionTable=wanted).encode()
        connection.respond(request, 0, body=body)

    def _notify(self, group: str) -> None:
        for connection in self.clients.get(group, {}).values():
            connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def tell_leader(self, group: str, address: str) -> None:
        """As a broker that leads now, and was not told of it by the members of a group."""
        for connection in self.clients[group].values():
            fields = {"consumerGroup": group, "leaderAddr": address}
            connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields)

    def _closed(self, connection: Connection) -> None:
        for members in self.clients.values():
            for client in [client for client, theirs in members.items() if theirs is connection]:
                del members[client]


class FakeCluster:
    """One NameServer and `nodes` brokers of one group, in this process."""

    def __init__(
        self,
        nodes: int = 3,
        topics: Mapping[str, int] | None = None,
        env: Env | None = None,
        *,
        tls_of_namesrv: ServerTls | None = None,
        tls_of_brokers: ServerTls | None = None,
    ) -> None:
        self._tls_of_namesrv = tls_of_namesrv
        self.tls_of_brokers = tls_of_brokers
        self._accepting: list[asyncio.Task[None]] = []
        self.env = env or production_env("fake")
        self.topics = dict(topics or {})
        self.default_queues = 4
        """Queues of TBW102; 0 means that topics are not created automatically."""
        self.leader = 0
        self.registered: int | None = 0
        """The leader as the NameServer knows it."""
        self.brokers = [FakeBroker(self, number) for number in range(nodes)]
        self.queues: dict[tuple[str, int], list[Stored]] = {}
        self.places: dict[tuple[str, str], dict[str, str]] = {}
        """Topic and unique id -> what was answered when the message was stored."""
        self.lowest: dict[tuple[str, int], int] = {}
        """Offsets of the oldest messages that retention left, where it took some."""
        self.births: dict[str, int] = {}
        """How often each topic was made again; a part of its life."""
        self.commits: list[UpdateConsumerOffsetHeader] = []
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.locks: dict[tuple[str, str, int], str] = {}
        """Client ids of those who locked a queue; they stay until they unlock it."""
        self.groups: list[str] = []
        """Consumer groups that exist."""
        self.kept_back = 0
        """Topics that brokers count, but do not list."""
        self.ours = True
        """Whether the brokers say that they are ours."""
        self.sent_back: list[ConsumerSendMsgBackHeader] = []
        self.takes_back = True
        self.ends: list[EndTransactionHeader] = []
        """What was said of transactions."""
        self.ext: dict[str, str] = {}
        """Further fields of the answers to sends."""
        self.script: Callable[[FakeBroker, Connection, Request], bool] | None = None
        """Asked first for every request to a broker but heartbeats; True: it has dealt with it."""
        self.route_requests = 0
        self._namesrv: RemotingServer
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> FakeCluster:
        self._namesrv = RemotingServer(
            self.env,
            handlers={
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            },
            limits=ServerLimits(close_grace_s=0.05),
            name="fake-namesrv",
            tls=self._tls_of_namesrv,
        )
        await self._namesrv.start("127.0.0.1", 0)
        self._accepting = [asyncio.ensure_future(self._namesrv.run())]
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            if broker.alive:
                await broker.kill()
        for connection in self._namesrv.connections:
            connection.abort()
        await self._namesrv.close()
        for task in self._accepting:
            task.cancel()
        self.env.workers.close()

    @property
    def namesrv(self) -> str:
        host, port = self._namesrv.addresses[0]
        return f"{host}:{port}"

    def lead(self, number: int, registered: bool = True) -> None:
        """Make a broker the leader (-1: none)."""
        self.leader = number
        if registered:
            self.registered = number if number >= 0 else None

    async def kill(self, number: int) -> None:
        """End a broker; nobody leads if it did."""
        if self.leader == number:
            self.leader = -1
        await self.brokers[number].kill()

    def queue(self, topic: str, queue_id: int) -> list[Stored]:
        return self.queues.setdefault((topic, queue_id), [])

    def make_again(self, topic: str) -> None:
        """Delete a topic and make one of the same name, with as many queues."""
        self.births[topic] = self.births.get(topic, 0) + 1
        for queue_id in range(self.topics[topic]):
            self.queues.pop((topic, queue_id), None)
            self.lowest.pop((topic, queue_id), None)

    def stored(self, topic: str) -> list[Stored]:
        """All messages of a topic, queue by queue."""
        return [item for (name, _), queue in sorted(self.queues.items()) if name == topic for item in queue]

    def bodies(self, topic: str) -> list[bytes]:
        return [item.body for item in self.stored(topic)]

    def store(self, header: SendMessageV2Header, body: bytes) -> dict[str, str]:
        """Append one message or a batch; the answer's fields. One that was stored already, and says that it
        is sent again, is not stored again."""
        queue = self.queue(header.topic, header.queueId)
        first = len(queue)
        messages = [(body, header.properties or "")]
        if header.batch:
            messages = [(item.body, item.properties.decode()) for item in decode_batch(body)]
        told = decode_properties(messages[0][1])
        key = header.topic, told.get("UNIQ_KEY", "")
        if "__RESEND" in told and key in self.places:
            return self.places[key]
        for content, text in messages:
            assert len(text) <= MAX_PROPERTIES_SIZE
            queue.append(Stored(header.topic, header.queueId, len(queue), header, content, text))
        ids = [encode_message_id(STORE_HOST, item.offset * 1000) for item in queue[first:]]
        place = {"msgId": ",".join(ids), "queueId": str(header.queueId), "queueOffset": str(first)}
        self.places[key] = {**place, **self.ext}
        return self.places[key]

    def _addresses(self) -> dict[int, str]:
        addresses = {}
        for broker in self.brokers:
            if broker.alive:
                addresses[0 if broker.number == self.registered else broker.number + 1] = broker.address
        return addresses

    def _brokers(self) -> list[BrokerData]:
        addresses = self._addresses()
        return [BrokerData("DefaultCluster", GROUP, addresses)] if addresses else []

    def _route(self, connection: Connection, request: Request) -> None:
        self.route_requests += 1
        topic = request.header(GetRouteHeader).topic
        queues, perm = self.topics.get(topic), 6
        if topic == "TBW102" and self.default_queues:
            queues, perm = self.default_queues, 7
        if queues is None or not self._brokers():
            connection.respond(request, ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info: {topic}")
            return
        route = TopicRoute([QueueData(GROUP, queues, queues, perm)], self._brokers())
        connection.respond(request, 0, body=route.encode())

    def _topic_list(self, connection: Connection, request: Request) -> None:
        connection.respond(request, 0, body=TopicList(sorted(self.topics)).encode())

    def _system_topics(self, connection: Connection, request: Request) -> None:
        connection.respond(request, 0, body=TopicList([GROUP, "TBW102"]).encode())

    def _cluster_info(self, connection: Connection, request: Request) -> None:
        info = ClusterInfo({data.brokerName: data for data in self._brokers()}, {"DefaultCluster": [GROUP]})
        connection.respond(request, 0, body=info.encode())


@contextmanager
def send_limit(producer: AsyncProducer, timeout_s: float) -> Iterator[None]:
    """Messages that are sent inside the block have so long, in seconds, as has each attempt.

    A short limit is for what must fail, and for nothing else: a pause of the machine may be longer."""
    kernel = producer._kernel
    before = kernel._timeout_s, kernel._attempt_timeout_s, kernel.options
    kernel._timeout_s = kernel._attempt_timeout_s = timeout_s
    kernel.options = replace(kernel.options, timeout_s=timeout_s)
    try:
        yield
    finally:
        kernel._timeout_s, kernel._attempt_timeout_s, kernel.options = before


def waits_for_a_leader(producer: AsyncProducer) -> bool:
    """Whether messages wait for a leader, and none of them is on its way to a broker.

    If its time is over then, a message is certainly not stored: that is NoBroker, and not OutcomeUnknown."""
    lane = producer._kernel.lane(producer._core.group(GROUP))
    return bool(lane.parked) and lane.probe is None and not lane.in_flight


def skip_now(seconds: float) -> None:
    """Move the clock of the running loop ahead, as `skip_s` of tests/broker/harness.py does, but in this very
    turn of the loop: nothing runs between the condition that the caller saw and the jump."""
    loop = asyncio.get_running_loop()
    ahead = loop.time() + seconds - time.monotonic()
    loop.time = lambda: time.monotonic() + ahead  # type: ignore[method-assign]


async def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.002)
