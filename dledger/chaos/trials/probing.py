"""A client that measures failovers. It sends a small message every few milliseconds, whatever happens."""

from __future__ import annotations

import asyncio
from functools import partial

from dledger.chaos.scenarios.broker_clients import Program
from dledger.chaos.scenarios.broker_history import Send
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.client.errors import ClientError, OutcomeUnknown
from dledger.client.message import Message, SendResult
from dledger.client.producing.producer import AsyncProducer
from dledger.runtime.env import Env

TOPIC = "probe"
EVERY_S = 0.005
"""Pause between two messages, in seconds."""
MOST_OPEN = 1_000
"""Largest number of messages without an outcome. At the limit the probe waits."""


class Probing(Program):
    """Sends messages of a few bytes through our producer, and notes when each was acknowledged."""

    _count = 0
    _open = 0

    async def main(self, env: Env) -> None:
        self.lives += 1
        async with AsyncProducer(
            "probes", self._stage.namesrv_addr, client=self.options(), env=env
        ) as producer:
            await producer.queues(TOPIC)  # a send that does not wait needs the route
            while True:
                if self._open < MOST_OPEN:
                    self._send(producer)
                await asyncio.sleep(EVERY_S)

    def _send(self, producer: AsyncProducer) -> None:
        self._count += 1
        unique = f"{self.name}-{self._count}"
        message = Message(TOPIC, f"{unique}|".encode(), keys=unique)
        send = Send(self.name, TOPIC, [message.body], self.now())
        self._history.sends.append(send)
        self._open += 1
        try:
            producer.send_nowait(message, partial(self._settled, send))
        except ClientError as error:
            self._settled(send, error)

    def _settled(self, send: Send, result: SendResult | ClientError) -> None:
        self._open -= 1
        send.end, send.begun = self.now(), self._stage.begun
        if isinstance(result, SendResult):
            send.outcome, send.queue, send.offset = ACKNOWLEDGED, result.queue.queue_id, result.queue_offset
            send.ids = tuple(result.offset_message_id.split(","))
        else:
            send.outcome = UNKNOWN if isinstance(result, OutcomeUnknown) else REFUSED
            send.text = str(result)
