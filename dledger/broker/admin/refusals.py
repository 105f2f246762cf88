"""Requests of RocketMQ's tools that this broker does not support, each with the reason.

They are answered with code 3 (not supported), as unknown requests are, and with a text that says what to use
instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.remoting.codes import RequestCode

_ACL = (
    "accounts of ACL 1.0 are in the file plain_acl.yml of each broker, which reloads it when it "
    "changes: no request shows or changes these accounts. Users and policies of ACL 2.0 are changed "
    "by createUser and createAcl"
)
_COLD = (
    "this broker does not slow down groups that read cold data: such reads run on workers and delay "
    "no other request"
)
_CONTAINER = (
    "this broker is a member of a Raft group: members are added and removed with `dledger member`, "
    "not with a container"
)
_CONTROLLER = "there is no controller: the brokers of a group elect their leader among themselves, by Raft"
_ROCKSDB = (
    "this broker keeps its ConsumeQueues in files and its configuration in the replicated log, not in RocksDB"
)
_STATIC = (
    "this broker has no static topics: the queues of a topic stay with their broker group, "
    "whichever member leads it"
)
REFUSED: Mapping[RequestCode, str] = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ACL,
    RequestCode.DELETE_ACL_CONFIG: _ACL,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _ACL,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ACL,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _ACL,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        "a group cannot be forbidden to read one single topic: disable the group (updateSubGroup -s "
        "false), or take the read permission from the topic (updateTopicPerm)"
    ),
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _STATIC,
    RequestCode.ADD_BROKER: _CONTAINER,
    RequestCode.REMOVE_BROKER: _CONTAINER,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (
        "there is no flush offset of a master to set: what is committed is durable at a majority of the group"
    ),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLER,
    RequestCode.CONTROLLER_ELECT_MASTER: f"{_CONTROLLER}; `dledger transfer` moves leadership",
    RequestCode.CONTROLLER_GET_METADATA_INFO: _CONTROLLER,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: f"{_CONTROLLER}; haStatus shows how far the followers are",
    RequestCode.UPDATE_CONTROLLER_CONFIG: _CONTROLLER,
    RequestCode.GET_CONTROLLER_CONFIG: _CONTROLLER,
    RequestCode.CLEAN_BROKER_DATA: _CONTROLLER,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    RequestCode.SET_COMMITLOG_READ_MODE: (
        "the read mode of the log cannot be set: hot segments are mapped, cold ones are read by workers"
    ),
    RequestCode.POP_ROLLBACK: (
        "pops are rows of the replicated state, not messages of a revive topic: there is nothing to export,"
        " or to roll back"
    ),
    RequestCode.SWITCH_TIMER_ENGINE: (
        "delayed messages always wait in the replicated log: there is no timer engine to choose"
    ),
}
"""Maps the code of an unsupported request to the reason why it is not supported."""
