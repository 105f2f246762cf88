"""Declares commands about consumer groups and producers, such as updateSubGroup and consumerProgress."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    BROKER,
    CLUSTER,
    GROUP,
    ONE_BROKER,
    ONE_CLUSTER,
    ROUTE_TOPIC,
    TOPIC,
    Command,
)
from dledger.commands.mqadmin.options import Option

_NAME = Option("g", "groupName", "Consumer group name", required=True)
_TOPIC_NAME = Option("t", "topicName", "Topic name", required=True)

COMMANDS = (
    Command("updateSubGroup", "Create a consumer group, or change it", (
        BROKER, CLUSTER, _NAME,
        Option("s", "consumeEnable", "Whether it may consume: true or false (default true)"),
        Option("m", "consumeFromMinEnable", "Whether it may begin at the oldest message (default false)"),
        Option("d", "consumeBroadcastEnable", "Whether it may broadcast (default false)"),
        Option("o", "consumeMessageOrderly", "Whether it consumes in order (default false)"),
        Option("q", "retryQueueNums", "Queues of its retry topic (default 1)"),
        Option("r", "retryMaxTimes", "Number of retries of a message (default 16)"),
        Option("p", "groupRetryPolicy", "Not supported: delays of retries are messageDelayLevel"),
        Option("i", "brokerId", "Broker id to read from (default 0, the master)"),
        Option("w", "whichBrokerWhenConsumeSlowly", "Broker id to read from when the group is behind "
                "(default 1)"),
        Option("a", "notifyConsumerIdsChanged", "Whether consumers are notified of others (default true)"),
        Option("", "attributes", "Attributes to set and to remove: +a=b,-c"),
    ), "groups:update_sub_group"),
    Command("updateSubGroupList", "Create or change several consumer groups", (
        ONE_BROKER, ONE_CLUSTER, Option("f", "filename", "File with a list of them as JSON", required=True),
    ), "groups:update_sub_group_list"),
    Command("deleteSubGroup", "Delete a consumer group", (
        BROKER, CLUSTER, _NAME, Option("r", "removeOffset", "Also its offsets: true or false"),
    ), "groups:delete_sub_group"),
    Command("setConsumeMode", "Let the consumers of a group pull or pop", (
        BROKER, CLUSTER, _TOPIC_NAME, _NAME, Option("m", "mode", "PULL or POP", required=True),
        Option("q", "popShareQueueNum", "Queues that others share in pop mode"),
    ), "groups:set_consume_mode"),
    Command("getConsumerConfig", "Show the settings of a consumer group", (_NAME,), "groups:consumer_config"),
    Command("consumerProgress", "Show the offsets of consumer groups", (
        Option("g", "groupName", "One consumer group (default: all)"),
        Option("t", "topicName", "One topic of the group"),
        Option("s", "showClientIP", "Also show which client has each queue: true or false"), ROUTE_TOPIC,
    ), "groups:consumer_progress"),
    Command("consumerStatus", "Show what a group's consumers are doing", (
        GROUP, Option("i", "clientId", "One consumer"), BROKER,
        Option("s", "jstack", "With its threads", value=False),
    ), "groups:consumer_status"),
    Command("consumerConnection", "Show the consumers of a group", (GROUP, BROKER),
            "groups:consumer_connection"),
    Command("producerConnection", "Show the producers of a group", (
        Option("g", "producerGroup", "Producer group name", required=True), TOPIC,
    ), "groups:producer_connection"),
    Command("producer", "Show all producers of a broker", (
        Option("b", "broker", "Address of one broker", required=True),
    ), "groups:producer"),
    Command("brokerConsumeStats", "Show the offsets of all groups of a broker", (
        Option("b", "brokerAddr", "Address of one broker", required=True),
        Option("t", "timeoutMillis", "How long to wait for it (default 50000 ms)"),
        Option("l", "level", "Only queues that are at least this far behind"),
        Option("o", "order", "Only ordered topics: true or false"),
    ), "groups:broker_consume_stats"),
    Command("startMonitoring", "Report groups that are behind, each minute", (), "groups:start_monitoring"),
)  # fmt: skip
