"""Commands that find and show messages, such as queryMsgById, printMsg and queryCq."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path
from types import MappingProxyType

import msgspec

from dledger.admin import Pulled, StoredMessage
from dledger.admin.asking import masters_of
from dledger.admin.messages import PullStatus
from dledger.client import ClientError, Message, SendResult
from dledger.client.message_queries import NEVER_MS
from dledger.client.routes import subscribe_queues
from dledger.client.trace_records import TRACE_TOPIC, decode
from dledger.commands.mqadmin.call import (
    Call,
    human,
    millis,
    seconds,
    table_text,
)
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.output import Table
from dledger.remoting.bodies import MessageQueue

_TIMES = MappingProxyType({"Pub": (1, 10), "SubAfter": (3, 7)})
"""For each kind of trace, the indexes of the fields that are shown as numbers."""
BODIES = "/tmp/rocketmq/msgbodys"
"""Directory into which these commands write the bodies of messages, as in Apache's mqadmin."""
FOUND = Table.of("messages", ("#Message ID", "#QID", "#Offset"), "%-50s %4s %40s")
TRACE = "%-10s %-20s %-20s %-20s %-10s %-10s"
PUB = Table.of("pub", ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status"), TRACE)
SUB = Table.of(
    "sub", ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status"), TRACE
)
UNIT_OF_QUEUE = (
    "ConsumeQueueData{{physicOffset={physicOffset}, physicSize={physicSize}, tagsCode={tagsCode}, "
    "extendDataJson='{extendDataJson}', bitMap='{bitMap}', eval={eval}, msg='{msg}'}}"
)


def as_json(stored: StoredMessage) -> dict[str, object]:
    """Return a message in JSON form. The body is the field `body` if it is UTF-8, otherwise `bodyBase64`."""
    message = stored.message
    shown: dict[str, object] = {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "commitLogOffset": message.physical_offset,
        "storeSize": stored.size,
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
    }
    try:
        shown["body"] = message.body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = base64.b64encode(message.body).decode()
    return shown


def java_text(stored: StoredMessage) -> str:
    """Return a message as Java prints it (MessageExt.toString)."""
    message = stored.message
    signed = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message.body)
    transaction = message.properties.get("__transactionId__")
    return (
        f"MessageExt [brokerName={message.queue.broker_name}, queueId={message.queue.queue_id}, "
        f"storeSize={stored.size}, queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, "
        f"bornTimestamp={message.born_timestamp_ms}, bornHost=/{message.born_host}, "
        f"storeTimestamp={message.store_timestamp_ms}, storeHost=/{message.store_host}, "
        f"msgId={message.offset_message_id}, commitLogOffset={message.physical_offset}, "
        f"bodyCRC={stored.body_crc}, reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={stored.prepared_offset}, toString()=Message{{topic='{message.topic}', "
        f"flag={message.flag}, properties={table_text(dict(message.properties))}, body=[{signed}], "
        f"transactionId='{transaction or 'null'}'}}]"
    )


async def _show(call: Call, stored: StoredMessage, *, offset_id: bool, number: int = 0) -> None:
    """Show one message with all its fields, and the groups that have consumed it."""
    message = stored.message
    path = _write_body(stored, number)
    rows: list[tuple[str, object]] = [("OffsetID:", message.offset_message_id)] if offset_id else []
    rows += [
        ("Topic:", message.topic),
        ("Tags:", f"[{message.tags if message.tags is not None else 'null'}]"),
        ("Keys:", f"[{message.properties.get('KEYS', 'null')}]"),
        ("Queue ID:", message.queue.queue_id),
        ("Queue Offset:", message.queue_offset),
        ("CommitLog Offset:", message.physical_offset),
        ("Reconsume Times:", message.reconsume_times),
        ("Born Timestamp:", human(message.born_timestamp_ms)),
        ("Store Timestamp:", human(message.store_timestamp_ms)),
        ("Born Host:", message.born_host),
        ("Store Host:", message.store_host),
        ("System Flag:", message.sys_flag),
        ("Properties:", table_text(dict(message.properties))),
        ("Message Body Path:", path),
    ]
    charset = call.given.maybe("f") if offset_id else None
    if charset is not None:
        rows.append(("Message Body:", _text(message.body, charset)))
    text = "\n".join(f"{name:<20} {value}" for name, value in rows)
    tracks = await call.admin.messages.track(stored, await call.admin.topics.groups(message.queue.topic))
    shown = [
        {"consumerGroup": one.group, "trackType": one.type.value, "reason": one.reason} for one in tracks
    ]
    call.out.item("messages", {**as_json(stored), "bodyPath": path, "tracks": shown}, text)
    if call.out.as_json:
        return
    call.out.line("\n" if tracks else "\n\nWARN: No Consumer")
    for one in tracks:
        call.out.line(
            f"MessageTrack [consumerGroup={one.group}, trackType={one.type.value}, "
            f"exceptionDesc={one.reason or 'null'}]"
        )


