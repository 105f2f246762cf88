"""Timer messages in a run with brokers. Producers send them with a time of delivery, and recall some of
them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from dledger.chaos.scenarios.broker_history import BrokerHistory, Send
from dledger.chaos.scenarios.client_stage import ClientStage
from dledger.chaos.scenarios.history import ACKNOWLEDGED, UNKNOWN
from dledger.chaos.scenarios.timer_history import RECALL_EVERY, WAITS_MS, Recall
from dledger.client.errors import ClientError
from dledger.client.message import Message, SendResult
from dledger.client.producing.producer import AsyncProducer


async def send_timed(
    stage: ClientStage,
    history: BrokerHistory,
    producer: AsyncProducer,
    message: Message,
    turn: int,
    begin: Callable[[list[Message]], Send],
    settle: Callable[[Send, Awaitable[SendResult]], Awaitable[None]],
) -> None:
    """Send one timer message. Every RECALL_EVERY-th one is recalled afterwards.

    `turn` is the number of the message. `begin` notes a send in the history, and `settle` awaits a send and
    notes its outcome.
    """
    timers = history.timers
    wanted_ms = producer._core.env.wall.now_ms() + WAITS_MS[turn % len(WAITS_MS)]
    message.deliver_at = datetime.fromtimestamp(wanted_ms / 1000, UTC)
    timers.wanted_ms[message.body] = wanted_ms
    send = begin([message])
    handles: list[str] = []
    await settle(send, _with_handle(producer.send(message), handles))
    if send.outcome != ACKNOWLEDGED:
        return
    if not handles:  # its time had passed already
        send.topic = message.topic
        return
    send.queue = 0
    if turn % RECALL_EVERY:
        return
    recall = Recall(message.body)
    timers.recalls.append(recall)
    elections = stage.elections
    try:
        await producer.recall(message.topic, handles[0])
        recall.outcome = ACKNOWLEDGED
        if stage.elections > elections:
            stage.marks.reach("a timer message was recalled while the leader changed")
    except ClientError:
        recall.outcome = UNKNOWN


async def _with_handle(sending: Awaitable[SendResult], handles: list[str]) -> SendResult:
    result = await sending
    handles += [result.recall_handle] if result.recall_handle else []
    return result
