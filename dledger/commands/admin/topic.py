"""`dledger admin topic`: list, show, create, update, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX, masters_of
from dledger.client import ClientError
from dledger.commands.admin.places import broker_groups, each, masters, one_of
from dledger.commands.admin.running import Told, did_you_mean
from dledger.commands.admin.showing import Table
from dledger.commands.declared.admin.topic import PERMS
from dledger.commands.mqadmin.call import human
from dledger.remoting.registration import TopicConfig

SYSTEM_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_")


def _perm(value: int) -> str:
    return ("r" if value & 4 else "") + ("w" if value & 2 else "") or "none"


async def own_topics(admin: AsyncAdminClient) -> list[str]:
    """Return the names of all topics, except those that brokers have for their own use."""
    system: set[str] = set()
    for data in await broker_groups(admin):
        system |= {*(await admin.topics.system_names(one_of(data))), data.cluster, data.brokerName}
    names = await admin.topics.names()
    return [name for name in names if name not in system and not name.startswith(SYSTEM_PREFIXES)]


async def list_topics(admin: AsyncAdminClient, told: Told, every: bool) -> None:
    names = await (admin.topics.names() if every else own_topics(admin))
    rows = []
    for name in names:
        route = await admin.topics.route(name)
        rows.append(
            {
                "topic": name,
                "brokers": [data.brokerName for data in route.queueDatas],
                "readQueues": sum(data.readQueueNums for data in route.queueDatas),
                "writeQueues": sum(data.writeQueueNums for data in route.queueDatas),
                "perm": " ".join(sorted({_perm(data.perm) for data in route.queueDatas})),
            }
        )
    shown = [
        (row["topic"], row["readQueues"], row["writeQueues"], row["perm"], " ".join(row["brokers"]))  # type: ignore[arg-type]
        for row in rows
    ]
    columns = ("topic", "read", "write", "perm", "brokers")
    told.show({"topics": rows}, Table("", columns, shown, "no topics"))


async def show_topic(admin: AsyncAdminClient, told: Told, topic: str) -> None:
    route = await admin.topics.route(topic)
    stats = await admin.topics.stats(topic)
    configs = {}
    for place in route.brokerDatas:
        config = await admin.topics.config(one_of(place), topic)
        if config is not None:
            configs[place.brokerName] = config
    groups = await admin.topics.groups(topic)
    queues = [
        {
            "broker": queue.brokerName,
            "queue": queue.queueId,
            "lowest": row.minOffset,
            "next": row.maxOffset,
            "messages": row.maxOffset - row.minOffset,
            "last": human(row.lastUpdateTimestamp) if row.lastUpdateTimestamp > 0 else None,
        }
        for queue, row in sorted(stats.offsets.items())
    ]
    data = {
        "topic": topic,
        "settings": {name: msgspec.to_builtins(config) for name, config in configs.items()},
        "queues": queues,
        "putTps": stats.topicPutTps,
        "groups": groups,
    }
    settings = [
        (name, one.readQueueNums, one.writeQueueNums, _perm(one.perm), one.order, _pairs(one.attributes))
        for name, one in configs.items()
    ]
    told.show(
        data,
        Table("settings", ("broker", "read", "write", "perm", "order", "attributes"), settings),
        Table(
            "queues",
            ("broker", "queue", "lowest", "next", "messages", "last message"),
            [[value if value is not None else "" for value in row.values()] for row in queues],
        ),
        Table("consumer groups", ("group",), [(name,) for name in groups]),
        f"{stats.topicPutTps:.2f} messages are received per second",
    )


def _pairs(values: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()))


def _attributes(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ClientError(f"--attribute {text}: give KEY=VALUE, or KEY= to remove it")
        found[f"{'+' if value else '-'}{key}"] = value
    return found


async def create_topic(
    admin: AsyncAdminClient,
    told: Told,
    topic: str,
    cluster: str | None,
    broker: str | None,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    attribute: tuple[str, ...],
) -> None:
    places = await masters(admin, cluster, broker)
    if topic in await admin.topics.names():
        raise ClientError(
            f"the topic {topic!r} already exists: use `dledger topic update {topic}` to change it"
        )
    config = TopicConfig(
        topic,
        read_queues or queues or 8,
        write_queues or queues or 8,
        PERMS[perm or "rw"],
        order=bool(order),
        attributes=_attributes(attribute),
    )
    warnings: list[str] = []
    told.warn(warnings, _unread(config))
    if not told.dry_run:
        await each(places.values(), lambda address: _put(admin, told, address, config, warnings))
        if config.order:
            await admin.namesrv.put_order(topic, dict.fromkeys(places, config.writeQueueNums))
    shown = msgspec.to_builtins(config)
    verb = "would be created" if told.dry_run else "is created"
    told.show(
        {"topic": shown, "brokers": list(places), "warnings": warnings, "dryRun": told.dry_run},
        f"{topic} {verb} at {', '.join(places)}: {config.readQueueNums} queues to read, "
        f"{config.writeQueueNums} to write, {_perm(config.perm)}",
    )


async def _put(
    admin: AsyncAdminClient, told: Told, address: str, config: TopicConfig, warnings: list[str]
) -> None:
    told.warn(warnings, await admin.topics.put(address, config))


def _unread(config: TopicConfig) -> str:
    """Return a warning if producers may send to queues that no consumer reads; otherwise an empty text."""
    first, last = config.readQueueNums, config.writeQueueNums - 1
    if first > last:
        return ""
    queues = f"queue {last}" if first == last else f"queues {first} to {last}"
    return f"messages in {queues} cannot be read, because the topic has more queues to write than to read"


async def update_topic(
    admin: AsyncAdminClient,
    told: Told,
    topic: str,
    cluster: str | None,
    broker: str | None,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    attribute: tuple[str, ...],
) -> None:
    await admin.topics.route(topic)
    changes = []
    for name, address in (await masters(admin, cluster, broker)).items():
        before = await admin.topics.config(address, topic)
        if before is None:
            continue
        after = TopicConfig(
            topic,
            read_queues or queues or before.readQueueNums,
            write_queues or queues or before.writeQueueNums,
            before.perm if perm is None else PERMS[perm],
            before.topicFilterType,
            before.topicSysFlag,
            before.order if order is None else order,
            _attributes(attribute),
        )
        changes.append((name, address, before, after))
    warnings: list[str] = []
    made = [(name, before, after) for name, _, before, after in changes]
    if not told.dry_run and any(_differences(before, after) for _, before, after in made):
        made = []
        for broker_name, address, before, after in changes:
            await _put(admin, told, address, after, warnings)
            now = await admin.topics.config(address, topic) or after  # a broker may keep what is needed
            made.append((broker_name, before, msgspec.structs.replace(now, attributes=after.attributes)))
        await _put_order(admin, topic, made)
    for _, _, after in made:
        told.warn(warnings, _unread(after))
    rows = [
        (name, what, old, new)
        for name, before, after in made
        for what, old, new in _differences(before, after)
    ]
    data = [{"broker": row[0], "setting": row[1], "before": row[2], "after": row[3]} for row in rows]
    told.show(
        {"topic": topic, "changes": data, "warnings": warnings, "dryRun": told.dry_run},
        Table(topic, ("broker", "setting", "before", "after"), rows, "nothing to change"),
    )


async def _put_order(
    admin: AsyncAdminClient, topic: str, made: Sequence[tuple[str, TopicConfig, TopicConfig]]
) -> None:
    """Update the NameServers' entry of an ordered topic. The entry names the queues of all brokers that
    have the topic, because producers use only the queues that it names."""
    queues = {name: after.writeQueueNums for name, _, after in made if after.order}
    if queues:
        route = await admin.topics.route(topic)
        others = [(name, at) for name, at in masters_of(route) if name not in queues]
        for name, address in others:
            config = await admin.topics.config(address, topic)
            if config is not None and config.order:
                queues[name] = config.writeQueueNums
        await admin.namesrv.put_order(topic, queues)
    gone = [name for name, before, after in made if before.order and not after.order]
    if gone:
        await admin.namesrv.drop_order(topic, gone)


def _differences(before: TopicConfig, after: TopicConfig) -> list[tuple[str, object, object]]:
    rows: list[tuple[str, object, object]] = [
        ("read queues", before.readQueueNums, after.readQueueNums),
        ("write queues", before.writeQueueNums, after.writeQueueNums),
        ("perm", _perm(before.perm), _perm(after.perm)),
        ("order", before.order, after.order),
    ]
    for key, value in after.attributes.items():
        rows.append((key[1:], before.attributes.get(key[1:], ""), value))
    return [row for row in rows if row[1] != row[2]]


async def delete_topics(
    admin: AsyncAdminClient, told: Told, topics: tuple[str, ...], cluster: str | None, broker: str | None
) -> None:
    known = await admin.topics.names()
    for name in topics:
        if name not in known:
            raise ClientError(f"there is no topic {name!r}{did_you_mean(name, known)}")
    rows = []
    for name in topics:
        stats = await admin.topics.stats(name)
        count = sum(one.maxOffset - one.minOffset for one in stats.offsets.values())
        rows.append({"topic": name, "messages": count, "groups": await admin.topics.groups(name)})
    table = Table(
        "would be deleted" if told.dry_run else "to be deleted",
        ("topic", "messages", "consumer groups"),
        [(row["topic"], row["messages"], " ".join(row["groups"])) for row in rows],  # type: ignore[arg-type]
    )
    if told.dry_run:
        told.show({"topics": rows, "dryRun": True}, table)
        return
    if not told.as_json:
        told.show(None, table)
    told.agreed(f"Delete {', '.join(topics)} and all messages?")
    places = await masters(admin, cluster, broker)
    for name in topics:
        await each(places.values(), lambda address, name=name: admin.topics.delete(address, name))  # type: ignore[misc]
        if cluster is None and broker is None:
            for namesrv in admin.namesrv.addresses:
                await admin.topics.delete_route(namesrv, name)
        await admin.namesrv.drop_order(name, places)
    told.show({"topics": rows, "dryRun": False}, f"{', '.join(topics)}: deleted")
