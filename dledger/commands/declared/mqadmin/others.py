"""Declares commands for what only Apache's servers have: controllers, broker containers, static topics,
RocksDB, compaction logs, and limits on cold reads.

Most of these commands send one request. Apache's servers carry it out; this project's servers answer with
the reason why they refuse. Commands that would need more, such as those about static topics, send nothing
and print that they are not supported. dumpCompactionLog reads a file.
"""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    BROKER,
    CLUSTER,
    GROUP,
    TOPIC,
    Command,
)
from dledger.commands.mqadmin.options import Option

_CONTROLLER = Option("a", "controllerAddress", "Addresses of controllers, separated by ;", required=True)
_CONTAINER = Option("c", "brokerContainerAddr", "Address of the container", required=True)
_BROKERS = (
    Option("c", "clusters", "Clusters, separated by commas", one_of="where"),
    Option("b", "brokers", "Brokers, separated by commas", one_of="where"),
    TOPIC,
)
_MAP = (Option("mf", "mapFile", "File of the map"), Option("fr", "forceReplace", "Replace the old map"))
_CONFIG = "topics, subscriptionGroups or consumerOffsets"

COMMANDS = (
    Command("addBroker", "Add a broker to a container", (
        _CONTAINER, Option("b", "brokerConfigPath", "Configuration file on that machine", required=True),
    ), "containers:add_broker"),
    Command("removeBroker", "Remove a broker from a container", (
        _CONTAINER, Option("b", "brokerIdentity", "As clusterName:brokerName:brokerId", required=True),
    ), "containers:remove_broker"),
    Command("resetMasterFlushOffset", "Set how far the master of a slave is durable", (
        Option("b", "brokerAddr", "Address of the slave"), Option("o", "offset", "Byte of the log"),
    ), "containers:reset_master_flush_offset"),
    Command("updateStaticTopic", "Create a static topic", (
        *_BROKERS, Option("qn", "totalQueueNum", "Number of queues", required=True), *_MAP,
    ), "static_topics:not_here", offline=True),
    Command("remappingStaticTopic", "Move the queues of a static topic", (*_BROKERS, *_MAP),
            "static_topics:not_here", offline=True),
    Command("exportMetadataInRocksDB", "Show topics or groups of a RocksDB", (
        Option("p", "path", "Directory of the RocksDB", required=True),
        Option("t", "configType", "topics or subscriptionGroups", required=True),
        Option("j", "jsonEnable", "As JSON: true or false"),
    ), "rocksdb:not_read", offline=True),
    Command("exportPopRecord", "Let brokers write popped messages to the log", (
        CLUSTER, BROKER, Option("d", "dryRun", "Only show what would be done: true or false"),
    ), "rocksdb:export_pop"),
    Command("getSyncStateSet", "Show which replicas are in sync", (
        _CONTROLLER, CLUSTER, Option("b", "brokerName", "Broker name"),
        Option("i", "interval", "Has no effect: the state is shown once"),
    ), "controllers:sync_state_set"),
    Command("getControllerMetaData", "Show the active controller", (_CONTROLLER,),
            "controllers:controller_metadata"),
    Command("getControllerConfig", "Show settings of controllers", (_CONTROLLER,),
            "controllers:controller_config"),
    Command("updateControllerConfig", "Change a setting of controllers", (
        _CONTROLLER, Option("k", "key", "Name of the setting", required=True),
        Option("v", "value", "Value", required=True),
    ), "controllers:update_controller_config"),
    Command("electMaster", "Make a broker the master", (
        _CONTROLLER, Option("b", "brokerId", "Number of the broker", required=True),
        Option("bn", "brokerName", "Broker name", required=True),
        Option("c", "clusterName", "Cluster name", required=True),
    ), "controllers:elect_master"),
    Command("cleanBrokerMetadata", "Remove a broker from controllers", (
        _CONTROLLER, Option("b", "brokerControllerIdsToClean", "Numbers of brokers, separated by ;"),
        Option("bn", "brokerName", "Broker name", required=True), CLUSTER,
        Option("l", "cleanLivingBroker", "Also a broker that is alive", value=False),
    ), "controllers:clean_broker_metadata"),
    Command("dumpCompactionLog", "Show the messages of a compaction log", (
        Option("f", "file", "The file"),
    ), "compaction:dump_compaction_log", offline=True),
    Command("getColdDataFlowCtrInfo", "Show readers of cold data", (BROKER, CLUSTER), "cold_reads:cold_info"),
    Command("updateColdDataFlowCtrGroupConfig", "Limit a group's reads of cold data", (
        BROKER, CLUSTER, GROUP, Option("v", "threshold", "Bytes", required=True),
    ), "cold_reads:update_cold"),
    Command("removeColdDataFlowCtrGroupConfig", "Remove that limit", (BROKER, CLUSTER, GROUP),
            "cold_reads:remove_cold"),
    Command("setCommitLogReadAheadMode", "Set the read-ahead of the log", (
        BROKER, CLUSTER,
        Option("m", "commitLogReadAheadMode", "0 as usual, 1 for random reads", required=True),
    ), "cold_reads:read_ahead"),
    Command("rocksDBConfigToJson", "Let brokers export their RocksDB", (
        Option("t", "configType", _CONFIG),
        Option("p", "configPath", "Directory of a RocksDB: not read here"),
        Option("e", "exportFile", "With -p: file to write"), Option("j", "jsonEnable", "With -p: as JSON"),
        Option("c", "cluster", "All brokers of this cluster"), BROKER,
    ), "rocksdb:rocksdb_config"),
    Command("checkRocksdbCqWriteProgress", "Compare RocksDB with files of ConsumeQueues", (
        Option("c", "cluster", "All brokers of this cluster", required=True),
        Option("t", "topic", "One topic"),
        Option("cf", "checkFrom", "Stored then or later, in ms since the epoch (default 30 days ago)"),
    ), "rocksdb:cq_progress"),
    Command("switchTimerEngine", "Set the store of timer messages", (
        BROKER, CLUSTER, Option("e", "engineType", "R for RocksDB, F for files", required=True),
    ), "rocksdb:switch_timer"),
)  # fmt: skip
