"""Typed bodies of requests and answers (RocketMQ's *Body, *Data classes). As with fastjson, reading accepts
what clients really send: enums by name or ordinal, numbers as text, missing keys, a trailing newline,
unquoted keys; unknown keys are ignored. Writing is strict JSON with sorted keys and without nulls. Field
names are those on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from dledger.formats.message_ids import java_hash
from dledger.remoting.commands import SerializeType
from dledger.remoting.errors import BadBody
from dledger.remoting.fastjson import dumps, dumps_object_map, dumps_relaxed, loads, without_nulls

T = TypeVar("T")

MAX_BARE_TAGS = 16 * 1024
"""Limit, in characters, of all subscriptions in one heartbeat that come without the codes of their tags. A
heartbeat with more is refused, because computing the codes takes 0.2 microseconds a character."""
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
"""Names of the modes pull, push and pop. The position of a name is its ordinal on the wire."""
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

MASTER_ID = 0
"""Broker id of the master; every other id is that of a slave."""

DEFAULT_TOPIC = "TBW102"
"""Name of a topic (MixAll, TopicValidator). When another topic is created by its first use, it gets the same
queues as this topic."""


class Body(msgspec.Struct):
    """Base of all bodies: `encode()` writes one, `decode_body` reads one."""

    def encode(self) -> bytes:
        """Encode as JSON with sorted keys and without nulls."""
        return dumps(self)


def decode_body(data: bytes, type_: type[T], what: str = "body") -> T:
    """Decode a typed body. Numbers and booleans may be given as text. Raises BadBody, which says what is
    wrong."""
    return convert_body(loads(data), type_, what)


def convert_body(value: object, type_: type[T], what: str = "body") -> T:
    """Make a typed body from parsed JSON. Raises BadBody, which says what is wrong."""
    try:
        return msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError as error:
        raise BadBody(f"the {what} is wrong: {error}") from error


# --- routes -------------------------------------------------------------------------------------------


class QueueData(Body, gc=False):
    """Queues of a topic on one broker group. `perm` is a sum of 4 (read), 2 (write) and 1 (inherit)."""

    brokerName: str
    readQueueNums: int
    writeQueueNums: int
    perm: int
    topicSysFlag: int = 0


class BrokerData(Body):
    """The addresses of the brokers of one group, by broker id; 0 is the master."""

    cluster: str
    brokerName: str
    brokerAddrs: dict[int, str]
    enableActingMaster: bool = False
    zoneName: str | None = None

    @property
    def master(self) -> str | None:
        """Address of the master; None while there is no master."""
        return self.brokerAddrs.get(MASTER_ID)


class TopicRoute(Body):
    """Answer to 105 GET_ROUTEINFO_BY_TOPIC (TopicRouteData)."""

    queueDatas: list[QueueData]
    brokerDatas: list[BrokerData]
    filterServerTable: dict[str, list[str]] = {}
    orderTopicConf: str | None = None

    def encode_relaxed(self) -> bytes:
        """Encode for clients before 4.9.4, which expect ids of brokers as keys without quotes."""
        return dumps_relaxed(self)

    def in_zone(self, zone: str) -> TopicRoute:
        """Return the route for a client of this zone (ZoneRouteRPCHook). It has the groups of the zone. It
        also has all groups without a master, because clients read from their slaves whatever zone they are
        in."""
        kept = [
            data
            for data in self.brokerDatas
            if data.master is None or (data.zoneName or "").lower() == zone.lower()
        ]
        names = {data.brokerName for data in kept}
        gone = {
            address
            for data in self.brokerDatas
            if data.brokerName not in names
            for address in data.brokerAddrs.values()
        }
        return TopicRoute(
            [data for data in self.queueDatas if data.brokerName in names],
            kept,
            {address: found for address, found in self.filterServerTable.items() if address not in gone},
            self.orderTopicConf,
        )


class ClusterInfo(Body):
    """Answer to 106 GET_BROKER_CLUSTER_INFO."""

    brokerAddrTable: dict[str, BrokerData] = {}
    clusterAddrTable: dict[str, list[str]] = {}


class BrokerMemberGroup(Body):
    """The addresses of the brokers of one group, by broker id."""

    cluster: str
    brokerName: str
    brokerAddrs: dict[int, str] = {}


class BrokerMemberGroupBody(Body):
    """Answer to 901 GET_BROKER_MEMBER_GROUP."""

    brokerMemberGroup: BrokerMemberGroup


class TopicList(Body):
    """Answer to 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 224 GET_TOPICS_BY_CLUSTER, 304
    GET_SYSTEM_TOPIC_LIST_FROM_NS."""

    topicList: list[str] = []
    brokerAddr: str | None = None


class KvTable(Body):
    """Answer to 219 GET_KVLIST_BY_NAMESPACE, 28 GET_BROKER_RUNTIME_INFO, and to 103 (order topics)."""

    table: dict[str, str] = {}


# --- clients ------------------------------------------------------------------------------------------


class Subscription(Body):
    """A group's subscription to a topic (SubscriptionData). codeSet holds Java hashes of the tags; an empty
    set means all messages."""

    topic: str
    subString: str = "*"
    tagsSet: list[str] = []
    codeSet: list[int] = []
    subVersion: int = 0
    expressionType: str = "TAG"
    classFilterMode: bool = False
    filterClassSource: str | None = None


class ProducerData(Body):
    """One producer group to which a client belongs."""

    groupName: str


class ConsumerData(Body):
    """One consumer group to which a client belongs. Enums are stored as names, even if they were sent as
    ordinals."""

    groupName: str
    consumeType: str = "CONSUME_PASSIVELY"
    messageModel: str = "CLUSTERING"
    consumeFromWhere: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptionDataSet: list[Subscription] = []
    unitMode: bool = False


class Heartbeat(Body):
    """Body of 34 HEART_BEAT (HeartbeatData)."""

    clientID: str
    producerDataSet: list[ProducerData] = []
    consumerDataSet: list[ConsumerData] = []
    heartbeatFingerprint: int = 0
    withoutSub: bool = False


class CheckClientConfig(Body):
    """Body of 46 CHECK_CLIENT_CONFIG (CheckClientRequestBody)."""

    clientId: str = ""
    group: str = ""
    subscriptionData: Subscription | None = None
    namespace: str | None = None


class ConsumerIdList(Body):
    """Answer to 38 GET_CONSUMER_LIST_BY_GROUP."""

    consumerIdList: list[str] = []


class ClientConnection(Body):
    """One client of a group (Connection)."""

    clientId: str
    clientAddr: str
    language: str
    version: int


class ConsumerConnections(Body):
    """Answer to 203 GET_CONSUMER_CONNECTION_LIST."""

    connectionSet: list[ClientConnection] = []
    consumeType: str | None = None
    messageModel: str | None = None
    consumeFromWhere: str | None = None
    subscriptionTable: dict[str, Subscription] = {}


class ProducerConnections(Body):
    """Answer to 204 GET_PRODUCER_CONNECTION_LIST."""

    connectionSet: list[ClientConnection] = []


class ConsumersHere(Body):
    """The members of one consumer group that send their heartbeats to one broker, which writes this.
    `clients` is empty when the last one has left."""

    groupName: str
    consumeType: str
    messageModel: str
    consumeFromWhere: str
    subscriptions: list[Subscription] = []
    clients: list[ClientConnection] = []


class _Told(Body):
    groups: list[ConsumersHere] = []


def told_body(groups: list[bytes]) -> bytes:
    """Encode the body of 28101 TELL_CONSUMERS from encoded `ConsumersHere`. Groups that are not in it did not
    change."""
    return b'{"groups":[%b]}' % b",".join(groups)


def decode_told(data: bytes) -> list[ConsumersHere]:
    """Decode the groups in a body of 28101 TELL_CONSUMERS. Brokers of this project write it, so it is strict
    JSON. Raises BadBody for anything else."""
    try:
        return msgspec.json.decode(data, type=_Told).groups
    except (msgspec.DecodeError, ValueError) as error:
        raise BadBody(f"consumers: {error}") from None


class WaitingPull(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pull request that waits at the leader, as listed in a body of 28102 TELL_PULLS. `serialize` and
    `opaque` are those of the request."""

    clientId: str
    group: str
    topic: str
    queueId: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    opaque: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
    serialize: SerializeType
    host: str