def _text(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, "replace")
    except LookupError as error:
        raise WrongOptions(f"{charset!r} is not the name of a character set") from error


def file_name(text: str) -> str:
    """Return a safe file name for a text that a client chose; such a text may contain anything, for
    example `../`."""
    return re.sub(r"[^0-9A-Za-z@#._-]", "_", text).lstrip(".")[:128] or "_"


def _write_body(stored: StoredMessage, number: int) -> str:
    path = Path(BODIES) / (file_name(stored.message.message_id) + (f"_{number}" if number else ""))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored.message.body)
    except OSError as error:
        return f"not written: {error}"
    return str(path)


async def query_by_id(call: Call) -> None:
    given, admin = call.given, call.admin
    topic = given.text("t")
    for message_id in given.words("i"):
        try:
            stored = await admin.messages.by_id(topic, message_id)
            if "g" in given and "d" in given:
                await _consume_directly(call, stored)
            elif "s" not in given:
                await _show(call, stored, offset_id=True)
            elif given.true("s"):
                await _send_again(call, stored, message_id)
        except ClientError as error:
            call.fail(error)


async def _consume_directly(call: Call, stored: StoredMessage) -> None:
    group, client = call.given.text("g"), call.given.text("d")
    info = await call.admin.groups.running_info(group, client)
    if not info.push:
        raise ClientError(f"this {client} client is not push consumer ,not support direct push ")
    result = await call.admin.messages.consume_directly(stored, group, client, stored.message.topic)
    text = (
        f"ConsumeMessageDirectlyResult [order={str(result.order).lower()}, "
        f"autoCommit={str(result.autoCommit).lower()}, consumeResult={result.consumeResult}, "
        f"remark={result.remark or 'null'}, spentTimeMills={result.spentTimeMills}]"
    )
    call.out.item("results", msgspec.to_builtins(result), text)


async def _send_again(call: Call, stored: StoredMessage, message_id: str) -> None:
    message = stored.message
    async with call.producer("ReSendMsgById") as producer:
        again = Message(message.topic, message.body, keys=message.keys, flag=message.flag)
        again.tags = message.tags  # also one that no subscription can name
        result = await producer.send(again)
    call.out.item(
        "sent",
        {"originalMsgId": message_id, "msgId": result.message_id, "queueId": result.queue.queue_id},
        f"prepare resend msg. originalMsgId={message_id}\n{send_text(result)}",
    )


def send_text(result: SendResult) -> str:
    """Return the result of a send as Java prints it (SendResult.toString)."""
    queue = result.queue
    return (
        f"SendResult [sendStatus={result.status.value}, msgId={result.message_id}, "
        f"offsetMsgId={result.offset_message_id}, messageQueue=MessageQueue [topic={queue.topic}, "
        f"brokerName={queue.broker_name}, queueId={queue.queue_id}], queueOffset={result.queue_offset}]"
    )


async def query_by_key(call: Call) -> None:
    given = call.given
    if given.maybe("p") not in (None, "K") or "l" in given:
        raise ClientError(
            "only -p K without -l is possible: brokers here find messages by key, not by tag, and "
            "not from a given key on"
        )
    found = await call.admin.messages.by_key(
        given.text("t"), given.text("k"), given.number("m", 64), *_span(call, "b", "e"),
        route_of=given.maybe("c"),
    )  # fmt: skip
    call.out.table(
        FOUND,
        [(one.message.message_id, one.message.queue.queue_id, one.message.queue_offset) for one in found],
    )


async def query_by_unique_key(call: Call) -> None:
    given = call.given
    begin_ms, end_ms = _span(call, "s", "e")
    found = await call.admin.messages.by_key(
        given.text("t"), given.text("i"), 32, begin_ms, end_ms, unique=True, route_of=given.maybe("c")
    )
    if not found:
        raise ClientError(f"no message in {given.text('t')} has the unique key {given.text('i')}")
    if "g" in given and "d" in given:
        await _consume_directly(call, found[0])
        return
    for number, stored in enumerate(found if "a" in given else found[:1]):
        await _show(call, stored, offset_id=False, number=number)


