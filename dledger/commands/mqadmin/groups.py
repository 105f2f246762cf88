"""Commands about consumer groups and producers, such as updateSubGroup and consumerProgress."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from dledger.admin.asking import passing_over
from dledger.admin.offsets import NOBODY
from dledger.client import ClientError
from dledger.commands.mqadmin.call import (
    Call,
    seconds,
)
from dledger.commands.mqadmin.consumers import Problems, info_text
from dledger.commands.mqadmin.messages import file_name
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.output import Table
from dledger.commands.mqadmin.topics import attributes, listed
from dledger.commands.mqadmin.versions import version_name
from dledger.remoting.bodies import ConsumerConnections, MessageQueue, SubscriptionGroupConfig
from dledger.remoting.operator_bodies import ConsumeStats, RunningInfo

PROGRESS = Table.of(
    "queues",
    (
        "#Topic",
        "#Broker Name",
        "#QID",
        "#Broker Offset",
        "#Consumer Offset",
        "#Diff",
        "#Inflight",
        "#LastTime",
    ),
    "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s%s",
    "%-64s  %-32s  %-4d  %-20d  %-20d  %-20d %-20d %s",
    {0: 64, 1: 32},
)
PROGRESS_BY_CLIENT = Table.of(
    "queues",
    ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Client IP", "#Diff",
     "#Inflight", "#LastTime"),
    "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %-20s%s",
    "%-64s  %-32s  %-4d  %-20d  %-20d  %-20s %-20d %-20d %s",
    {0: 64, 1: 32},
)  # fmt: skip
GROUPS = Table.of(
    "groups",
    ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"),
    "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s",
    cut={0: 64},
)
CONSUMERS = Table.of("consumers", ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"),
                     "%-10s %-40s %-20s %s")  # fmt: skip
CONNECTIONS = Table.of("connections", ("#ClientId", "#ClientAddr", "#Language", "#Version"),
                       "%-36s %-22s %-10s %s")  # fmt: skip
SUBSCRIPTIONS = Table.of("subscriptions", ("#Topic", "#SubExpression"), "%-20s %s")
BROKER_STATS = Table.of(
    "queues",
    ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime"),
    "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s",
    cut={0: 64, 2: 32},
)


async def update_sub_group(call: Call) -> None:
    given = call.given
    if "p" in given:
        raise ClientError(
            "-p has no effect: brokers accept no retry policy of a group through this "
            "command, so it is not sent"
        )
    config = SubscriptionGroupConfig(
        given.text("g"),
        consumeEnable=given.true("s", True),
        consumeFromMinEnable=given.true("m"),
        consumeBroadcastEnable=given.true("d"),
        consumeMessageOrderly=given.true("o"),
        retryQueueNums=given.number("q", 1),
        retryMaxTimes=given.number("r", 16),
        brokerId=given.number("i", 0),
        whichBrokerWhenConsumeSlowly=given.number("w", 1),
        notifyConsumerIdsChangedEnable=given.true("a", True),
        attributes=attributes(given.maybe("attributes") or ""),
    )

    async def put(address: str) -> None:
        warning = await call.admin.groups.put(address, config)
        call.out.line(f"create subscription group to {address} success.")
        if warning and any(option in given for option in ("m", "i", "w", "a", "attributes")):
            call.out.line(warning)  # Apache's defaults are sent for options not given

    await call.each(await call.masters(), put)
    shown = msgspec.to_builtins(config)
    pairs = ", ".join(f"{key}={_java(value)}" for key, value in shown.items())
    call.out.value("group", shown, f"SubscriptionGroupConfig{{{pairs}}}")


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def update_sub_group_list(call: Call) -> None:
    groups = listed(call, SubscriptionGroupConfig)

    async def put(address: str) -> None:
        warning = await call.admin.groups.put_all(address, groups)
        call.out.line(
            f"submit batch of subscription group config to {address} success, please check the result later."
        )
        if warning:
            call.out.line(warning)

    if groups:
        await call.each(await call.masters(), put)


async def delete_sub_group(call: Call) -> None:
    group, offsets = call.given.text("g"), call.given.true("r")
    cluster = call.given.maybe("c")
    where = f" in cluster [{cluster}]" if cluster is not None and "b" not in call.given else ""
    addresses = await call.masters()

    async def delete(address: str) -> None:
        await call.admin.groups.delete(address, group, offsets=offsets)
        call.out.line(f"delete subscription group [{group}] from broker [{address}]{where} success.")

    if not await call.each(addresses, delete) or not where:
        return
    for topic in call.admin.groups.topics_left(group):
        for address in addresses:
            await call.admin.topics.delete(address, topic)
        for namesrv in call.admin.namesrv.addresses:
            await call.admin.topics.delete_route(namesrv, topic, cluster)


async def set_consume_mode(call: Call) -> None:
    topic, group, mode = call.given.text("t"), call.given.text("g"), call.given.text("m")
    if mode not in ("PULL", "POP"):
        raise WrongOptions(f"-m {mode}: give PULL or POP")
    share = call.given.number("q")

    async def put(address: str) -> None:
        await call.admin.groups.set_request_mode(address, topic, group, mode, share)
        call.out.line(f"set consume mode to {address} success.")

    await call.each(await call.masters(), put)
    call.out.line(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{share}]")


async def consumer_config(call: Call) -> None:
    group = call.given.text("g")
    view = await call.admin.brokers.cluster()
    found = False
    for data in view.groups():
        address = next((at for _, at in sorted(data.brokerAddrs.items())), None)
        config = None if address is None else await call.admin.groups.config(address, group)
        if config is None:
            continue
        found = True
        lines = [
            f"============================={data.cluster}:{data.brokerName}============================="
        ]
        shown = msgspec.to_builtins(config)
        lines += [f"{key:<40}=  {_java(value)}" for key, value in shown.items()]
        row = {"cluster": data.cluster, "broker": data.brokerName, **shown}
        call.out.item("groups", row, "\n".join(lines))
    if not found:
        raise ClientError(f"no broker has the consumer group {group}")


async def consumer_progress(call: Call) -> None:
    group = call.given.maybe("g")
    if group is None:
        await _all_groups(call)
        return
    topic = call.given.maybe("t")
    stats = await call.admin.offsets.stats(group, topic)
    clients = await _clients(call, group) if call.given.true("s") else None
    table = PROGRESS if clients is None else PROGRESS_BY_CLIENT
    call.out.head(table)
    for queue, row in sorted(stats.offsets.items()):
        where = (queue.topic, queue.brokerName, queue.queueId, row.brokerOffset, row.consumerOffset)
        client = () if clients is None else (clients.get(queue, "N/A"),)
        last = seconds(row.lastTimestamp) if row.lastTimestamp else "N/A"
        diff = row.brokerOffset - row.consumerOffset
        call.out.row(table, *where, *client, diff, row.pullOffset - row.consumerOffset, last)
    inflight = sum(row.pullOffset - row.consumerOffset for row in stats.offsets.values())
    call.out.line()
    for name, value, shown in (
        ("Consume TPS", stats.consumeTps, f"{stats.consumeTps:.2f}"),
        ("Consume Diff Total", stats.behind, str(stats.behind)),
        ("Consume Inflight Total", inflight, str(inflight)),
    ):
        call.out.value(name, value, f"{name}: {shown}")


async def _clients(call: Call, group: str) -> dict[MessageQueue, str]:
    """Return the client that consumes each queue. As in Apache's mqadmin, consumers that do not answer are
    left out."""
    found: dict[MessageQueue, str] = {}
    try:
        for one in (await call.admin.groups.connections(group)).connectionSet:
            info = await call.admin.groups.running_info(group, one.clientId)
            found.update(dict.fromkeys(info.queues, one.clientId.split("@")[0]))
    except ClientError as error:
        call.out.fail(str(error))
    return found


async def _all_groups(call: Call) -> None:
    call.out.head(GROUPS)
    for group in await call.admin.groups.names():
        stats, told = ConsumeStats({}, 0.0), ConsumerConnections()
        with passing_over(*NOBODY):
            told = await call.admin.groups.connections(group)
        with passing_over(*NOBODY):
            stats = await call.admin.offsets.stats(group)
        count = len(told.connectionSet)
        version = version_name(min(one.version for one in told.connectionSet)) if count else "OFFLINE"
        kind = "" if not count else "PULL" if told.consumeType == "CONSUME_ACTIVELY" else "PUSH"
        model = told.messageModel or "" if kind == "PUSH" else ""
        call.out.row(GROUPS, group, count, version, kind, model, int(stats.consumeTps), stats.behind)


async def consumer_status(call: Call) -> None:
    group, stacks = call.given.text("g"), "s" in call.given
    client = call.given.maybe("i")
    if client is not None:
        info = await call.admin.groups.running_info(group, client, stacks=stacks)
        call.out.value("consumer", _plain(info), info_text(info))
        return
    told = await call.admin.groups.connections(group, call.given.maybe("b"))
    directory = Path(str(call.admin.now_ms()))
    found: dict[str, RunningInfo] = {}
    call.out.head(CONSUMERS)
    for one in sorted(told.connectionSet, key=lambda one: one.clientId):
        try:
            info = await call.admin.groups.running_info(group, one.clientId, stacks=stacks)
        except ClientError as error:
            call.fail(error)
            continue
        found[one.clientId] = info
        path = directory / file_name(one.clientId)
        _write(path, info_text(info))
        call.out.row(CONSUMERS, len(found), one.clientId, version_name(one.version), str(path))
        call.out.item("infos", {"clientId": one.clientId, **_plain(info)}, "") if call.out.as_json else None
    if not found:
        return
    problems = Problems(found, call.admin.now_ms())
    if not problems.same_subscription:
        call.out.line("\n\nWARN: Different subscription in the same group of consumer!!!")
        return
    call.out.line("\n\nSame subscription in the same group of consumer")
    call.out.line("\n\nRebalance OK")
    for text in problems.stuck_queues():
        call.out.line(text)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from error


def _plain(info: RunningInfo) -> dict[str, object]:
    """Return the state of a consumer as JSON. Queues are rows of a list there, because JSON cannot have
    them as keys of a table."""
    rows = [{**msgspec.to_builtins(queue), **msgspec.to_builtins(one)} for queue, one in info.queues.items()]
    return {
        "properties": info.properties,
        "subscriptions": [{"topic": one.topic, "expression": one.subString} for one in info.subscriptions],
        "queues": rows,
        "status": {topic: msgspec.to_builtins(one) for topic, one in info.status.items()},
        **({"jstack": info.jstack} if info.jstack else {}),
    }


async def consumer_connection(call: Call) -> None:
    told = await call.admin.groups.connections(call.given.text("g"), call.given.maybe("b"))
    call.out.table(
        CONNECTIONS,
        [
            (one.clientId, one.clientAddr, one.language, version_name(one.version))
            for one in told.connectionSet
        ],
    )
    call.out.line("\nBelow is subscription:")
    call.out.table(
        SUBSCRIPTIONS, [(one.topic, one.subString) for _, one in sorted(told.subscriptionTable.items())]
    )
    call.out.line()
    for name, value in (
        ("ConsumeType", told.consumeType),
        ("MessageModel", told.messageModel),
        ("ConsumeFromWhere", told.consumeFromWhere),
    ):
        call.out.value(name, value, f"{name}: {value}")


async def producer_connection(call: Call) -> None:
    told = await call.admin.groups.producers(call.given.text("g"), call.given.text("t"))
    for number, one in enumerate(told.connectionSet, 1):
        row = {**msgspec.to_builtins(one), "version": version_name(one.version)}
        text = f"{number:04d}  {one.clientId:<32} {one.clientAddr:<22} {one.language:<8} {row['version']}"
        call.out.item("connections", row, text)


async def producer(call: Call) -> None:
    table = await call.admin.groups.all_producers(call.given.text("b"))
    for group, rows in sorted(table.data.items()):
        for one in rows:
            shown = (
                f"clientId={one.clientId},remoteIP={one.remoteIP}, language={one.language}, "
                f"version={one.version}, lastUpdateTimestamp={one.lastUpdateTimestamp}"
            )
            text = f"producer group ({group}) instance : {shown}"
            call.out.item("producers", {"group": group, **msgspec.to_builtins(one)}, text)
        if not rows:
            call.out.line(f"producer group ({group}) instances are empty")


async def broker_consume_stats(call: Call) -> None:
    given = call.given
    found = await call.admin.offsets.all_stats(
        given.text("b"), ordered=given.true("o"), timeout_s=given.number("t", 50_000) / 1000
    )
    level = given.number("l")
    call.out.head(BROKER_STATS)
    for group, stats in found.groups:
        for queue, row in sorted(stats.offsets.items()):
            diff = row.brokerOffset - row.consumerOffset
            if diff < level or row.lastTimestamp <= 0:
                continue
            where = (queue.topic, group, queue.brokerName, queue.queueId)
            call.out.row(BROKER_STATS, *where, row.brokerOffset, row.consumerOffset, diff,
                         seconds(row.lastTimestamp))  # fmt: skip
    call.out.line()
    call.out.value("Diff Total", found.totalDiff, f"Diff Total: {found.totalDiff}")


async def start_monitoring(call: Call) -> None:
    """Print the backlog of every group and topic, one line for each, once a minute until the command is
    ended (MonitorService)."""
    while True:
        for group in await call.admin.groups.names():
            stats = ConsumeStats({}, 0.0)
            with passing_over(*NOBODY):
                stats = await call.admin.offsets.stats(group)
            topics: dict[str, int] = {}
            for queue, row in stats.offsets.items():
                topics[queue.topic] = topics.get(queue.topic, 0) + row.brokerOffset - row.consumerOffset
            for topic, behind in sorted(topics.items()):
                fields = f"consumerGroup={group}, topic={topic}, undoneMsgsTotal={behind}"
                text = f"reportUndoneMsgs: UndoneMsgs [{fields}]"
                row_ = {"group": group, "topic": topic, "undoneMsgsTotal": behind}
                call.out.item("undone", row_, text)
        call.out.end_round()
        await asyncio.sleep(MONITOR_S)


MONITOR_S = 60.0
"""Pause between two rounds of startMonitoring, in seconds."""