class PullsHeld(Body):
    """Body of 28102 TELL_PULLS: pull requests that began to wait at the leader of term `term`. A pull
    replaces the previous pull of the same client and queue."""

    term: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    pulls: list[WaitingPull] = []


def decode_held(data: bytes) -> PullsHeld:
    """Decode a body of 28102 TELL_PULLS. Brokers of this project write it, so it is strict JSON. Raises
    BadBody for anything else."""
    try:
        return msgspec.json.decode(data, type=PullsHeld)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadBody(f"pulls: {error}") from None


class GroupList(Body):
    """Answer to 300 QUERY_TOPIC_CONSUME_BY_WHO."""

    groupList: list[str] = []


class QuerySubscription(Body):
    """Answer to 345 QUERY_SUBSCRIPTION_BY_CONSUMER (QuerySubscriptionResponseBody)."""

    group: str
    topic: str | None = None
    subscriptionData: Subscription | None = None


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue; it can be the key of a map. Queues sort as clients sort them for allocation (topic, broker,
    queue)."""

    topic: str
    brokerName: str
    queueId: int


class LockRequest(Body):
    """Body of 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ."""

    consumerGroup: str
    clientId: str
    mqSet: list[MessageQueue] = []
    onlyThisBroker: bool = False
    epochs: list[int] | None = None
    """An extension of ours, which our clients send: one number for each queue of `mqSet`. The number rises
    each time the client locks that queue anew. Requests that renew or release a lock carry the number of the
    lock."""


class LockAnswer(Body):
    """Answer to 41 LOCK_BATCH_MQ."""

    lockOKMQSet: list[MessageQueue] = []


def subscription_codes(expression: str | None) -> tuple[list[str], list[int]]:
    """Return the tags of an expression such as "TagA || TagB", and their codes. Both lists are empty if the
    expression selects all messages (FilterAPI.buildSubscriptionData)."""
    text = (expression or "").strip()
    if text in ("", "*"):
        return [], []
    tags = sorted({tag.strip() for tag in text.split("||")} - {""})
    return tags, [java_hash(tag) for tag in tags]


def make_subscription(topic: str, expression: str | None, version: int, kind: str = "TAG") -> Subscription:
    """Make a subscription, and compute its tags and their codes."""
    tags, codes = subscription_codes(expression) if kind == "TAG" else ([], [])
    return Subscription(topic, expression or "*", tags, codes, version, kind)


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Decode a body of 34 HEART_BEAT from any client. codeSet is computed if it is missing (the C++ client
    sends none)."""
    value = loads(data)
    if not isinstance(value, dict):
        raise BadBody("the heartbeat is not a JSON object")
    consumers = value.get("consumerDataSet")
    for consumer in consumers if isinstance(consumers, list) else []:
        if isinstance(consumer, dict):
            _name_ordinal(consumer, "consumeType", CONSUME_TYPES)
            _name_ordinal(consumer, "messageModel", MESSAGE_MODELS)
            _name_ordinal(consumer, "consumeFromWhere", CONSUME_FROM_WHERE)
    heartbeat = convert_body(without_nulls(value), Heartbeat, "heartbeat")
    bare = [
        subscription
        for of_group in heartbeat.consumerDataSet
        for subscription in of_group.subscriptionDataSet
        if subscription.expressionType == "TAG" and not subscription.codeSet and subscription.subString != "*"
    ]
    size = sum(len(subscription.subString) for subscription in bare)
    if size > MAX_BARE_TAGS:
        raise BadBody(
            f"the tags have {size} characters and no codes; without codes the limit is {MAX_BARE_TAGS}"
        )
    for subscription in bare:
        tags, codes = subscription_codes(subscription.subString)
        subscription.tagsSet, subscription.codeSet = tags, codes
    return heartbeat


