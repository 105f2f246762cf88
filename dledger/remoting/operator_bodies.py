"""Bodies of answers to operators and their tools: figures, connections, replication, accounts. They are typed
as those in `bodies`.

Times are in ms since the epoch. Rates are per second, over the last minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dledger.remoting.bodies import (
    Body,
    MessageQueue,
    OffsetWrapper,
    Subscription,
    TopicOffset,
    convert_body,
    decode_body,
)
from dledger.remoting.errors import BadBody
from dledger.remoting.fastjson import loads, without_nulls

T = TypeVar("T")


class StatsWindow(Body):
    """One statistic over one period, such as the last minute. `avgpt` is the average of one call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """Answer to 315 VIEW_BROKER_STATS_DATA."""

    statsMinute: StatsWindow = msgspec.field(default_factory=StatsWindow)
    statsHour: StatsWindow = msgspec.field(default_factory=StatsWindow)
    statsDay: StatsWindow = msgspec.field(default_factory=StatsWindow)

    @property
    def last_day(self) -> int:
        """Return the sum of the last day, as far as it was counted (StatsAllSubCommand.compute24HourSum)."""
        return self.statsDay.sum or self.statsHour.sum or self.statsMinute.sum


class TopicStats(Body):
    """Answer to 202 GET_TOPIC_STATS_INFO."""

    offsets: dict[MessageQueue, TopicOffset] = msgspec.field(default_factory=dict)
    topicPutTps: float = 0.0


class ConsumeStats(Body):
    """Answer to 208 GET_CONSUME_STATS: the offsets of a group."""

    offsets: dict[MessageQueue, OffsetWrapper] = msgspec.field(default_factory=dict)
    consumeTps: float = 0.0

    @property
    def behind(self) -> int:
        """Number of messages that the group has not consumed (computeTotalDiff)."""
        return sum(one.brokerOffset - one.consumerOffset for one in self.offsets.values())


class ConsumeStatsList(Body):
    """Answer to 317 GET_BROKER_CONSUME_STATS: one row for each group and topic."""

    groups: list[tuple[str, ConsumeStats]] = msgspec.field(default_factory=list)
    totalDiff: int = 0


class ProcessQueueInfo(Body):
    """State of the messages of one queue that a consumer has fetched and not finished."""

    commitOffset: int = 0
    cachedMsgMinOffset: int = 0
    cachedMsgMaxOffset: int = 0
    cachedMsgCount: int = 0
    cachedMsgSizeInMiB: int = 0
    transactionMsgMinOffset: int = 0
    transactionMsgMaxOffset: int = 0
    transactionMsgCount: int = 0
    locked: bool = False
    tryUnlockTimes: int = 0
    lastLockTimestamp: int = 0
    droped: bool = False
    lastPullTimestamp: int = 0
    lastConsumeTimestamp: int = 0


class PopQueueInfo(Body):
    """State of the messages of one queue that a consumer in pop mode has fetched and not finished."""

    waitAckCount: int = 0
    droped: bool = False
    lastPopTimestamp: int = 0


class ConsumeStatus(Body):
    """Rates of a consumer in one topic. RT is a response time in ms."""

    pullRT: float = 0.0
    pullTPS: float = 0.0
    consumeRT: float = 0.0
    consumeOKTPS: float = 0.0
    consumeFailedTPS: float = 0.0
    consumeFailedMsgs: int = 0


class RunningInfo(Body):
    """Answer to 307 GET_CONSUMER_RUNNING_INFO: the state of a consumer."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscriptions: list[Subscription] = msgspec.field(default_factory=list)
    queues: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    pop_queues: dict[MessageQueue, PopQueueInfo] = msgspec.field(default_factory=dict)
    status: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    user_info: dict[str, str] = msgspec.field(default_factory=dict)
    jstack: str | None = None

    @property
    def push(self) -> bool:
        """Whether it is a push consumer, whose listener gets the messages."""
        return self.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"


class ConsumeDirectlyResult(Body):
    """Answer to 309 CONSUME_MESSAGE_DIRECTLY."""

    order: bool = False
    autoCommit: bool = True
    consumeResult: str | None = None
    remark: str | None = None
    spentTimeMills: int = 0


class ProducerInfo(Body):
    """One producer that is connected."""

    clientId: str
    remoteIP: str
    language: str = "JAVA"
    version: int = 0
    lastUpdateTimestamp: int = 0


class ProducerTable(Body):
    """Answer to 328 GET_ALL_PRODUCER_INFO: the producers by group."""

    data: dict[str, list[ProducerInfo]] = msgspec.field(default_factory=dict)


class ConsumeQueueUnit(Body):
    """One unit of a ConsumeQueue, which stands for one message."""

    physicOffset: int = 0
    physicSize: int = 0
    tagsCode: int = 0
    extendDataJson: str | None = None
    bitMap: str | None = None
    eval: bool = False
    msg: str | None = None


class ConsumeQueueBody(Body):
    """Answer to 321 QUERY_CONSUME_QUEUE."""

    minQueueIndex: int = 0
    maxQueueIndex: int = 0
    subscriptionData: Subscription | None = None
    filterData: str | None = None
    queueData: list[ConsumeQueueUnit] | None = None


class HaConnection(Body):
    """A follower, as its leader sees it. Offsets count bytes of the log."""

    addr: str = ""
    slaveAckOffset: int = 0
    diff: int = 0
    inSync: bool = False
    transferredByteInSecond: int = 0
    transferFromWhere: int = 0


class HaClient(Body):
    """A follower, as it sees itself."""

    masterAddr: str = ""
    transferredByteInSecond: int = 0
    maxOffset: int = 0
    lastReadTimestamp: int = 0
    lastWriteTimestamp: int = 0
    masterFlushOffset: int = 0
    activated: bool = False


class HaStatus(Body):
    """Answer to 907 GET_BROKER_HA_STATUS."""

    master: bool = False
    masterCommitLogMaxOffset: int = 0
    inSyncSlaveNums: int = 0
    haConnectionInfo: list[HaConnection] = msgspec.field(default_factory=list)
    haClientRuntimeInfo: HaClient = msgspec.field(default_factory=HaClient)


class EpochEntry(Body):
    """The part of the log that one leader wrote, as a range of bytes."""

    epoch: int = 0
    startOffset: int = 0
    endOffset: int = (1 << 63) - 1


class EpochCache(Body):
    """Answer to 1007 GET_BROKER_EPOCH_CACHE."""

    clusterName: str = ""
    brokerName: str = ""
    brokerId: int = 0
    maxOffset: int = 0
    epochList: list[EpochEntry] = msgspec.field(default_factory=list)


class DataVersionInfo(Body):
    """The version of one of a broker's tables."""

    timestamp: int = 0
    counter: int = 0


