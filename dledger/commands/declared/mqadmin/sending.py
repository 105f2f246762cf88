"""Commands that send messages, most of them to measure how long that takes: sendMessage, checkMsgSendRT,
clusterRT."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    TOPIC,
    Command,
)
from dledger.commands.mqadmin.options import Option

COMMANDS = (
    Command("sendMsgStatus", "Send to a broker, and show how long that takes", (
        Option("b", "brokerName", "Broker name", required=True),
        Option("s", "messageSize", "Bytes of a message (default 128)"),
        Option("c", "count", "Number of messages (default 50)"),
    ), "sending:send_msg_status"),
    Command("checkMsgSendRT", "Send to a topic, and show how long that takes", (
        TOPIC, Option("a", "amount", "Number of messages (default 100)"),
        Option("s", "size", "Bytes of a message (default 128)"),
    ), "sending:check_send_rt"),
    Command("clusterRT", "Send to all brokers again and again, and show how long that takes", (
        Option("a", "amount", "Number of messages (default 100)"),
        Option("s", "size", "Bytes of a message (default 128)"), Option("c", "cluster", "One cluster"),
        Option("p", "print log", "Print lines for a log: true or false"),
        Option("m", "machine room", "Name in these lines (default noname)"),
        Option("i", "interval", "Seconds between two rounds (default 10)"),
    ), "sending:cluster_rt"),
    Command("sendMessage", "Send a message", (
        TOPIC, Option("p", "body", "Body, as UTF-8", required=True),
        Option("k", "key", "Keys, separated by spaces"),
        Option("c", "tags", "Tag"), Option("b", "broker", "Broker name, with -i"),
        Option("i", "qid", "Queue number, with -b"), Option("m", "msgTraceEnable", "Not supported: "
                "trace the message"),
    ), "sending:send_message"),
)  # fmt: skip