def decode_client_config(data: bytes) -> CheckClientConfig:
    """Decode a body of 46 CHECK_CLIENT_CONFIG, in which clients may send nulls."""
    return convert_body(without_nulls(loads(data)), CheckClientConfig, "check of a subscription")


def _name_ordinal(value: dict[str, Any], field: str, names: tuple[str, ...]) -> None:
    """Replace an enum's ordinal by its name. Raises BadBody if the value is neither a name nor an ordinal."""
    item = value.get(field)
    if item is None:
        value.pop(field, None)
        return
    if isinstance(item, str) and item.isdecimal():
        item = int(item)
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < len(names):
        value[field] = names[item]
    elif item not in names:
        raise BadBody(f"the heartbeat has a wrong {field}: {item!r}")


# --- tables -------------------------------------------------------------------------------------------


class TopicOffset(Body):
    """The smallest and the next offset of one queue. lastUpdateTimestamp is in ms; 0 means never."""

    minOffset: int
    maxOffset: int
    lastUpdateTimestamp: int = 0


class OffsetWrapper(Body):
    """The end of one queue at the broker (`brokerOffset`), and a group's offset in it."""

    brokerOffset: int
    consumerOffset: int
    lastTimestamp: int = 0
    pullOffset: int = 0


class SubscriptionGroupConfig(Body):
    """Body of 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP; a consumer group's settings."""

    groupName: str
    consumeEnable: bool = True
    consumeFromMinEnable: bool = True
    consumeBroadcastEnable: bool = True
    consumeMessageOrderly: bool = False
    retryQueueNums: int = 1
    retryMaxTimes: int = 16
    brokerId: int = MASTER_ID
    whichBrokerWhenConsumeSlowly: int = 1
    notifyConsumerIdsChangedEnable: bool = True
    groupSysFlag: int = 0
    consumeTimeoutMinute: int = 15
    attributes: dict[str, str] = {}


