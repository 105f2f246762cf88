"""`dledger admin message`: find, show, track, send and resend messages."""

from __future__ import annotations

from dledger.admin import AsyncAdminClient, StoredMessage
from dledger.admin.asking import DLQ_PREFIX
from dledger.admin.messages import REDELIVERY_GROUP
from dledger.client import AsyncProducer, ClientError, Message, TopicNotFound
from dledger.client.encoding import DEFAULT_TOPIC
from dledger.client.routes import subscribe_queues
from dledger.commands.admin.group import must_exist
from dledger.commands.admin.offset import when
from dledger.commands.admin.running import Told
from dledger.commands.admin.showing import Table, fields
from dledger.commands.mqadmin.call import human
from dledger.commands.mqadmin.messages import as_json
from dledger.formats.properties import RETRY_TOPIC
from dledger.remoting.bodies import MessageQueue

SHORT = 60
"""Number of characters of a message body that a list shows."""
COLUMNS = ("stored", "queue", "offset", "id", "tag", "keys", "body")


def _body(stored: StoredMessage, longest: int | None = SHORT) -> str:
    try:
        text = stored.message.body.decode()
    except UnicodeDecodeError:
        return f"{len(stored.message.body)} bytes: {stored.message.body[:16].hex()}..."
    return text if longest is None or len(text) <= longest else text[:longest] + "..."


def _row(stored: StoredMessage) -> tuple[object, ...]:
    one = stored.message
    queue = f"{one.queue.broker_name}/{one.queue.queue_id}"
    keys = " ".join(one.keys)
    return (
        human(one.store_timestamp_ms),
        queue,
        one.queue_offset,
        one.message_id,
        one.tags or "",
        keys,
        _body(stored).replace("\n", "\\n"),
    )


async def list_messages(
    admin: AsyncAdminClient,
    told: Told,
    topic: str,
    since: str | None,
    until: str | None,
    expression: str,
    limit: int,
) -> None:
    queues = subscribe_queues(topic, await admin.topics.route(topic))
    places = await admin.offsets.brokers_of(topic)
    found: list[StoredMessage] = []
    for one in queues:
        queue = MessageQueue(topic, one.broker_name, one.queue_id)
        address = places[queue.brokerName]
        low, high = await admin.offsets.lowest(address, queue), await admin.offsets.highest(address, queue)
        start = (
            max(low, high - limit) if since is None else await _at(admin, address, queue, since, "--since")
        )
        end = high if until is None else await _at(admin, address, queue, until, "--until")
        if since is None and until is not None:
            start = max(low, end - limit)
        kept: list[StoredMessage] = []
        async for pulled in admin.messages.pulls(address, queue, start, end, expression):
            kept += pulled.messages
            if since is not None and len(kept) >= limit:
                break
        found += kept
    found.sort(key=lambda one: (one.message.store_timestamp_ms, one.message.physical_offset))
    found = found[:limit] if since is not None else found[-limit:]
    told.show(
        {"messages": [as_json(one) for one in found]},
        Table("", COLUMNS, [_row(one) for one in found], "no messages"),
    )


async def _at(admin: AsyncAdminClient, address: str, queue: MessageQueue, text: str, option: str) -> int:
    timestamp, _ = when(text, admin.now_ms(), option, ahead=True)
    if timestamp is None:
        raise ClientError(f"{option} {text}: give a time, or an age (-1h)")
    return await admin.offsets.at_time(address, queue, timestamp)


async def find(admin: AsyncAdminClient, told: Told, topic: str, key: str, limit: int) -> None:
    found = await admin.messages.by_key(topic, key, limit)
    told.show(
        {"messages": [as_json(one) for one in found]},
        Table("", COLUMNS, [_row(one) for one in found], f"no message in {topic} has the key {key}"),
    )


async def show_message(admin: AsyncAdminClient, told: Told, topic: str, message_id: str) -> None:
    stored = await admin.messages.by_id(topic, message_id)
    one = stored.message
    tracks = await admin.messages.track(stored, await admin.topics.groups(one.queue.topic))
    values = {
        "topic": one.topic,
        "queue": f"{one.queue.broker_name}/{one.queue.queue_id}",
        "offset": one.queue_offset,
        "id": one.message_id,
        "offset message id": one.offset_message_id,
        "tag": one.tags,
        "keys": " ".join(one.keys),
        "born": f"{human(one.born_timestamp_ms)} at {one.born_host}",
        "stored": f"{human(one.store_timestamp_ms)} at {one.store_host}, byte {one.physical_offset}",
        "retries": one.reconsume_times,
        "properties": "\n".join(f"{key}={value}" for key, value in one.properties.items()),
    }
    rows = [(track.group, track.type.value, track.reason or "") for track in tracks]
    told.show(
        {**as_json(stored), "groups": [{"group": row[0], "state": row[1], "reason": row[2]} for row in rows]},
        fields("", values),
        Table("groups", ("group", "state", "why"), rows, "no group consumes this topic"),
        f"body ({len(one.body)} bytes):\n{_body(stored, None)}",
    )


