"""Headers of what operators and their tools ask brokers, and brokers the consumers (as `headers`)."""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class CloneGroupOffsetHeader(Header):
    """314 CLONE_GROUP_OFFSET; without topic of all topics."""

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


class RunningInfoHeader(Header):
    """307 GET_CONSUMER_RUNNING_INFO."""

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False


class ConsumeDirectlyHeader(Header):
    """309 CONSUME_MESSAGE_DIRECTLY. `msgId`: an offset message id; what is behind it a broker fills in."""

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None
    topic: str | None = None
    topicSysFlag: I32 | None = None
    groupSysFlag: I32 | None = None


class ConsumerStatusHeader(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS. `clientAddr`: id of a client, or of all."""

    topic: str
    group: str
    clientAddr: str | None = None


class ConsumerStatusOfClientHeader(Header):
    """221 GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str


class BrokerConsumeStatsHeader(Header):
    """317 GET_BROKER_CONSUME_STATS. `isOrder`: of ordered topics alone."""

    isOrder: bool


class ViewBrokerStatsHeader(Header):
    """315 VIEW_BROKER_STATS_DATA."""

    statsName: str
    statsKey: str


class ConsumeTimeSpanHeader(Header):
    """303 QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class GroupTopicHeader(Header):
    """345 QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None


class CorrectionOffsetHeader(Header):
    """308 QUERY_CORRECTION_OFFSET. `filterGroups`: names with commas between."""

    compareGroup: str
    topic: str
    filterGroups: str | None = None


class UserHeader(Header):
    """3001 to 3004 AUTH_*_USER."""

    username: str


class UserFilterHeader(Header):
    """3005 AUTH_LIST_USER. Without a filter: all."""

    filter: str | None = None


class SubjectHeader(Header):
    """3006, 3007, 3009 AUTH_*_ACL. `subject`: as `User:name`."""

    subject: str


class DeleteAclHeader(Header):
    """3008 AUTH_DELETE_ACL. Without resource: all that the subject may do."""

    subject: str
    policyType: str | None = None
    resource: str | None = None


class AclFilterHeader(Header):
    """3010 AUTH_LIST_ACL."""

    subjectFilter: str | None = None
    resourceFilter: str | None = None


class AccessConfigHeader(Header):
    """50 UPDATE_AND_CREATE_ACL_CONFIG. Lists with commas between, as `topicA=PUB,topicB=SUB`."""

    accessKey: str
    secretKey: str | None = None
    whiteRemoteAddress: str | None = None
    admin: bool | None = None
    defaultTopicPerm: str | None = None
    defaultGroupPerm: str | None = None
    topicPerms: str | None = None
    groupPerms: str | None = None


class AccessKeyHeader(Header):
    """51 DELETE_ACL_CONFIG."""

    accessKey: str


class WhiteAddressesHeader(Header):
    """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG. `globalWhiteAddrs`: with commas between."""

    globalWhiteAddrs: str
    aclFileFullPath: str | None = None


class MasterFlushOffsetHeader(Header):
    """908 RESET_MASTER_FLUSH_OFFSET: a byte of the log."""

    masterFlushOffset: I64


class AddBrokerHeader(Header):
    """902 ADD_BROKER, to a container."""

    configPath: str


class RemoveBrokerHeader(Header):
    """903 REMOVE_BROKER, to a container."""

    brokerClusterName: str
    brokerName: str
    brokerId: I64


class ElectMasterHeader(Header):
    """1002 CONTROLLER_ELECT_MASTER, as an operator asks for it."""

    clusterName: str
    brokerName: str
    brokerId: I64
    designateElect: bool = True


class CleanBrokerDataHeader(Header):
    """1011 CLEAN_BROKER_DATA. `brokerControllerIdsToClean`: with semicolons between."""

    brokerName: str
    clusterName: str | None = None
    brokerControllerIdsToClean: str | None = None
    isCleanLivingBroker: bool = False


class CqWriteProgressHeader(Header):
    """354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS. `checkStoreTime` in ms since the epoch."""

    topic: str | None = None
    checkStoreTime: I64 | None = None


class ExportConfigHeader(Header):
    """355 EXPORT_ROCKSDB_CONFIG_TO_JSON. `configType`: names with semicolons between."""

    configType: str
