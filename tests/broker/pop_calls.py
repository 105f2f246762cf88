"""Requests of consumers that pop, for a `World`."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from dledger.formats.pop_handles import Handle, decode_handle, decode_info, real_topic, retry_mark
from dledger.formats.properties import POP_CK, decode_properties
from dledger.formats.record import Record
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import FLAG_REDIRECT
from dledger.remoting.pop_headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    NotificationHeader,
    PopMessageHeader,
)
from tests.broker.harness import Pending, Reply, World


@dataclass
class Popped:
    """One message with its handle."""

    record: Record
    handle: Handle
    topic: str
    """Where it really is."""

    @property
    def body(self) -> bytes:
        return self.record.body


def pop(world: World, topic: str = "T", queue: int = -1, **more: Any) -> Pending:
    """Pop; `more` goes into the header."""
    values: dict[str, Any] = {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": queue,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": False,
    }
    connection, flag = more.pop("connection", None), more.pop("flag", FLAG_REDIRECT)
    header = PopMessageHeader(**(values | more))
    return world.ask(RequestCode.POP_MESSAGE, header, connection=connection, flag=flag)


def popped(reply: Reply, topic: str = "T", group: str = "CG") -> list[Popped]:
    """The messages of an answer with their handles, as Java's client makes them (processPopResponse)."""
    assert reply.code == 0, reply
    starts, ext = decode_info(reply.ext["startOffsetInfo"]), reply.ext
    found = []
    for record in reply.records:
        text = decode_properties(record.properties).get(POP_CK)
        if text is None:
            mark = retry_mark(record.topic)
            start = int(starts[mark, str(record.queue_id)])
            times = int(ext["popTime"]), int(ext["invisibleTime"])
            broker, queue = "broker-a", record.queue_id
            handle = Handle(start, *times, int(ext["reviveQid"]), mark, broker, queue, record.queue_offset)
        else:
            handle = decode_handle(text)
        found.append(Popped(record, handle, real_topic(topic, group, handle.retry)))
    return found


async def take(world: World, topic: str = "T", queue: int = -1, **more: Any) -> list[Popped]:
    """Pop, and what came; nothing where there is nothing."""
    reply = await pop(world, topic, queue, **more)
    return popped(reply, topic, more.get("consumerGroup", "CG")) if reply.code == 0 else []


def ack(world: World, one: Popped, group: str = "CG", behind: str = "") -> Pending:
    """Acknowledge one. `behind`: what Apache's proxy adds to the handle."""
    assert one.handle.offset is not None
    text = one.handle.encode() + behind
    header = AckMessageHeader(group, one.topic, one.handle.queue, text, one.handle.offset)
    return world.ask(RequestCode.ACK_MESSAGE, header)


def change(world: World, one: Popped, invisible_ms: int, group: str = "CG", behind: str = "") -> Pending:
    """Keep one for so long from now on. `behind`: what Apache's proxy adds to the handle."""
    assert one.handle.offset is not None
    handle = one.handle
    text = handle.encode() + behind
    header = ChangeInvisibleTimeHeader(group, one.topic, handle.queue, text, one.handle.offset, invisible_ms)
    return world.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def batch_ack(world: World, some: list[Popped], topic: str = "T", group: str = "CG", **more: Any) -> Pending:
    """Acknowledge many, as RocketMQ's proxy does."""
    by_checkpoint: dict[tuple[Any, ...], int] = {}
    for one in some:
        handle = one.handle
        assert handle.offset is not None
        key = (*handle[:5], handle.queue)
        by_checkpoint[key] = by_checkpoint.get(key, 0) | 1 << (handle.offset - handle.start)
    acks = []
    for (start, time, invisible, revive, mark, queue), bits in by_checkpoint.items():
        raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        acks.append(
            {
                "c": group,
                "t": topic,
                "r": mark,
                "so": start,
                "q": queue,
                "rq": revive,
                "pt": time,
                "it": invisible,
                "b": base64.b64encode(raw).decode(),
            }
            | more
        )
    body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
    return world.ask(RequestCode.BATCH_ACK_MESSAGE, None, body)


def notification(world: World, topic: str = "T", poll_ms: int = 0, **more: Any) -> Pending:
    """Ask whether there are messages."""
    values: dict[str, Any] = {"consumerGroup": "CG", "topic": topic, "queueId": -1, "pollTime": poll_ms}
    return world.ask(RequestCode.NOTIFICATION, NotificationHeader(**(values | more)))