async def send(
    admin: AsyncAdminClient,
    told: Told,
    topic: str,
    body: str,
    tag: str | None,
    key: tuple[str, ...],
    property: tuple[str, ...],
    ordering_key: str | None,
) -> None:
    if topic != DEFAULT_TOPIC:
        await admin.topics.route(topic)  # a wrong name is not to make a topic
    pairs = dict(one.partition("=")[::2] for one in property)
    message = Message(topic, body.encode(), tag, list(key) or None, pairs or None)
    await _send(admin, told, message, ordering_key)


async def _send(
    admin: AsyncAdminClient, told: Told, message: Message, ordering_key: str | None = None
) -> None:
    async with AsyncProducer("dledger_admin", admin.namesrv.addresses, client=admin.options) as producer:
        result = await producer.send(message, ordering_key=ordering_key)
    where = f"{result.queue.broker_name}/{result.queue.queue_id}"
    data = {"id": result.message_id, "queue": where, "offset": result.queue_offset}
    told.show(data, f"{result.message_id} in {where} at {result.queue_offset}")


async def resend(admin: AsyncAdminClient, told: Told, topic: str, message_id: str) -> None:
    one = (await admin.messages.by_id(topic, message_id)).message
    own = {
        key: value for key, value in one.properties.items() if not key.isupper() and not key.startswith("__")
    }
    text = f"{one.message_id}: {len(one.body)} bytes, tag {one.tags}, keys {' '.join(one.keys)}"
    if told.dry_run:
        told.show({"id": one.message_id, "dryRun": True}, text)
        return
    told.agreed(f"Send it again to {one.topic}? {text}.")
    again = Message(one.topic, one.body, None, one.keys or None, own or None, one.flag)
    again.tags = one.tags  # also one that no subscription can name
    await _send(admin, told, again)


async def redeliver(
    admin: AsyncAdminClient, told: Told, name: str, since: str | None, until: str | None, limit: int
) -> None:
    topic = DLQ_PREFIX + name
    await must_exist(admin, name)
    try:
        queues = subscribe_queues(topic, await admin.topics.route(topic))
    except TopicNotFound:
        queues = []
    places = await admin.offsets.brokers_of(topic) if queues else {}
    found: list[tuple[str, StoredMessage]] = []
    reached: dict[MessageQueue, int] = {}  # messages before this offset were sent again already
    for one in queues:
        queue = MessageQueue(topic, one.broker_name, one.queue_id)
        address = places[queue.brokerName]
        lowest = await admin.offsets.lowest(address, queue)
        reached[queue] = max(await admin.offsets.committed(address, REDELIVERY_GROUP, queue) or 0, lowest)
        start = reached[queue] if since is None else await _at(admin, address, queue, since, "--since")
        end = await admin.offsets.highest(address, queue)
        end = end if until is None else await _at(admin, address, queue, until, "--until")
        async for pulled in admin.messages.pulls(address, queue, start, end):
            found += [(address, stored) for stored in pulled.messages]
            if len(found) >= limit:
                break
    found = found[:limit]
    data = {"group": name, "messages": [as_json(stored) for _, stored in found], "dryRun": told.dry_run}
    rows = [(stored.message.properties.get(RETRY_TOPIC, ""), *_row(stored)) for _, stored in found]
    if told.dry_run or not found:
        none = f"{name} has no dead letters that were not redelivered yet"
        told.show(data, Table("", ("topic", *COLUMNS), rows, none))
        return
    told.agreed(f"Redeliver {len(found)} dead letters to {name}?")
    for address, stored in found:
        await admin.messages.redeliver(address, stored)
        if stored.message.queue_offset == reached[stored.queue]:
            reached[stored.queue] += 1
            await admin.offsets.commit(address, REDELIVERY_GROUP, stored.queue, reached[stored.queue])
    told.show(data, f"{name}: {len(found)} dead letters redelivered")


async def consume(
    admin: AsyncAdminClient, told: Told, topic: str, message_id: str, group_name: str, client: str | None
) -> None:
    stored = await admin.messages.by_id(topic, message_id)
    if client is None:
        client = sorted(one.clientId for one in (await admin.groups.connections(group_name)).connectionSet)[0]
    result = await admin.messages.consume_directly(stored, group_name, client)
    data = {
        "client": client,
        "result": result.consumeResult,
        "remark": result.remark,
        "ms": result.spentTimeMills,
    }
    told.show(
        data, f"{client}: {result.consumeResult} in {result.spentTimeMills} ms {result.remark or ''}".rstrip()
    )
    if result.consumeResult != "CR_SUCCESS":
        raise ClientError(f"the consumer did not consume it: {result.consumeResult}")
