"""Commands about topics, such as updateTopic and topicRoute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import msgspec

from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX, passing_over
from dledger.admin.namesrv import ORDER_TOPIC_CONFIG
from dledger.admin.offsets import NOBODY
from dledger.client import AllocateMessageQueueAveragely, ClientError, MessageQueue
from dledger.client.routes import subscribe_queues
from dledger.commands.mqadmin.call import (
    Call,
    human,
)
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.output import Table
from dledger.remoting.bodies import MASTER_ID, ListedTopic, TopicRoute
from dledger.remoting.codes import ResponseCode
from dledger.remoting.fastjson import without_nulls
from dledger.remoting.operator_bodies import TopicStats
from dledger.remoting.registration import TopicConfig

T = TypeVar("T")

UNIT, UNIT_SUBSCRIBED = 1, 2
"""Flags of a topic in its topicSysFlag (TopicSysFlag of RocketMQ)."""

TOPICS = Table.of("topics", ("#Cluster Name", "#Topic", "#Consumer Group"), "%-20s  %-48s  %-48s",
                  "%-20s  %-64s  %-64s", {0: 20, 1: 64, 2: 64})  # fmt: skip
ROUTE = Table.of("brokers",
                 ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"),
                 "%-45s %-32s %-50s %-10s %-11s %-5s")  # fmt: skip
STATUS = Table.of("queues", ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"),
                  "%-32s  %-4s  %-20s  %-20s    %s", cut={0: 32})  # fmt: skip
STATS = Table.of(
    "topics",
    ("#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"),
    "%-64s  %-64s %12s %11s %11s %14s %14s",
    cut={0: 64, 1: 64},
)


async def update_topic(call: Call) -> None:
    given = call.given
    config = TopicConfig(
        given.text("t"),
        given.number("r", 8),
        given.number("w", 8),
        given.number("p", 6),
        topicSysFlag=UNIT * given.true("u") | UNIT_SUBSCRIBED * given.true("s"),
        order=given.true("o"),
        attributes=attributes(given.maybe("a") or ""),
    )
    addresses = await call.masters()

    async def put(address: str) -> None:
        warning = await call.admin.topics.put(address, config)
        call.out.line(f"create topic to {address} success.")
        if warning:
            call.out.line(warning)

    if await call.each(addresses, put) and config.order:
        await _set_order(call, config)
    call.out.value("topic", msgspec.to_builtins(config), _shown(config))


async def _set_order(call: Call, config: TopicConfig) -> None:
    view, queues = await call.admin.brokers.cluster(), config.writeQueueNums
    if "c" in call.given:
        names = [group.brokerName for group in view.groups(call.given.text("c"))]
        await call.admin.namesrv.put_order(config.topicName, dict.fromkeys(names, queues))
        text = ";".join(f"{name}:{queues}" for name in names)
        call.out.line(f"set cluster orderConf. isOrder=true, orderConf=[{text}]")
        return
    name = view.name_of(call.given.text("b"))
    await call.admin.namesrv.put_order(config.topicName, {name: queues})
    call.out.line(f"set broker orderConf. isOrder=true, orderConf=[{name}:{queues}]")


def attributes(text: str) -> dict[str, str]:
    """Parse `+key=value,-key`: attributes to set, and attributes to remove. Raises WrongOptions for any
    other text."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        sign = "+" if equals else "-"
        if not key.startswith(sign) or key in found:
            raise WrongOptions(f"{text!r}: give attributes as +key=value,-key, each once")
        found[key] = value
    return found


def _shown(config: TopicConfig) -> str:
    perm = "".join(letter if config.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    pairs = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topicName}, readQueueNums={config.readQueueNums}, "
        f"writeQueueNums={config.writeQueueNums}, perm={perm}, topicFilterType={config.topicFilterType}, "
        f"topicSysFlag={config.topicSysFlag}, order={str(config.order).lower()}, attributes={{{pairs}}}]"
    )


