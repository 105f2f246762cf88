"""Declares commands about topics, such as updateTopic and topicRoute."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    BROKER,
    CLUSTER,
    ONE_BROKER,
    ONE_CLUSTER,
    ROUTE_TOPIC,
    TOPIC,
    Command,
)
from dledger.commands.mqadmin.options import Option

_FILE = Option("f", "filename", "File with a list of them as JSON", required=True)
_ATTRIBUTES = Option("a", "attributes", "Attributes to set and to remove: +a=b,-c")

COMMANDS = (
    Command("updateTopic", "Create a topic, or change it", (
        ONE_BROKER, ONE_CLUSTER, _ATTRIBUTES, TOPIC,
        Option("r", "readQueueNums", "Queues to read from (default 8)"),
        Option("w", "writeQueueNums", "Queues to write to (default 8)"),
        Option("p", "perm", "Permission: 2 write, 4 read, 6 both (default 6)"),
        Option("o", "order", "Whether it is ordered: true or false"),
        Option("u", "unit", "Whether it belongs to a unit: true or false"),
        Option("s", "hasUnitSub", "Whether units subscribe it: true or false"),
    ), "topics:update_topic"),
    Command("updateTopicList", "Create or change several topics", (ONE_BROKER, ONE_CLUSTER, _FILE),
            "topics:update_topic_list"),
    Command("deleteTopic", "Delete a topic at brokers and NameServers", (
        TOPIC, Option("c", "clusterName", "All brokers of this cluster", required=True),
    ), "topics:delete_topic"),
    Command("updateTopicPerm", "Change the permission of a topic", (
        BROKER, CLUSTER, TOPIC, Option("p", "perm", "Permission: 2 write, 4 read, 6 both", required=True),
    ), "topics:update_topic_perm"),
    Command("topicRoute", "Show the route of a topic", (
        TOPIC, Option("l", "list", "A table instead of JSON", value=False),
    ), "topics:topic_route"),
    Command("topicStatus", "Show the offsets of the queues of a topic", (TOPIC, ROUTE_TOPIC),
            "topics:topic_status"),
    Command("topicClusterList", "List the clusters that have a topic", (TOPIC,), "topics:topic_cluster_list"),
    Command("topicList", "List all topics", (
        Option("c", "clusterModel", "With clusters and consumer groups", value=False),
    ), "topics:topic_list"),
    Command("updateOrderConf", "Set, show or remove the queues of an ordered topic", (
        TOPIC, Option("v", "orderConf", "Value, as brokerName1:num;brokerName2:num"),
        Option("m", "method", "put, get or delete", required=True),
    ), "topics:update_order_conf"),
    Command("statsAll", "Show rates of topics and consumer groups", (
        Option("a", "activeTopic", "Only topics with traffic", value=False),
        Option("t", "topic", "One topic"),
    ), "topics:stats_all"),
    Command("allocateMQ", "Show how consumers would share a topic's queues", (
        TOPIC, Option("i", "ipList", "Consumers, separated by commas", required=True),
    ), "topics:allocate_mq"),
)  # fmt: skip
