"""A client machine that pops in order. It uses our consumer, and sets the two request fields that ask for
order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from dledger.chaos.scenarios.ordered_history import (
    ACK,
    CHANGED_MS,
    INVISIBLE_MS,
    LONGER,
    ORDERED_GROUP,
    SHORTER,
    Ordered,
    Settled,
)
from dledger.chaos.scenarios.pop_worker import Popping
from dledger.client.broker_group import BrokerGroup
from dledger.client.consuming.consumer_options import PopOptions
from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.pop_consumer import AsyncPopConsumer, handle_of
from dledger.client.message import ReceivedMessage
from dledger.remoting.pop_headers import PopMessageHeader
from dledger.runtime.env import Env

OPTIONS = PopOptions(batch_size=16, invisible_s=INVISIBLE_MS / 1000, poll_s=1.0, timeout_s=1.0)
FORGETS, SHORTENS, LENGTHENS, SHUFFLES = 60, 40, 50, 4
"""On average one of FORGETS messages is not acknowledged, one of SHORTENS gets a shorter invisible time, and
one of LENGTHENS gets a longer one. One of SHUFFLES batches is acknowledged in another order."""
CALL_S = 0.02
LONG_CALL_S = 1.8
"""How long a consumer works on a message whose invisible time was made longer, in seconds. It is longer than
the original invisible time."""


class OrderedConsumer(AsyncPopConsumer):
    """A consumer that pops in order. It repeats an attempt until it gets an answer, as RocketMQ's proxies
    do."""

    attempts = 0
    name = ""

    def _question(self) -> PopMessageHeader:
        attempt = f"{self.name}-{self.attempts}"
        return msgspec.structs.replace(super()._question(), order=True, attemptId=attempt)

    async def _pop(self, group: BrokerGroup) -> list[ReceivedMessage]:
        found = await super()._pop(group)
        self.attempts += 1
        return found


class OrderedWorker(Popping):
    """A client that pops in order. It acknowledges most messages; for some of them it first asks for a longer
    invisible time. It makes the invisible time of some messages shorter, and leaves some without an
    acknowledgement."""

    def consumer(self, env: Env, topic: str) -> OrderedConsumer:
        """Make the consumer for a topic (see `Popping`)."""
        consumer = OrderedConsumer(
            ORDERED_GROUP,
            self._stage.namesrv_addr,
            topic=topic,
            from_where=FromWhere.FIRST,
            options=OPTIONS,
            client=replace(self.options(), instance_name=f"ordered-{topic}-{self.lives}"),
            env=env,
        )
        consumer.name = f"{self.name}-{topic}-{self.lives}"
        return consumer

    async def popped(
        self,
        env: Env,
        consumer: OrderedConsumer,
        messages: Sequence[ReceivedMessage],
        between: tuple[int, int],
        terms: tuple[int, int],
    ) -> None:
        """Handle popped messages (see `Popping`)."""
        found = [(message, _ordered(message, between, terms)) for message in messages]
        for _, ordered in found:
            self._history.popped_in_order(ordered)
        if env.random.randrange(SHUFFLES) == 0:
            env.random.shuffle(found)
        for message, ordered in found:
            await self._work(env, consumer, message, ordered)

    async def _work(
        self, env: Env, consumer: OrderedConsumer, message: ReceivedMessage, ordered: Ordered
    ) -> None:
        await asyncio.sleep(env.random.uniform(0.0, CALL_S))
        if env.random.randrange(FORGETS) == 0:
            return
        if env.random.randrange(SHORTENS) == 0:
            await self._change(consumer, message, ordered, SHORTER)
            return
        if env.random.randrange(LENGTHENS) == 0:
            await self._change(consumer, message, ordered, LONGER)
            await asyncio.sleep(LONG_CALL_S)
        await self.settle(self._settled(ordered, ACK), consumer.ack(message))

    async def _change(
        self, consumer: OrderedConsumer, message: ReceivedMessage, ordered: Ordered, kind: str
    ) -> None:
        change = consumer.change_invisible(message, CHANGED_MS[kind] / 1000)
        await self.settle(self._settled(ordered, kind), change)

    def _settled(self, ordered: Ordered, kind: str) -> Settled:
        settled = Settled(ordered, kind, self.now())
        self._history.ordered.settled.append(settled)
        return settled


def _ordered(message: ReceivedMessage, between: tuple[int, int], terms: tuple[int, int]) -> Ordered:
    batch = (message.queue.topic, message.queue.queue_id), handle_of(message).time
    return Ordered(batch, message.queue_offset, message.body, message.reconsume_times, between, terms)