def listed(call: Call, kind: type[T]) -> list[T]:
    """Read the list in the file that -f names. Raises ClientError if that is impossible."""
    path = Path(call.given.text("f"))
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ClientError(f"{path}: {error}") from error


async def update_topic_list(call: Call) -> None:
    topics = listed(call, ListedTopic)

    async def put(address: str) -> None:
        await call.admin.topics.put_all(address, topics)
        call.out.line(f"submit batch of topic config to {address} success, please check the result later.")

    if topics:
        await call.each(await call.masters(), put)


async def delete_topic(call: Call) -> None:
    topic, cluster = call.given.text("t"), call.given.text("c")
    masters = await call.admin.brokers.masters(cluster)
    for address in masters.values():
        await call.admin.topics.delete(address, topic)
    call.out.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    for namesrv in call.admin.namesrv.addresses:
        await call.admin.topics.delete_route(namesrv, topic, cluster)
    await call.admin.namesrv.drop_order(topic, masters)
    call.out.line(f"delete topic [{topic}] from NameServer success.")


async def topic_cluster_list(call: Call) -> None:
    for name in await call.admin.topics.clusters(call.given.text("t")):
        call.out.item("clusters", name, name)


async def topic_list(call: Call) -> None:
    names = await call.admin.topics.names()
    if "c" not in call.given:
        for name in names:
            call.out.item("topics", name, name)
        return
    view = await call.admin.brokers.cluster()
    call.out.head(TOPICS)
    for name in names:
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        cluster, groups = "", []
        try:
            first = (await call.admin.topics.route(name)).brokerDatas[0].brokerName
            cluster = next((one for one in view.clusters() if first in view.info.clusterAddrTable[one]), "")
            groups = await call.admin.topics.groups(name)
        except ClientError as error:
            call.fail(error)
        for group in groups or [""]:
            call.out.row(TOPICS, cluster, name, group)


async def topic_route(call: Call) -> None:
    route = await call.admin.topics.route(call.given.text("t"))
    if "l" not in call.given or call.out.as_json:
        shown = _route(route)
        call.out.value("route", shown, json.dumps(shown, indent="\t", separators=(",", ":"), sort_keys=True))
        return
    queues = {data.brokerName: data for data in route.queueDatas}
    rows = [(data, queues[data.brokerName]) for data in route.brokerDatas if data.brokerName in queues]
    call.out.head(ROUTE)
    for data, queue in rows:
        addresses = "{" + ", ".join(f"{one}={at}" for one, at in sorted(data.brokerAddrs.items())) + "}"
        call.out.row(ROUTE, data.cluster, data.brokerName, addresses, queue.readQueueNums,
                     queue.writeQueueNums, queue.perm)  # fmt: skip
    call.out.line("-" * 158)
    read, write = (sum(getattr(row, kind) for _, row in rows) for kind in ("readQueueNums", "writeQueueNums"))
    call.out.line(ROUTE.line(("Total:", len(rows), "", read, write, "")))


def _route(route: TopicRoute) -> object:
    return without_nulls(msgspec.to_builtins(route, str_keys=True))


async def topic_status(call: Call) -> None:
    stats: TopicStats = await call.admin.topics.stats(call.given.text("t"), call.given.maybe("c"))
    call.out.head(STATUS)
    for queue, row in sorted(stats.offsets.items()):
        last = human(row.lastUpdateTimestamp) if row.lastUpdateTimestamp > 0 else ""
        call.out.row(STATUS, queue.brokerName, queue.queueId, row.minOffset, row.maxOffset, last)
    call.out.line()
    call.out.value("Topic Put TPS", stats.topicPutTps, f"Topic Put TPS: {stats.topicPutTps}")


