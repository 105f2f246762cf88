"""The header of each request as a typed struct; field names as on the wire (RocketMQ's *RequestHeader).

A field without a default is required: a request that lacks it is answered with code 1 and the field's name.
Fields that are not declared (for routing, ACL, newer versions) are ignored. Times are in ms. Offsets are
queue offsets, which count messages, unless stated otherwise. The one exception in names is
`SendMessageV2Header`: sent as the letters a to n, they have the names of `SendMessageHeader` in Python.
"""

from __future__ import annotations

import msgspec

from dledger.remoting.codes import RequestCode
from dledger.remoting.operator_headers import (
    BrokerConsumeStatsHeader,
    CloneGroupOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    ConsumerStatusOfClientHeader,
    ConsumeTimeSpanHeader,
    GroupTopicHeader,
    RunningInfoHeader,
    ViewBrokerStatsHeader,
)
from dledger.remoting.pop_headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PopMessageHeader,
)
from dledger.remoting.response_headers import (
    I32,
    I64,
)
from dledger.remoting.response_headers import (
    AddWritePermResponseHeader as AddWritePermResponseHeader,
)
from dledger.remoting.response_headers import (
    Header as Header,
)
from dledger.remoting.response_headers import (
    KvConfigResponseHeader as KvConfigResponseHeader,
)
from dledger.remoting.response_headers import (
    OffsetResponseHeader as OffsetResponseHeader,
)
from dledger.remoting.response_headers import (
    PullMessageResponseHeader as PullMessageResponseHeader,
)
from dledger.remoting.response_headers import (
    QueryDataVersionResponseHeader as QueryDataVersionResponseHeader,
)
from dledger.remoting.response_headers import (
    QueryMessageResponseHeader as QueryMessageResponseHeader,
)
from dledger.remoting.response_headers import (
    RegisterBrokerResponseHeader as RegisterBrokerResponseHeader,
)
from dledger.remoting.response_headers import (
    SendMessageResponseHeader as SendMessageResponseHeader,
)
from dledger.remoting.response_headers import (
    TimestampResponseHeader as TimestampResponseHeader,
)
from dledger.remoting.response_headers import (
    WipeWritePermResponseHeader as WipeWritePermResponseHeader,
)

ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"
"""Header fields: the zone of a broker or client, and whether a client uses only brokers of its zone."""


class NoHeader(Header):
    """A request whose header has no fields of its own."""


# --- messages -----------------------------------------------------------------------------------------


class SendMessageHeader(Header):
    """Header of 10 SEND_MESSAGE, 324 SEND_REPLY_MESSAGE. `properties` is text (`formats.properties`)."""

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: I32
    queueId: I32
    sysFlag: I32
    bornTimestamp: I64
    flag: I32
    properties: str | None = None
    reconsumeTimes: I32 | None = None
    unitMode: bool = False
    maxReconsumeTimes: I32 | None = None
    batch: bool = False
    brokerName: str | None = msgspec.field(name="bname", default=None)


class SendMessageV2Header(
    Header,
    rename=dict(zip(SendMessageHeader.__struct_fields__, "abcdefghijklmn", strict=True)),
):
    """310 SEND_MESSAGE_V2, 320 SEND_BATCH_MESSAGE, 325 SEND_REPLY_MESSAGE_V2. Sent as the letters a to n."""

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: I32
    queueId: I32
    sysFlag: I32
    bornTimestamp: I64
    flag: I32
    properties: str | None = None
    reconsumeTimes: I32 | None = None
    unitMode: bool = False
    maxReconsumeTimes: I32 | None = None
    batch: bool = False
    brokerName: str | None = None


class RecallMessageHeader(Header):
    """370 RECALL_MESSAGE. `recallHandle` comes from the answer to a timer message (`formats.timers`)."""

    topic: str
    recallHandle: str
    producerGroup: str | None = None
    brokerName: str | None = msgspec.field(name="bname", default=None)


class ReplyMessageHeader(Header):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT. Hosts are given as "ip:port", times in ms since the epoch."""

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: I32
    queueId: I32
    sysFlag: I32
    bornTimestamp: I64
    flag: I32
    bornHost: str
    storeHost: str
    storeTimestamp: I64
    properties: str | None = None
    reconsumeTimes: I32 | None = None
    unitMode: bool = False


SendHeader = SendMessageHeader | SendMessageV2Header
"""The headers that a send processor gets. Both types have the same fields."""


class PullMessageHeader(Header):
    """11 PULL_MESSAGE, 361 LITE_PULL_MESSAGE. sysFlag consists of the PULL_* bits below."""

    consumerGroup: str
    topic: str
    queueId: I32
    queueOffset: I64
    maxMsgNums: I32
    sysFlag: I32
    commitOffset: I64
    suspendTimeoutMillis: I64
    subVersion: I64
    subscription: str | None = None
    expressionType: str | None = None
    maxMsgBytes: I32 | None = None
    requestSource: I32 | None = None


PULL_COMMIT_OFFSET = 1
"""With this bit, `commitOffset` is stored as the group's consumer offset."""
PULL_SUSPEND = 2
"""Let the request wait up to `suspendTimeoutMillis` if there is no new message."""
PULL_SUBSCRIPTION = 4
"""`subscription` is in the header. Without this bit the subscription from the heartbeat is used."""
PULL_CLASS_FILTER = 8
PULL_LITE = 16