async def query_by_offset(call: Call) -> None:
    given = call.given
    queue = MessageQueue(given.text("t"), given.text("b"), given.number("i"))
    address = await call.admin.offsets.address_of(queue.topic, queue.brokerName)
    pulled = await call.admin.messages.pull(address, queue, given.number("o"), 1)
    if not pulled.messages:
        raise ClientError(
            f"{pulled.status.value}: there is no message at this offset; the queue holds "
            f"[{pulled.lowest}, {pulled.highest})"
        )
    await _show(call, pulled.messages[0], offset_id=True)


async def query_trace(call: Call) -> None:
    given = call.given
    message_id, topic = given.text("i"), given.maybe("t") or TRACE_TOPIC
    found = await call.admin.messages.by_key(topic, message_id, given.number("c", 64), *_span(call, "b", "e"))
    subs: dict[str, list[tuple[object, ...]]] = {}
    for stored in found:
        message = stored.message
        host = message.born_host.rpartition(":")[0]
        for fields in decode(message.body.decode(errors="replace")):
            kind = fields[0]
            if not all(field.isdecimal() for at in _TIMES.get(kind, ()) for field in fields[at : at + 1]):
                continue  # anybody may send to the topic of traces
            if kind == "Pub" and len(fields) > 10 and fields[5] == message_id:
                status = "success" if fields[-1] != "false" and "false" not in fields[13:14] else "failed"
                row = ("Pub", fields[3], host, seconds(int(fields[1])), f"{fields[10]}ms", status)
                call.out.table(PUB, [row])
                call.out.line()
            elif kind == "SubAfter" and len(fields) > 4 and fields[2] == message_id:
                group = fields[8] if len(fields) > 8 else ""
                when = int(fields[7]) if len(fields) > 7 else message.store_timestamp_ms
                status = "success" if fields[4] == "true" else "failed"
                subs.setdefault(group, []).append(
                    ("Sub", group, host, seconds(when), f"{fields[3]}ms", status)
                )
    for _, rows in sorted(subs.items()):
        call.out.table(SUB, rows)
        call.out.line()


async def print_msg(call: Call) -> None:
    given = call.given
    topic = given.text("t")
    parent = given.maybe("l") or topic
    queues = subscribe_queues(parent, await call.admin.topics.route(parent))
    addresses = await call.admin.offsets.brokers_of(parent)
    for found in queues:
        queue = MessageQueue(topic, found.broker_name, found.queue_id)
        address = addresses[queue.brokerName]
        start, end = await _range(call, address, queue, "b", "e")
        shown = f"MessageQueue [topic={topic}, brokerName={queue.brokerName}, queueId={queue.queueId}]"
        call.out.line(f"minOffset={start}, maxOffset={end}, {shown}")
        expression = given.maybe("s") or "*"
        async for pulled in call.admin.messages.pulls(address, queue, start, end, expression):
            if pulled.status is PullStatus.FOUND:
                print_messages(call, pulled, given.true("d", True), given.maybe("c") or "UTF-8")
            else:
                what = (
                    "no matched msg" if pulled.status is PullStatus.NO_MATCHED_MSG else "print msg finished"
                )
                call.out.line(f"{shown} {what}. status={pulled.status.value}, offset={pulled.next_offset}")
        call.out.line("-" * 56)


def _span(call: Call, begin: str, end: str) -> tuple[int, int]:
    given = call.given
    return millis(given.maybe(begin) or "0"), millis(given.maybe(end) or str(NEVER_MS))


async def _range(call: Call, address: str, queue: MessageQueue, begin: str, end: str) -> tuple[int, int]:
    given, offsets = call.given, call.admin.offsets
    low, high = await offsets.lowest(address, queue), await offsets.highest(address, queue)
    if begin in given:
        low = await offsets.at_time(address, queue, millis(given.text(begin)))
    if end in given:
        high = await offsets.at_time(address, queue, millis(given.text(end)))
    return low, high


def print_messages(call: Call, pulled: Pulled, with_body: bool, charset: str) -> None:
    """Print one line for each message."""
    for one in pulled.messages:
        body = _text(one.message.body, charset) if with_body else "NOT PRINT BODY"
        shown = as_json(one)
        if not with_body:
            shown = {key: value for key, value in shown.items() if not key.startswith("body")}
        call.out.item("found", shown, f"MSGID: {one.message.message_id} {java_text(one)} BODY: {body}")
    call.out.end_round()  # a topic may be larger than memory


