"""Declares commands that find and show messages, such as queryMsgById, printMsg and queryCq."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    ROUTE_TOPIC,
    TOPIC,
    Command,
)
from dledger.commands.mqadmin.options import Option

_ID = Option("i", "msgId", "Message id", required=True)
_CONSUMER = Option("g", "consumerGroup", "Consumer group of the consumer -d")
_CLIENT = Option("d", "clientId", "Client id of the consumer that receives the message, with -g")
_BODY = Option("f", "bodyFormat", "Character set to show the body in")
_BEGIN = Option("b", "beginTimestamp", "Stored at that time or later, in ms since the epoch")
_END = Option("e", "endTimestamp", "Stored at that time or before, in ms since the epoch")
_TIME = "ms since the epoch, or yyyy-MM-dd#HH:mm:ss:SSS"
_MOST = "Largest number of messages from each broker (default 64)"
_FROM = Option("b", "beginTimestamp", f"Stored at that time or later: {_TIME}")
_UNTIL = Option("e", "endTimestamp", f"Stored before that time: {_TIME}")
_CHARSET = Option("c", "charsetName", "Character set of bodies (default UTF-8)")
_TAGS = Option("s", "subExpression", "Only messages with these tags: TagA || TagB")

COMMANDS = (
    Command("queryMsgById", "Show a message, deliver it to a consumer, or send it again", (
        TOPIC, Option("i", "msgId", "Message ids, separated by commas", required=True), _CONSUMER, _CLIENT,
        Option("s", "sendMessage", "Send it again: true or false"),
        Option("u", "unitName", "Has no effect: no units here"), _BODY, ROUTE_TOPIC,
    ), "messages:query_by_id"),
    Command("queryMsgByKey", "Find messages by key", (
        TOPIC, Option("k", "msgKey", "Key", required=True), _BEGIN, _END,
        Option("m", "maxNum", _MOST), ROUTE_TOPIC,
        Option("p", "keyType", "K for keys; T for tags is not supported"),
        Option("l", "lastKey", "Not supported: the key to continue from"),
    ), "messages:query_by_key"),
    Command("queryMsgByUniqueKey", "Show a message by its unique key", (
        _ID, _CONSUMER, _CLIENT, TOPIC, Option("a", "showAll", "All with that key, up to 32", value=False),
        ROUTE_TOPIC, Option("s", "startTime", "Stored at that time or later, in ms since the epoch"),
        Option("e", "endTime", "Stored at that time or before, in ms since the epoch"),
    ), "messages:query_by_unique_key"),
    Command("queryMsgByOffset", "Show the message at an offset", (
        TOPIC, Option("b", "brokerName", "Broker name", required=True),
        Option("i", "queueId", "Queue number", required=True),
        Option("o", "offset", "Queue offset", required=True), _BODY,
    ), "messages:query_by_offset"),
    Command("queryMsgTraceById", "Show the producer and the consumers of a message", (
        _ID, Option("t", "traceTopic", "Topic of traces (default RMQ_SYS_TRACE_TOPIC)"), _BEGIN, _END,
        Option("c", "maxNum", _MOST),
    ), "messages:query_trace", alias="QueryMsgTraceById"),
    Command("printMsg", "Print the messages of a topic", (
        TOPIC, _CHARSET, _TAGS, _FROM, _UNTIL,
        Option("d", "printBody", "With bodies: true or false (default true)"),
        Option("l", "lmqParentTopic", "Topic whose brokers have the queues, for an LMQ"),
    ), "messages:print_msg"),
    Command("printMsgByQueue", "Print, or count by tag, the messages of a queue", (
        TOPIC, Option("a", "brokerName", "Broker name", required=True),
        Option("i", "queueId", "Queue number", required=True), _CHARSET, _TAGS, _FROM, _UNTIL,
        Option("p", "print msg", "Print them: true or false (default false)"),
        Option("d", "printBody", "With bodies: true or false (default false)"),
        Option("f", "calculate", "Count them by tag: true or false (default false)"),
    ), "messages:print_msg_by_queue"),
    Command("consumeMessage", "Print messages from an offset or a time", (
        TOPIC, Option("b", "brokerName", "Broker name"), Option("i", "queueId", "Queue number"),
        Option("o", "offset", "Queue offset"), Option("g", "consumerGroup", "Read as this consumer group"),
        Option("s", "beginTimestamp", f"Stored at that time or later: {_TIME}"), _UNTIL,
        Option("c", "MessageNumber", "How many messages (default 128)"),
    ), "messages:consume_message"),
    Command("queryCq", "Show entries of a ConsumeQueue", (
        TOPIC, Option("q", "queue", "Queue number", required=True),
        Option("i", "index", "Offset of the first unit", required=True),
        Option("c", "count", "How many units (default 10)"), Option("b", "broker", "Address of one broker"),
        Option("g", "consumer", "Consumer group, to show its subscription"),
    ), "messages:query_cq"),
)  # fmt: skip