class QueryMessageHeader(Header):
    """12 QUERY_MESSAGE. If the field `_UNIQUE_KEY_QUERY` is true, the key is a unique id."""

    topic: str
    key: str
    maxNum: I32
    beginTimestamp: I64
    endTimestamp: I64
    uniqueKeyQuery: bool = msgspec.field(name="_UNIQUE_KEY_QUERY", default=False)


class ViewMessageHeader(Header):
    """Header of 33 VIEW_MESSAGE_BY_ID. `offset` is a physical offset in bytes."""

    offset: I64
    topic: str | None = None


class QueryConsumeQueueHeader(Header):
    """321 QUERY_CONSUME_QUEUE: `count` units of the ConsumeQueue, from queue offset `index` on."""

    topic: str | None = None
    queueId: I32 = 0
    index: I64 = 0
    count: I32 = 0
    consumerGroup: str | None = None


class ConsumerSendMsgBackHeader(Header):
    """Header of 36 CONSUMER_SEND_MSG_BACK. `offset` is a physical offset in bytes."""

    offset: I64
    group: str
    delayLevel: I32
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: I32 | None = None


class EndTransactionHeader(Header):
    """Header of 37 END_TRANSACTION. commitOrRollback is 8 (commit), 12 (roll back) or 0 (not known)."""

    producerGroup: str
    tranStateTableOffset: I64
    commitLogOffset: I64
    commitOrRollback: I32
    msgId: str
    fromTransactionCheck: bool = False
    transactionId: str | None = None
    topic: str | None = None


class CheckTransactionStateHeader(Header):
    """39 CHECK_TRANSACTION_STATE, which a broker sends to a producer."""

    tranStateTableOffset: I64
    commitLogOffset: I64
    msgId: str | None = None
    transactionId: str | None = None
    offsetMsgId: str | None = None
    topic: str | None = None


class RelayedCheckHeader(Header):
    """39 CHECK_TRANSACTION_STATE from a leader to other members: the transaction, and the group to ask."""

    producerGroup: str
    tranStateTableOffset: I64
    commitLogOffset: I64


# --- offsets ------------------------------------------------------------------------------------------


class QueueHeader(Header):
    """31 GET_MIN_OFFSET, 32 GET_EARLIEST_MSG_STORETIME. Both are about one queue."""

    topic: str
    queueId: I32


class GetMaxOffsetHeader(Header):
    """Header of 30 GET_MAX_OFFSET: the offset that the next message will get."""

    topic: str
    queueId: I32
    committed: bool = True


class SearchOffsetHeader(Header):
    """Header of 29 SEARCH_OFFSET_BY_TIMESTAMP. boundaryType is lower (default) or upper, or in capitals."""

    topic: str
    queueId: I32
    timestamp: I64
    boundaryType: str | None = None


class QueryConsumerOffsetHeader(Header):
    """Header of 14 QUERY_CONSUMER_OFFSET."""

    consumerGroup: str
    topic: str
    queueId: I32
    setZeroIfNotFound: bool | None = None
    askMembership: bool | None = None
    """Our extension: asks for the field `membership` in the answer (see `UpdateConsumerOffsetHeader`)."""


class UpdateConsumerOffsetHeader(Header):
    """15 UPDATE_CONSUMER_OFFSET. Clients may send the offset -1, which is ignored."""

    consumerGroup: str
    topic: str
    queueId: I32
    commitOffset: I64
    setsBack: bool | None = None
    """Our extension: whether this commit may replace a higher offset by a lower one. None: not said."""
    membership: str | None = None
    """Our extension: the membership version from 14. A `setsBack` with another one is refused."""


class ResetOffsetHeader(Header):
    """222 INVOKE_BROKER_TO_RESET_OFFSET, 220 RESET_CONSUMER_CLIENT_OFFSET. timestamp -1: end of the queue."""

    group: str
    topic: str
    timestamp: I64
    isForce: bool
    queueId: I32 = -1
    offset: I64 | None = None