async def update_topic_perm(call: Call) -> None:
    topic, perm = call.given.text("t"), call.given.number("p")
    route = await call.admin.topics.route(topic)
    perms = {data.brokerName: data for data in route.queueDatas}
    names = {group.brokerAddrs.get(MASTER_ID): group.brokerName for group in route.brokerDatas}

    async def put(address: str) -> None:
        name = names.get(address)
        if name is None:
            raise ClientError("updateTopicPerm error broker not exit or broker is not master!.")
        config = await call.admin.topics.config(address, topic)
        before = perms[name]
        if config is None:
            config = TopicConfig(topic, before.readQueueNums, before.writeQueueNums,
                                 topicSysFlag=before.topicSysFlag)  # fmt: skip
        if before.perm == perm and "b" in call.given:
            call.out.line("new perm equals to the old one!")
            return
        config.perm, config.attributes = perm, {}  # other attributes stay
        await call.admin.topics.put(address, config)
        call.out.line(f"update topic perm from {before.perm} to {perm} in {address} success.")
        if "b" in call.given:
            call.out.line(f"{_shown(config)}.")

    addresses = await call.masters()
    await call.each([one for one in addresses if "b" in call.given or one in names], put)


async def update_order_conf(call: Call) -> None:
    topic, method = call.given.text("t"), call.given.text("m")
    if method == "get":
        found = await call.admin.namesrv.get(ORDER_TOPIC_CONFIG, topic)
        if found is None:
            raise ClientError(f"the topic {topic} has no orderConf")
        call.out.line(f"get orderConf success. topic=[{topic}], orderConf=[{found}] ")
    elif method == "put":
        text = call.given.maybe("v")
        if not text:
            raise WrongOptions("please set orderConf with option -v.")
        await call.admin.namesrv.put(ORDER_TOPIC_CONFIG, topic, text)
        call.out.line(f"update orderConf success. topic=[{topic}], orderConf=[{text}]")
    elif method == "delete":
        await call.admin.namesrv.delete(ORDER_TOPIC_CONFIG, topic)
        call.out.line(f"delete orderConf success. topic=[{topic}]")
    else:
        raise WrongOptions(f"-m {method}: give get, put or delete")


async def allocate_mq(call: Call) -> None:
    topic, clients = call.given.text("t"), call.given.words("i")
    queues: list[MessageQueue] = subscribe_queues(topic, await call.admin.topics.route(topic))
    strategy = AllocateMessageQueueAveragely()
    result = {
        client: [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
            for queue in strategy("aa", client, queues, clients)
        ]
        for client in clients
    }
    call.out.value("result", result, json.dumps({"result": result}, separators=(",", ":")))


async def stats_all(call: Call) -> None:
    wanted, active = call.given.maybe("t"), "a" in call.given
    call.out.head(STATS)
    for topic in await call.admin.topics.names():
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or wanted not in (None, topic):
            continue
        try:
            await _stats_of(call, topic, active)
        except ClientError as error:
            call.fail(error)


async def _stats_of(call: Call, topic: str, active: bool) -> None:
    route = await call.admin.topics.route(topic)
    masters = [group.brokerAddrs[MASTER_ID] for group in route.brokerDatas if MASTER_ID in group.brokerAddrs]

    async def counted(name: str, key: str) -> tuple[float, int]:
        tps, day = 0.0, 0
        for master in masters:
            with passing_over(ResponseCode.SYSTEM_ERROR):  # it counted nothing of that
                found = await call.admin.brokers.stats(master, name, key)
                tps += found.statsMinute.tps
                day += found.last_day
        return tps, day

    in_tps, in_day = await counted("TOPIC_PUT_NUMS", topic)
    groups = await call.admin.topics.groups(topic)
    if not groups and (in_day or not active):
        call.out.row(STATS, topic, "", 0, f"{in_tps:.2f}", "", in_day, "NO_CONSUMER")
    for group in groups:
        out_tps, out_day = await counted("GROUP_GET_NUMS", f"{topic}@{group}")
        behind = 0
        with passing_over(*NOBODY):  # a group that has no offset is not behind
            behind = max((await call.admin.offsets.stats(group, topic)).behind, 0)
        if in_day or out_day or not active:
            call.out.row(STATS, topic, group, behind, f"{in_tps:.2f}", f"{out_tps:.2f}", in_day, out_day)