class AclVersion(Body):
    """Answer to 52 GET_BROKER_CLUSTER_ACL_INFO, made of its header fields."""

    clusterName: str = ""
    brokerName: str = ""
    brokerAddr: str = ""
    versions: dict[str, DataVersionInfo] = msgspec.field(default_factory=dict)


class PlainAccess(Body):
    """One account of access control 1.0. Permissions are `topic=PUB|SUB`."""

    accessKey: str = ""
    secretKey: str | None = None
    whiteRemoteAddress: str | None = None
    admin: bool = False
    defaultTopicPerm: str | None = None
    defaultGroupPerm: str | None = None
    topicPerms: list[str] | None = None
    groupPerms: list[str] | None = None


class AclConfig(Body):
    """Answer to 54 GET_BROKER_CLUSTER_ACL_CONFIG: the accounts of a broker."""

    globalWhiteAddrs: list[str] = msgspec.field(default_factory=list)
    plainAccessConfigs: list[PlainAccess] = msgspec.field(default_factory=list)


def decode_topic_stats(data: bytes) -> TopicStats:
    """Decode the answer to 202 GET_TOPIC_STATS_INFO."""
    value = _object(data)
    return TopicStats(
        _queues(value, "offsetTable", TopicOffset),
        convert_body(value.get("topicPutTps", 0.0), float, "topicPutTps"),
    )


def decode_consume_stats(data: bytes) -> ConsumeStats:
    """Decode the answer to 208 GET_CONSUME_STATS."""
    return _consume_stats(_object(data))


def decode_consume_stats_list(data: bytes) -> ConsumeStatsList:
    """Decode the answer to 317 GET_BROKER_CONSUME_STATS."""
    value = _object(data)
    groups = [
        (str(group), _consume_stats(one))
        for table in value.get("consumeStatsList", [])
        for group, rows in table.items()
        for one in rows
    ]
    return ConsumeStatsList(groups, convert_body(value.get("totalDiff", 0), int, "totalDiff"))


def decode_running_info(data: bytes) -> RunningInfo:
    """Decode the answer to 307 GET_CONSUMER_RUNNING_INFO."""
    value = _object(data)
    properties = value.get("properties", {})
    return RunningInfo(
        {str(key): _text(item) for key, item in properties.items()},
        convert_body(value.get("subscriptionSet", []), list[Subscription], "subscriptionSet"),
        _queues(value, "mqTable", ProcessQueueInfo),
        _queues(value, "mqPopTable", PopQueueInfo),
        convert_body(value.get("statusTable", {}), dict[str, ConsumeStatus], "statusTable"),
        {str(key): _text(item) for key, item in value.get("userConsumerInfo", {}).items()},
        value.get("jstack"),
    )


def decode_consumer_status(data: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Decode the answer to 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS. It maps each client id to the offsets by
    queue."""
    table = _object(data).get("consumerTable", {})
    return {str(client): _queues({"table": rows}, "table", int) for client, rows in table.items()}


def decode_plain(data: bytes, type_: type[T], what: str) -> T:
    """Decode a body that may have nulls instead of missing values."""
    return convert_body(without_nulls(loads(data, large=True)), type_, what)


def _consume_stats(value: Mapping[str, Any]) -> ConsumeStats:
    return ConsumeStats(
        _queues(value, "offsetTable", OffsetWrapper),
        convert_body(value.get("consumeTps", 0.0), float, "consumeTps"),
    )


def _object(data: bytes) -> dict[str, Any]:
    value = without_nulls(loads(data, large=True))
    if not isinstance(value, dict):
        raise BadBody("the body is not a JSON object")
    return value


def _queues(value: Mapping[str, Any], name: str, type_: type[T]) -> dict[MessageQueue, T]:
    table = value.get(name) or {}
    if not isinstance(table, dict):
        raise BadBody(f"{name} in the body is not a JSON object")
    found = {decode_body(key.encode(), MessageQueue, "queue"): item for key, item in table.items()}
    return {queue: convert_body(found[queue], type_, name) for queue in sorted(found)}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