# --- clients and groups -------------------------------------------------------------------------------


class UnregisterClientHeader(Header):
    """35 UNREGISTER_CLIENT. The C++ client sends "" for a group that it does not unregister."""

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


class ConsumerGroupHeader(Header):
    """38 GET_CONSUMER_LIST_BY_GROUP, 40 NOTIFY_CONSUMER_IDS_CHANGED, 203 GET_CONSUMER_CONNECTION_LIST."""

    consumerGroup: str


class ProducerGroupHeader(Header):
    """Header of 204 GET_PRODUCER_CONNECTION_LIST."""

    producerGroup: str


class ConsumeStatsHeader(Header):
    """Header of 208 GET_CONSUME_STATS."""

    consumerGroup: str
    topic: str | None = None
    topicList: str | None = None


class GetAllSubscriptionGroupHeader(Header):
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Older tools send no fields."""

    groupSeq: I32 = 0
    dataVersion: str | None = None
    maxGroupNum: I32 | None = None


class DeleteSubscriptionGroupHeader(Header):
    """Header of 207 DELETE_SUBSCRIPTIONGROUP."""

    groupName: str
    cleanOffset: bool = False
    life: str | None = None
    """Our extension: `life` from the answer to 352. A group that was created again has another one."""


class GroupHeader(Header):
    """Header of 352 GET_SUBSCRIPTIONGROUP_CONFIG, 343 QUERY_TOPICS_BY_CONSUMER."""

    group: str
    byLeader: bool = False
    """Our extension: only the leader shall answer request 352 GET_SUBSCRIPTIONGROUP_CONFIG."""


# --- topics -------------------------------------------------------------------------------------------


class TopicHeader(Header):
    """202 GET_TOPIC_STATS_INFO, 217 REGISTER_TOPIC_IN_NAMESRV, 300 QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


class TopicConfigHeader(Header):
    """Header of 351 GET_TOPIC_CONFIG."""

    topic: str
    byLeader: bool = False
    """Our extension: only the leader shall answer."""


class DeleteTopicHeader(Header):
    """Header of 215 DELETE_TOPIC_IN_BROKER."""

    topic: str
    life: str | None = None
    """Our extension: `life` from the answer to 351. A topic that was created again has another one."""


class CreateTopicHeader(Header):
    """17 UPDATE_AND_CREATE_TOPIC. attributes has the form "+message.type=NORMAL,-other"."""

    # topicFilterType has a factory so that it always travels: Apache's brokers refuse a request without it.

    topic: str
    defaultTopic: str
    readQueueNums: I32
    writeQueueNums: I32
    perm: I32
    topicFilterType: str = msgspec.field(default_factory=lambda: "SINGLE_TAG")
    topicSysFlag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


class GetAllTopicConfigHeader(Header):
    """21 GET_ALL_TOPIC_CONFIG. Older tools send no fields."""

    topicSeq: I32 = 0
    dataVersion: str | None = None
    maxTopicNum: I32 | None = None


class GetRouteHeader(Header):
    """Header of 105 GET_ROUTEINFO_BY_TOPIC. A client in zone mode uses only brokers of its zone."""

    topic: str
    acceptStandardJsonOnly: bool = False
    zoneMode: str | None = msgspec.field(default=None, name=ZONE_MODE)
    zoneName: str | None = msgspec.field(default=None, name=ZONE_NAME)


class DeleteTopicInNamesrvHeader(Header):
    """216 DELETE_TOPIC_IN_NAMESRV. Without a cluster the topic is deleted in all clusters."""

    topic: str
    clusterName: str | None = None


class ClusterHeader(Header):
    """Header of 224 GET_TOPICS_BY_CLUSTER."""

    cluster: str


# --- NameServer ---------------------------------------------------------------------------------------


class PutKvConfigHeader(Header):
    """Header of 100 PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class KvConfigHeader(Header):
    """Header of 101 GET_KV_CONFIG, 102 DELETE_KV_CONFIG."""

    namespace: str
    key: str


class KvNamespaceHeader(Header):
    """Header of 219 GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class RegisterBrokerHeader(Header):
    """103 REGISTER_BROKER. bodyCrc32 is the CRC of the body as sent (31 bits); 0 is not checked.
    `wholeTable` (our extension): the body has every topic of the group, and missing topics are removed."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    haServerAddr: str
    brokerId: I64
    heartbeatTimeoutMillis: I64 | None = None
    enableActingMaster: bool = False
    compressed: bool = False
    bodyCrc32: I32 = 0
    wholeTable: bool = False
    zoneName: str | None = msgspec.field(default=None, name=ZONE_NAME)


class BrokerIdentityHeader(Header):
    """Header of 104 UNREGISTER_BROKER, 322 QUERY_DATA_VERSION."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    brokerId: I64


