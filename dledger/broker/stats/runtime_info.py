"""Runtime information of a broker for mqadmin, the dashboard and the exporter (28 GET_BROKER_RUNTIME_INFO).

Tools read RocketMQ's keys without checking that they exist. So all of these keys are present, even those that
have no meaning for this broker. Keys that RocketMQ does not have are additions of this project.
"""

from __future__ import annotations

from dledger.broker.core import Core
from dledger.broker.status_values import whole
from dledger.broker.store.message_store import MessageStore
from dledger.broker.topic.topic_names import SCHEDULE_TOPIC
from dledger.formats.state import DELAYS
from dledger.remoting.codes import VERSION

_NO_POOLS = {
    f"{pool}ThreadPoolQueue{figure}": "0"
    for pool in ("send", "pull", "litePull", "query", "ack")
    for figure in ("Size", "Capacity", "HeadWaitTimeMills")
    if pool != "send" or figure == "Capacity"
} | {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "dispatchMaxBuffer": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "startAcceptSendRequestTimeStamp": "0",
}
"""Values that stand for RocketMQ's thread pools and buffers. This broker has none, because the loop handles
requests as they arrive, and no buffer lies between a message and the log. The value for RocketMQ's buffer is
its largest one, so the buffer never seems to run out. The size and the longest wait of the send queue are not
in this table. They are real values, which show the sends that wait for their commit."""


def runtime_info(core: Core, boot_ms: int) -> dict[str, str]:
    """Return the values by key. The values that must be read from the device, and the figures
    (`dledger.broker.figures`), are added elsewhere."""
    node, store, stats = core.node, core.store, core.stats
    status = node.status()
    today, yesterday = stats.morning, stats.yesterday_morning
    end, applied = whole(status.get("end_pos")), store.dispatcher.applied_end
    messages, size = stats.put_totals()
    average = size / messages if messages else 0.0
    return {
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": "V5_3_3",
        "bootTimestamp": str(boot_ms),
        "runtime": _ran((core.env.wall.now_ms() - boot_ms) // 1000),
        "brokerActive": "true" if node.serving else "false",
        "brokerRole": "SYNC_MASTER" if node.serving else "SLAVE",
        "commitLogMinOffset": str(node.log.begin_pos),
        "commitLogMaxOffset": str(end),
        "dispatchBehindBytes": str(max(0, end - applied)),
        "dispatchBehindIndex": str(whole(status.get("committed_index")) - store.applied_index),
        "putTps": stats.rates(stats.puts_of_broker),
        "getFoundTps": stats.rates(stats.found),
        "getMissTps": stats.rates(stats.missed),
        "getTotalTps": stats.rates(stats.found, stats.missed),
        "getTransferredTps": stats.rates(stats.gets_of_broker),
        "getTransferedTps": stats.rates(stats.gets_of_broker),  # RocketMQ 4.9 spells it like this
        "msgPutTotalYesterdayMorning": str(yesterday[0]),
        "msgPutTotalTodayMorning": str(today[0]),
        "msgGetTotalYesterdayMorning": str(yesterday[1]),
        "msgGetTotalTodayMorning": str(today[1]),
        "putMessageTimesTotal": str(messages),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": f"{average:g}",
        "putMessageDistributeTime": core.committed.times.text(),
        "putMessageEntireTimeMax": str(core.committed.times.longest_ms),
        "getMessageEntireTimeMax": str(stats.longest_get_ms),
        "remainHowManyDataToFlush": bytes_text(max(end - node.log.durable_pos, 0)),
        **delay_progress(store),
        "statsNotCounted": str(stats.not_counted),
        **_NO_POOLS,
        "raftTerm": str(status.get("term", 0)),
        "raftRole": str(status.get("role", "")),
    }


def delay_progress(store: MessageStore) -> dict[str, str]:
    """Return the next offset to deliver and the end of the queue, for each delay level in use."""
    found = {}
    for level, row in sorted(store.state[DELAYS].rows.items()):
        queue = store.queues.get(SCHEDULE_TOPIC, level - 1)
        end = row.next if queue is None else queue.bounds.next
        found[f"scheduleMessageOffset_{level}"] = f"{row.next},{end}"
    return found


def bytes_text(count: int) -> str:
    """A readable size, as RocketMQ writes it (MixAll.humanReadableByteCount).

    >>> bytes_text(1023), bytes_text(1024), bytes_text(251 << 30)
    ('1023 B', '1.0 KiB', '251.0 GiB')
    """
    if count < 1024:
        return f"{count} B"
    size, unit = float(count), 0
    while size >= 1024:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {'KMGTPE'[unit - 1]}iB"


def _ran(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    return f"[ {days} days, {hours} hours, {rest // 60} minutes, {rest % 60} seconds ]"
