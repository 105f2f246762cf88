"""Headers of requests that only Apache's servers answer: accounts in files (ACL 1.0), controllers,
containers, RocksDB."""

from __future__ import annotations

from dledger.remoting.response_headers import I64, Header


class AccessConfigHeader(Header):
    """50 UPDATE_AND_CREATE_ACL_CONFIG. Lists are separated by commas, as in `topicA=PUB,topicB=SUB`."""

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
    """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG. `globalWhiteAddrs` is separated by commas."""

    globalWhiteAddrs: str
    aclFileFullPath: str | None = None


class MasterFlushOffsetHeader(Header):
    """908 RESET_MASTER_FLUSH_OFFSET. The offset counts bytes of the log."""

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
    """1002 CONTROLLER_ELECT_MASTER, as an operator sends it."""

    clusterName: str
    brokerName: str
    brokerId: I64
    designateElect: bool = True


class CleanBrokerDataHeader(Header):
    """1011 CLEAN_BROKER_DATA. `brokerControllerIdsToClean` is separated by semicolons."""

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
