"""Commands for things that a Raft group does not have: controllers, containers, static topics, RocksDB, cold
reads.

Commands that consist of one request send it: Apache's servers answer, ours say why they do not. Commands that
need more, or read files that only Apache's brokers have, say so.
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

_CONTROLLER = Option("a", "controllerAddress", "Addresses of controllers, with ; between", required=True)
_CONTAINER = Option("c", "brokerContainerAddr", "Address of the container", required=True)
_BROKERS = (
    Option("c", "clusters", "Clusters, with commas between", one_of="where"),
    Option("b", "brokers", "Brokers, with commas between", one_of="where"),
    TOPIC,
)
_MAP = (Option("mf", "mapFile", "File of the map"), Option("fr", "forceReplace", "Replace the old map"))
_CONFIG = "topics, subscriptionGroups or consumerOffsets"

COMMANDS = (
    Command("addBroker", "Add a broker to a container", (
        _CONTAINER, Option("b", "brokerConfigPath", "The broker's configuration file, there", required=True),
    ), "containers:add_broker"),
    Command("removeBroker", "Remove a broker from a container", (
        _CONTAINER, Option("b", "brokerIdentity", "As clusterName:brokerName:brokerId", required=True),
    ), "containers:remove_broker"),
    Command("resetMasterFlushOffset", "Tell a slave how far its master is durable", (
        Option("b", "brokerAddr", "Address of the slave"), Option("o", "offset", "Byte of the log"),
    ), "containers:reset_master_flush_offset"),
    Command("updateStaticTopic", "Create a static topic", (
        *_BROKERS, Option("qn", "totalQueueNum", "How many queues", required=True), *_MAP,
    ), "static_topics:not_here", offline=True),
    Command("remappingStaticTopic", "Move the queues of a static topic", (*_BROKERS, *_MAP),
            "static_topics:not_here", offline=True),
    Command("exportMetadataInRocksDB", "Show topics or groups of a RocksDB", (
        Option("p", "path", "Directory of the RocksDB", required=True),
        Option("t", "configType", "topics or subscriptionGroups", required=True),
        Option("j", "jsonEnable", "As JSON: true or false"),
    ), "rocksdb:not_read", offline=True),
    Command("exportPopRecord", "Have brokers write what was popped to the log", (
        CLUSTER, BROKER, Option("d", "dryRun", "Only say what would be done: true or false"),
    ), "rocksdb:export_pop"),
    Command("getSyncStateSet", "Show which replicas are in step", (
        _CONTROLLER, CLUSTER, Option("b", "brokerName", "Broker name"),
        Option("i", "interval", "Has no effect: it looks once"),
    ), "controllers:sync_state_set"),
    Command("getControllerMetaData", "Show who is the controller", (_CONTROLLER,),
            "controllers:controller_metadata"),
    Command("getControllerConfig", "Show settings of controllers", (_CONTROLLER,),
            "controllers:controller_config"),
    Command("updateControllerConfig", "Change a setting of controllers", (
        _CONTROLLER, Option("k", "key", "Name of the setting", required=True),
        Option("v", "value", "Value", required=True),
    ), "controllers:update_controller_config"),
    Command("electMaster", "Have a broker become master", (
        _CONTROLLER, Option("b", "brokerId", "Number of the broker", required=True),
        Option("bn", "brokerName", "Broker name", required=True),
        Option("c", "clusterName", "Cluster name", required=True),
    ), "controllers:elect_master"),
    Command("cleanBrokerMetadata", "Have controllers forget a broker", (
        _CONTROLLER, Option("b", "brokerControllerIdsToClean", "Numbers of brokers, with ; between"),
        Option("bn", "brokerName", "Broker name", required=True), CLUSTER,
        Option("l", "cleanLivingBroker", "Also one that is there", value=False),
    ), "controllers:clean_broker_metadata"),
    Command("dumpCompactionLog", "Show the messages of a compaction log", (
        Option("f", "file", "The file"),
    ), "compaction:dump_compaction_log", offline=True),
    Command("getColdDataFlowCtrInfo", "Show who reads cold data", (BROKER, CLUSTER), "cold_reads:cold_info"),
    Command("updateColdDataFlowCtrGroupConfig", "Limit a group's reads of cold data", (
        BROKER, CLUSTER, GROUP, Option("v", "threshold", "Bytes", required=True),
    ), "cold_reads:update_cold"),
    Command("removeColdDataFlowCtrGroupConfig", "Limit them no more", (BROKER, CLUSTER, GROUP),
            "cold_reads:remove_cold"),
    Command("setCommitLogReadAheadMode", "Say how the log is read ahead", (
        BROKER, CLUSTER,
        Option("m", "commitLogReadAheadMode", "0 as usual, 1 for random reads", required=True),
    ), "cold_reads:read_ahead"),
    Command("rocksDBConfigToJson", "Have brokers export their RocksDB", (
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
    Command("switchTimerEngine", "Say where timer messages wait", (
        BROKER, CLUSTER, Option("e", "engineType", "R for RocksDB, F for files", required=True),
    ), "rocksdb:switch_timer"),
)  # fmt: skip
