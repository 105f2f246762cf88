"""Commands that send messages, most of them to measure how long that takes: sendMessage, checkMsgSendRT,
clusterRT."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

from dledger.client import AsyncProducer, ClientError, Message, MessageQueue, SendResult
from dledger.client.routes import publish_queues
from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.messages import send_text
from dledger.commands.mqadmin.options import WrongOptions
from dledger.commands.mqadmin.output import Table

MAX_AMOUNT = 1_000_000
"""Largest number of messages that one command sends."""
SENT = Table.of("sent", ("#Broker Name", "#QID", "#Send Result", "#MsgId"), "%-32s  %-4s  %-20s    %s")
TIMED = Table.of("sent", ("#Broker Name", "#QID", "#Send Result", "#RT"), "%-32s  %-4s  %-20s    %s")
CLUSTER_RT = Table.of(
    "brokers",
    ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"),
    "%-24s  %-24s  %-4s  %-8s  %-8s",
    "%-24s  %-24s  %-8s  %-16s  %-16s",
)
CHINA = timezone(timedelta(hours=8))
"""The time zone in which clusterRT writes its log, wherever the command runs."""


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _timed(
    producer: AsyncProducer, message: Message, queue: MessageQueue | None = None
) -> tuple[bool, int]:
    """Send a message. Returns whether it was stored, and how many ms the send took."""
    began = _now()
    try:
        await producer.send(message, queue)
    except ClientError:
        return False, round((_now() - began) * 1000)
    return True, round((_now() - began) * 1000)


def _amount(call: Call, key: str, default: int) -> int:
    amount = call.given.number(key, default)
    if not 1 <= amount <= MAX_AMOUNT:
        raise WrongOptions(f"-{key} {amount}: give 1 to {MAX_AMOUNT}")
    return amount


async def send_message(call: Call) -> None:
    given = call.given
    topic = given.text("t")
    if "i" in given and "b" not in given:
        raise WrongOptions("Broker name must be set if the queue is chosen!")
    if given.true("m"):
        raise ClientError(
            "-m true is not possible: this command sends no message traces; the clients can (trace=True)"
        )
    message = Message(topic, given.text("p").encode(), given.maybe("c"), given.maybe("k"))
    queue = MessageQueue(topic, given.text("b"), given.number("i")) if "i" in given else None
    async with call.producer(_group(call)) as producer:
        result: SendResult = await producer.send(message, queue)
    where = result.queue
    call.out.table(SENT, [(where.broker_name, where.queue_id, result.status.value, result.message_id)])


def _group(call: Call) -> str:
    return str(call.admin.now_ms())


async def check_send_rt(call: Call) -> None:
    topic, amount, size = call.given.text("t"), _amount(call, "a", 100), _amount(call, "s", 128)
    queues = publish_queues(topic, await call.admin.topics.route(topic))
    if not queues:
        raise ClientError(f"{topic} has no writable queue")
    message = Message(topic, b"a" * size)
    spent = 0
    call.out.head(TIMED)
    async with call.producer(_group(call)) as producer:
        for number in range(amount):
            queue = queues[number % len(queues)]
            stored, ms = await _timed(producer, message, queue)
            spent += ms if number else 0  # the first one opens the connection
            call.failed |= not stored
            call.out.row(TIMED, queue.broker_name, queue.queue_id, str(stored).lower(), ms)
    average = spent / max(amount - 1, 1)
    call.out.value("Avg RT", round(average, 2), f"Avg RT: {average:.2f}")


async def send_msg_status(call: Call) -> None:
    name, size, count = call.given.text("b"), _amount(call, "s", 128), _amount(call, "c", 50)
    words = b"hello jodie"
    async with call.producer("PID_SMSC") as producer:
        await producer.send(Message(name, words * 2))
        for _ in range(count):
            began = _now()
            result = await producer.send(Message(name, words * -(-size // len(words))))
            ms = round((_now() - began) * 1000)
            row = {"rt": ms, "msgId": result.message_id, "queueId": result.queue.queue_id}
            call.out.item("sent", row, f"rt={ms}ms, SendResult={send_text(result)}")


async def cluster_rt(call: Call) -> None:
    given = call.given
    amount, size, pause_s = _amount(call, "a", 100), _amount(call, "s", 128), _amount(call, "i", 10)
    as_log, room = given.true("p"), given.maybe("m") or "noname"
    view = await call.admin.brokers.cluster()
    names = given.words("c") or view.clusters()
    brokers = [(name, group.brokerName) for name in names for group in view.groups(name)]
    async with call.producer(_group(call)) as producer:
        if not as_log:
            call.out.head(CLUSTER_RT)
        while True:
            for cluster, broker in brokers:
                done = [await _timed(producer, Message(broker, b"a" * size)) for _ in range(amount)]
                stored = sum(one for one, _ in done)
                average = sum(ms for _, ms in done[1:]) / max(amount - 1, 1)
                call.failed |= stored < amount
                if as_log:
                    moment = datetime.fromtimestamp(call.admin.now_ms() / 1000, CHINA)
                    words = (f"{moment:%Y-%m-%d %H:%M:%S}", room, cluster, broker, f"{average:.0f}")
                    call.out.line("|".join(words))
                else:
                    call.out.row(CLUSTER_RT, cluster, broker, f"{average:.2f}", stored, amount - stored)
            call.out.end_round()
            await asyncio.sleep(pause_s)
