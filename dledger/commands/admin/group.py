"""`dledger admin group`: list, show, create, update, delete consumer groups."""

from __future__ import annotations

from typing import Any

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import passing_over
from dledger.admin.offsets import NOBODY
from dledger.client import ClientError
from dledger.commands.admin.places import broker_groups, each, masters, one_of
from dledger.commands.admin.running import Told, did_you_mean
from dledger.commands.admin.showing import Table
from dledger.commands.mqadmin.call import human
from dledger.commands.mqadmin.exports import SYSTEM_GROUPS, SYSTEM_PREFIXES
from dledger.commands.mqadmin.versions import version_name
from dledger.remoting.bodies import ConsumerConnections, SubscriptionGroupConfig
from dledger.remoting.operator_bodies import ConsumeStats


async def known_groups(admin: AsyncAdminClient) -> list[str]:
    """Return the groups that brokers know, except RocketMQ's own."""
    found: set[str] = set()
    for data in await broker_groups(admin):
        found |= (await admin.groups.configs(one_of(data))).keys()
    own = (name for name in sorted(found) if name not in SYSTEM_GROUPS)
    return [name for name in own if not name.startswith(SYSTEM_PREFIXES)]


async def must_exist(admin: AsyncAdminClient, name: str) -> None:
    """Check that a group exists. If not, raises ClientError, whose text suggests a group with a similar
    name."""
    known = await known_groups(admin)
    if name not in known:
        raise ClientError(f"there is no consumer group {name!r}{did_you_mean(name, known)}")


async def _online(admin: AsyncAdminClient, name: str) -> ConsumerConnections:
    with passing_over(*NOBODY):
        return await admin.groups.connections(name)
    return ConsumerConnections()


async def _stands(admin: AsyncAdminClient, name: str) -> ConsumeStats:
    with passing_over(*NOBODY):
        return await admin.offsets.stats(name)
    return ConsumeStats({}, 0.0)


async def list_groups(admin: AsyncAdminClient, told: Told) -> None:
    rows = []
    for name in await known_groups(admin):
        online, stats = await _online(admin, name), await _stands(admin, name)
        rows.append(
            {
                "group": name,
                "consumers": len(online.connectionSet),
                "model": online.messageModel,
                "topics": sorted({queue.topic for queue in stats.offsets}),
                "tps": stats.consumeTps,
                "behind": stats.behind,
            }
        )
    table = Table(
        "",
        ("group", "consumers", "model", "topics", "tps", "behind"),
        [
            [
                " ".join(value) if isinstance(value, list) else value or (value if value == 0 else "")
                for value in row.values()
            ]
            for row in rows
        ],
        "no consumer groups",
    )
    told.show({"groups": rows}, table)


async def show_group(admin: AsyncAdminClient, told: Told, name: str) -> None:
    await must_exist(admin, name)
    online, stats = await _online(admin, name), await _stands(admin, name)
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.brokerName,
            "queue": queue.queueId,
            "end": row.brokerOffset,
            "offset": row.consumerOffset,
            "behind": row.brokerOffset - row.consumerOffset,
            "last": human(row.lastTimestamp) if row.lastTimestamp else None,
        }
        for queue, row in stats.offsets.items()
    ]
    consumers = [
        {
            "client": one.clientId,
            "address": one.clientAddr,
            "language": one.language,
            "version": version_name(one.version),
        }
        for one in online.connectionSet
    ]
    subscriptions = {topic: one.subString for topic, one in sorted(online.subscriptionTable.items())}
    settings = {}
    for data in await broker_groups(admin):
        config = await admin.groups.config(one_of(data), name)
        if config is not None:
            settings[data.brokerName] = msgspec.to_builtins(config)
    told.show(
        {
            "group": name,
            "queues": queues,
            "consumers": consumers,
            "subscriptions": subscriptions,
            "settings": settings,
            "tps": stats.consumeTps,
            "behind": stats.behind,
        },
        Table(
            "offsets of the group",
            ("topic", "broker", "queue", "end", "offset", "behind", "last consumed message"),
            [["" if value is None else value for value in row.values()] for row in queues],
            "no offsets yet",
        ),
        Table(
            "consumers",
            ("client", "address", "language", "version"),
            [list(row.values()) for row in consumers],
            "no consumer is online",
        ),
        Table("subscriptions", ("topic", "expression"), list(subscriptions.items())),
        Table(
            "settings",
            ("broker", "setting", "value"),
            [
                (broker, key, value)
                for broker, row in settings.items()
                for key, value in row.items()
                if key != "groupName"
            ],
        ),
        f"{stats.behind} messages behind, {stats.consumeTps:.2f} a second",
    )


