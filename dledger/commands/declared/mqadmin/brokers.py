"""Declares commands about brokers, such as brokerStatus, clusterList and updateBrokerConfig."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    BROKER,
    CLUSTER,
    ONE_BROKER,
    ONE_CLUSTER,
    Command,
)
from dledger.commands.mqadmin.options import Option

_ANY_BROKER = (Option("b", "brokerAddr", "Address of one broker"), Option("c", "cluster", "One cluster"))
_EVERY = Option("i", "interval", "Repeat, with this number of seconds between")

COMMANDS = (
    Command("brokerStatus", "Show figures of brokers", (ONE_BROKER, ONE_CLUSTER),
            "brokers:broker_status", direct=True),
    Command("getBrokerConfig", "Show settings of brokers", (ONE_BROKER, ONE_CLUSTER),
            "brokers:broker_config", direct=True),
    Command("updateBrokerConfig", "Change a setting of brokers", (
        BROKER, CLUSTER, Option("a", "updateAllBroker", "Has no effect: slaves of -c are changed, too"),
        Option("k", "key", "Name of the setting", required=True),
        Option("v", "value", "Value", required=True),
    ), "brokers:update_broker_config", direct=True),
    Command("clusterList", "List clusters and brokers, with their figures", (
        Option("m", "moreStats", "Messages of today and yesterday", value=False), _EVERY,
        Option("c", "clusterName", "One cluster"),
    ), "brokers:cluster_list"),
    Command("haStatus", "Show the progress of slaves", (CLUSTER, BROKER, _EVERY), "brokers:ha_status"),
    Command("getBrokerEpoch", "Show which terms wrote which bytes of the log", (
        Option("c", "clusterName", "All brokers of this cluster", one_of="where"),
        Option("b", "brokerName", "Broker name", one_of="where"), _EVERY,
    ), "brokers:broker_epoch"),
    Command("cleanExpiredCQ", "Remove files of ConsumeQueues whose messages are gone", _ANY_BROKER,
            "brokers:clean_queues", direct=True),
    Command("deleteExpiredCommitLog", "Remove expired segments", _ANY_BROKER,
            "brokers:clean_log", direct=True),
    Command("cleanUnusedTopic", "Remove files of deleted topics", _ANY_BROKER,
            "brokers:clean_topics", direct=True),
)  # fmt: skip
