"""Commands that set offsets of groups: resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    ROUTE_TOPIC,
    TOPIC,
    Command,
)
from dledger.commands.mqadmin.options import Option

_GROUP = Option("g", "group", "Consumer group name", required=True)
_FORCE = Option("f", "force", "Also forward: true or false (default true)")

COMMANDS = (
    Command("cloneGroupOffset", "Copy the offsets of one group to another", (
        Option("s", "srcGroup", "Group whose offsets are copied", required=True),
        Option("d", "destGroup", "Group that gets the offsets", required=True), TOPIC,
        Option("o", "offline", "Has no effect, as in Apache's"),
    ), "offsets:clone"),
    Command("resetOffsetByTime", "Move the offsets of a group to a time", (
        _GROUP, TOPIC,
        Option("s", "timestamp", "now, ms since the epoch, or yyyy-MM-dd#HH:mm:ss:SSS", required=True),
        _FORCE, ROUTE_TOPIC, Option("b", "broker", "Address of one broker, with -q"),
        Option("q", "queue", "One queue of the broker -b"),
        Option("o", "offset", "Offset of that queue, instead of a time"),
    ), "offsets:reset_by_time"),
    Command("skipAccumulatedMessage", "Move the offsets of a group after all messages", (
        _GROUP, TOPIC, _FORCE, ROUTE_TOPIC,
    ), "offsets:skip_accumulated"),
)  # fmt: skip