async def print_msg_by_queue(call: Call) -> None:
    given = call.given
    queue = MessageQueue(given.text("t"), given.text("a"), given.number("i"))
    address = await call.admin.offsets.address_of(queue.topic, queue.brokerName)
    start, end = await _range(call, address, queue, "b", "e")
    tags: Counter[str] = Counter()
    async for pulled in call.admin.messages.pulls(address, queue, start, end, given.maybe("s") or "*"):
        tags.update(one.message.tags for one in pulled.messages if one.message.tags)
        if given.true("p"):
            print_messages(call, pulled, given.true("d"), given.maybe("c") or "UTF-8")
    if given.true("f"):
        for tag, count in tags.most_common():
            call.out.item("tags", {"tag": tag, "count": count}, f"Tag: {tag:<30} Count: {count}")


async def consume_message(call: Call) -> None:
    given = call.given
    topic, count = given.text("t"), given.number("c", 128)
    if count <= 0:
        raise WrongOptions("Please input a positive messageNumber!")
    if "i" in given and "b" not in given:
        raise WrongOptions("Please set the brokerName before queueId!")
    if "o" in given and "i" not in given:
        raise WrongOptions("Please set queueId before offset!")
    now = call.admin.now_ms()
    for key, name in (("s", "begin"), ("e", "end")):
        if key in given and millis(given.text(key)) > now:
            raise WrongOptions(f"Please set the {name}Timestamp before now!")
    if {"s", "e"} <= {key for key in "se" if key in given} and millis(given.text("s")) > millis(
        given.text("e")
    ):
        raise WrongOptions(
            "Please make sure that the beginTimestamp is less than or equal to the endTimestamp"
        )
    queues = [
        MessageQueue(topic, one.broker_name, one.queue_id)
        for one in subscribe_queues(topic, await call.admin.topics.route(topic))
        if given.maybe("b") in (None, one.broker_name)
        and ("i" not in given or given.number("i") == one.queue_id)
    ]
    if not queues:
        raise ClientError(f"{topic} has no such queue")
    addresses = await call.admin.offsets.brokers_of(topic)
    left = count
    for queue in queues:
        if not left:
            break
        address = addresses[queue.brokerName]
        start, end = await _range(call, address, queue, "s", "e")
        start = max(start, given.number("o"))
        if end - start > left:
            call.out.line(f"The older {left} message of the {queue.queueId} queue will be provided")
            end = start + left
        left -= max(end - start, 0)
        group = given.maybe("g")
        more = {} if group is None else {"group": group}
        async for pulled in call.admin.messages.pulls(address, queue, start, end, **more):
            if pulled.messages:
                call.out.line("Consume ok")
            print_messages(call, pulled, True, "UTF-8")


async def query_cq(call: Call) -> None:
    given = call.given
    topic = given.text("t")
    address = given.maybe("b")
    if address is None:
        address = next((at for _, at in masters_of(await call.admin.topics.route(topic))), None)
    if address is None:
        raise ClientError(f"no broker of the topic {topic} is registered")
    found = await call.admin.brokers.consume_queue(
        address, topic, given.number("q"), given.number("i"), given.number("c", 10), given.maybe("g")
    )
    rule = "======================================"
    if found.subscriptionData is not None:
        shown = msgspec.to_builtins(found.subscriptionData)
        call.out.value("subscription", shown, f"Subscription data: \n{json.dumps(shown, indent=1)}\n{rule}")
    if found.filterData is not None:
        call.out.value("filter", found.filterData, f"Filter data: \n{found.filterData}\n{rule}")
    bounds = {"max": found.maxQueueIndex, "min": found.minQueueIndex}
    call.out.value("queue", bounds, f"Queue data: \nmax: {bounds['max']}, min: {bounds['min']}\n{rule}")
    for at, unit in enumerate(found.queueData or [], given.number("i")):
        fields = msgspec.to_builtins(unit)
        plain = {key: "null" if value is None else value for key, value in fields.items()}
        plain["eval"] = str(unit.eval).lower()
        call.out.item("units", {"idx": at, **fields}, f"idx: {at}\n{UNIT_OF_QUEUE.format(**plain)}\n{rule}")