async def create_group(
    admin: AsyncAdminClient, told: Told, name: str, cluster: str | None, broker: str | None, **settings: Any
) -> None:
    if name in await known_groups(admin):
        raise ClientError(f"the consumer group {name!r} already exists: use `update` to change it")
    config = _changed(SubscriptionGroupConfig(name), settings)
    places = await masters(admin, cluster, broker)
    warnings: list[str] = []

    async def put(address: str) -> None:
        told.warn(warnings, await admin.groups.put(address, config))

    if not told.dry_run:
        await each(places.values(), put)
    verb = "would be created" if told.dry_run else "is created"
    data = {"group": msgspec.to_builtins(config), "brokers": list(places), "dryRun": told.dry_run}
    data["warnings"] = warnings
    told.show(data, f"{name} {verb} at {', '.join(places)}")


def _changed(config: SubscriptionGroupConfig, settings: dict[str, Any]) -> SubscriptionGroupConfig:
    return msgspec.structs.replace(
        config, **{key: value for key, value in settings.items() if value is not None}
    )


async def update_group(
    admin: AsyncAdminClient, told: Told, name: str, cluster: str | None, broker: str | None, **settings: Any
) -> None:
    await must_exist(admin, name)
    rows = []
    warnings: list[str] = []
    for broker_name, address in (await masters(admin, cluster, broker)).items():
        before = await admin.groups.config(address, name)
        if before is None:
            continue
        after = _changed(before, settings)
        if after != before and not told.dry_run:
            told.warn(warnings, await admin.groups.put(address, after))
            after = await admin.groups.config(address, name) or after  # the broker's present settings
        old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
        rows += [(broker_name, key, old[key], new[key]) for key in old if old[key] != new[key]]
    data = [{"broker": row[0], "setting": row[1], "before": row[2], "after": row[3]} for row in rows]
    told.show(
        {"group": name, "changes": data, "warnings": warnings, "dryRun": told.dry_run},
        Table(name, ("broker", "setting", "before", "after"), rows, "nothing to change"),
    )


async def delete_group(
    admin: AsyncAdminClient,
    told: Told,
    name: str,
    keep_offsets: bool,
    cluster: str | None,
    broker: str | None,
) -> None:
    await must_exist(admin, name)
    online, stats = await _online(admin, name), await _stands(admin, name)
    data = {
        "group": name,
        "consumers": len(online.connectionSet),
        "behind": stats.behind,
        "topics": sorted({queue.topic for queue in stats.offsets}),
        "dryRun": told.dry_run,
    }
    text = (
        f"{name}: {data['consumers']} consumers online, {data['behind']} messages behind in "
        f"{', '.join(data['topics']) or 'no topic'}"  # type: ignore[arg-type]
    )
    if told.dry_run:
        told.show(data, text)
        return
    if not told.as_json:
        print(text)
    what = (
        "Delete the group" if keep_offsets else "Delete the group with its offsets, retries and dead letters"
    )
    told.agreed(f"{what}?")
    places = await masters(admin, cluster, broker)
    await each(places.values(), lambda address: admin.groups.delete(address, name, offsets=not keep_offsets))
    if not keep_offsets:
        for topic in admin.groups.topics_left(name):
            await each(places.values(), lambda address, topic=topic: admin.topics.delete(address, topic))  # type: ignore[misc]
    told.show(data, f"{name}: deleted")
