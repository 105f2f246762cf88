"""Headers of requests that only Apache's servers answer: accounts in files (ACL 1.0), controllers,
containers, RocksDB."""

from __future__ import annotations

from dledger.remoting.response_headers import I64, Header


class AccessConfigHeader(Header):
    """Header of 50 UPDATE_AND_CREATE_ACL_CONFIG. The items of a list are separated by commas, as in
    `topicA=PUB,topicB=SUB`."""

    accessKey: str
    secretKey: str | None = None
    whiteRemoteAddress: str | None = None
    admin: bool | None = None
    defaultTopicPerm: str | None = None
    defaultGroupPerm: str | None = None
    topicPerms: str | None = None
    groupPerms: str | None = None


class AccessKeyHeader(Header):
    """Header of 51 DELETE_ACL_CONFIG."""

    accessKey: str


class WhiteAddressesHeader(Header):
    """Header of 53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG. The addresses in `globalWhiteAddrs` are separated by
    commas."""

    globalWhiteAddrs: str
    aclFileFullPath: str | None = None


class MasterFlushOffsetHeader(Header):
    """908 RESET_MASTER_FLUSH_OFFSET. The offset counts bytes of the log."""

    masterFlushOffset: I64


class AddBrokerHeader(Header):
    """Header of 902 ADD_BROKER, which is sent to a container (a process that runs several brokers)."""

    configPath: str


class RemoveBrokerHeader(Header):
    """Header of 903 REMOVE_BROKER, which is sent to a container (a process that runs several brokers)."""

    brokerClusterName: str
    brokerName: str
    brokerId: I64


class ElectMasterHeader(Header):
    """Header of 1002 CONTROLLER_ELECT_MASTER, as an operator sends it."""

    clusterName: str
    brokerName: str
    brokerId: I64
    designateElect: bool = True


class CleanBrokerDataHeader(Header):
    """Header of 1011 CLEAN_BROKER_DATA. The ids in `brokerControllerIdsToClean` are separated by
    semicolons."""

    brokerName: str
    clusterName: str | None = None
    brokerControllerIdsToClean: str | None = None
    isCleanLivingBroker: bool = False


class CqWriteProgressHeader(Header):
    """354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS. `checkStoreTime` is in ms since the epoch."""

    topic: str | None = None
    checkStoreTime: I64 | None = None


class ExportConfigHeader(Header):
    """355 EXPORT_ROCKSDB_CONFIG_TO_JSON. `configType` holds names, separated by semicolons."""

    configType: str