class GroupConfigList(Body):
    """Body of 225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    groupConfigList: list[SubscriptionGroupConfig]


class ListedTopic(Body):
    """One topic of a `TopicConfigList`."""

    topicName: str
    readQueueNums: int = 16
    writeQueueNums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topicSysFlag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicConfigList(Body):
    """Body of 18 UPDATE_AND_CREATE_TOPIC_LIST."""

    topicConfigList: list[ListedTopic]


class SubscriptionGroupTable(Body):
    """Answer to 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG (SubscriptionGroupWrapper), only its groups."""

    subscriptionGroupTable: dict[str, SubscriptionGroupConfig] = {}


def queue_table(
    name: str, table: Mapping[MessageQueue, object] | Iterable[tuple[MessageQueue, object]]
) -> bytes:
    """Encode a body with one map from queues to values: `{"offsetTable":{{queue}:value}}`. Requests 202, 208,
    220 and 221 use this form."""
    items = table.items() if isinstance(table, Mapping) else table
    return dumps_object_map(name, sorted(items, key=lambda item: item[0]))


def decode_queue_table(data: bytes, name: str, value_type: type[T]) -> dict[MessageQueue, T]:
    """Decode what `queue_table` encodes."""
    value = loads(data, large=True)
    table = value.get(name) if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise BadBody(f"the body has no {name}")
    queues = {decode_body(key.encode(), MessageQueue, "queue"): item for key, item in table.items()}
    named = {
        f"$.{name}.MessageQueue [topic={q.topic}, brokerName={q.brokerName}, queueId={q.queueId}]": item
        for q, item in queues.items()
    }
    for queue, item in queues.items():
        if isinstance(item, dict) and "$ref" in item:  # Java wrote an object that it had written before
            queues[queue] = named.get(str(item["$ref"]).replace("\\", ""))
    return {queue: convert_body(item, value_type, name) for queue, item in queues.items()}