class BrokerHeartbeatHeader(Header):
    """904 BROKER_HEARTBEAT, which keeps a registration. The time-out's name is misspelt on the wire."""

    clusterName: str
    brokerAddr: str
    brokerName: str
    brokerId: I64 | None = None
    epoch: I32 | None = None
    maxOffset: I64 | None = None
    confirmOffset: I64 | None = None
    heartbeatTimeoutMills: I64 | None = None
    electionPriority: I32 | None = None


class BrokerNameHeader(Header):
    """Header of 205 WIPE_WRITE_PERM_OF_BROKER, 327 ADD_WRITE_PERM_OF_BROKER."""

    brokerName: str


class BrokerMemberGroupHeader(Header):
    """Header of 901 GET_BROKER_MEMBER_GROUP."""

    clusterName: str
    brokerName: str


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessageHeader,
    RequestCode.PULL_MESSAGE: PullMessageHeader,
    RequestCode.QUERY_MESSAGE: QueryMessageHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicHeader,
    RequestCode.GET_ALL_TOPIC_CONFIG: GetAllTopicConfigHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetHeader,
    RequestCode.GET_MAX_OFFSET: GetMaxOffsetHeader,
    RequestCode.GET_MIN_OFFSET: QueueHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageHeader,
    RequestCode.HEART_BEAT: NoHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientHeader,
    RequestCode.CONSUMER_SEND_MSG_BACK: ConsumerSendMsgBackHeader,
    RequestCode.END_TRANSACTION: EndTransactionHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerGroupHeader,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransactionStateHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ConsumerGroupHeader,
    RequestCode.LOCK_BATCH_MQ: NoHeader,
    RequestCode.UNLOCK_BATCH_MQ: NoHeader,
    RequestCode.PUT_KV_CONFIG: PutKvConfigHeader,
    RequestCode.GET_KV_CONFIG: KvConfigHeader,
    RequestCode.DELETE_KV_CONFIG: KvConfigHeader,
    RequestCode.REGISTER_BROKER: RegisterBrokerHeader,
    RequestCode.UNREGISTER_BROKER: BrokerIdentityHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteHeader,
    RequestCode.GET_BROKER_CLUSTER_INFO: NoHeader,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: NoHeader,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GetAllSubscriptionGroupHeader,
    RequestCode.GET_TOPIC_STATS_INFO: TopicHeader,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerGroupHeader,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerGroupHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NoHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteSubscriptionGroupHeader,
    RequestCode.GET_CONSUME_STATS: ConsumeStatsHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: DeleteTopicHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: DeleteTopicInNamesrvHeader,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KvNamespaceHeader,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetHeader,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetHeader,
    RequestCode.GET_TOPICS_BY_CLUSTER: ClusterHeader,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicHeader,
    RequestCode.QUERY_CONSUME_TIME_SPAN: ConsumeTimeSpanHeader,
    RequestCode.GET_CONSUMER_RUNNING_INFO: RunningInfoHeader,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyHeader,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatusHeader,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatusOfClientHeader,
    RequestCode.CLONE_GROUP_OFFSET: CloneGroupOffsetHeader,
    RequestCode.VIEW_BROKER_STATS_DATA: ViewBrokerStatsHeader,
    RequestCode.GET_BROKER_CONSUME_STATS: BrokerConsumeStatsHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2Header,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2Header,
    RequestCode.QUERY_DATA_VERSION: BrokerIdentityHeader,
    RequestCode.SEND_REPLY_MESSAGE: SendMessageHeader,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2Header,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: ReplyMessageHeader,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: GroupHeader,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: GroupTopicHeader,
    RequestCode.GET_TOPIC_CONFIG: TopicConfigHeader,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GroupHeader,
    RequestCode.LITE_PULL_MESSAGE: PullMessageHeader,
    RequestCode.GET_BROKER_MEMBER_GROUP: BrokerMemberGroupHeader,
    RequestCode.RECALL_MESSAGE: RecallMessageHeader,
    RequestCode.BROKER_HEARTBEAT: BrokerHeartbeatHeader,
    RequestCode.POP_MESSAGE: PopMessageHeader,
    RequestCode.ACK_MESSAGE: AckMessageHeader,
    RequestCode.PEEK_MESSAGE: PeekMessageHeader,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeHeader,
    RequestCode.NOTIFICATION: NotificationHeader,
    RequestCode.POLLING_INFO: PollingInfoHeader,
}
"""Maps each request code to its header type, for tests and tools that decode requests."""
