"""Client machines that pop. They use our consumer, and leave many messages without an acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dledger.chaos.scenarios.broker_clients import ASSIGN_EVERY_S, Program
from dledger.chaos.scenarios.history import ACKNOWLEDGED, UNKNOWN
from dledger.chaos.scenarios.pop_history import INVISIBLE_MS, POP_GROUP, SHORT_MS, Ack, Handed
from dledger.client.consuming.consumer_options import PopOptions
from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.pop_consumer import AsyncPopConsumer
from dledger.client.errors import ClientError
from dledger.client.message import ReceivedMessage
from dledger.runtime.env import Env

POP_OPTIONS = PopOptions(batch_size=8, invisible_s=INVISIBLE_MS / 1000, poll_s=2.0, timeout_s=3.0)
POP_LIMIT_S = 120.0
"""Time limit of one call of `pop`, in seconds. It is longer than any request, so a message that a call
returns was asked for after that call had begun."""
FORGET_EVERY, SHORTEN_EVERY = 7, 11
"""Every FORGET_EVERY-th popped message is not acknowledged. For every SHORTEN_EVERY-th message the invisible
time is changed instead."""


class Popping(Program):
    """The common part of programs that pop. It pops all topics, with one consumer for each topic."""

    async def main(self, env: Env) -> None:
        self.lives += 1
        known: list[str] = []
        async with asyncio.TaskGroup() as group:
            while True:
                for topic in [topic for topic in self._topics if topic not in known]:
                    known.append(topic)
                    group.create_task(self._read(env, self.consumer(env, topic)), name=f"pop-{topic}")
                await asyncio.sleep(ASSIGN_EVERY_S)

    def consumer(self, env: Env, topic: str) -> Any:
        """Make the consumer for a topic. Its name differs after each start of the program."""
        raise NotImplementedError

    async def popped(
        self,
        env: Env,
        consumer: Any,
        messages: Sequence[ReceivedMessage],
        between: tuple[int, int],
        terms: tuple[int, int],
    ) -> None:
        """Handle popped messages. `between` has the world times at which they were asked for and received,
        and `terms` the leaders' terms at these times."""
        raise NotImplementedError

    async def _read(self, env: Env, consumer: AsyncPopConsumer) -> None:
        async with consumer:
            while True:
                asked, term = self.now(), self._stage.leader_term()
                try:
                    messages = await consumer.pop(POP_LIMIT_S)
                except ClientError:
                    await asyncio.sleep(0.1)
                    continue
                times = (asked, self.now()), (term, self._stage.leader_term())
                await self.popped(env, consumer, messages, *times)

    async def settle(self, settled: Settling, request: Coroutine[Any, Any, object]) -> None:
        """Await a request, and note its outcome."""
        try:
            await request
        except ClientError:
            settled.outcome = UNKNOWN
        else:
            settled.outcome = ACKNOWLEDGED
        settled.end = self.now()


class Settling(Protocol):
    """The outcome of a consumer's request for a message (an acknowledgement or a change of the invisible
    time), and when the request ended."""

    outcome: str
    end: int


class PopWorker(Popping):
    """Acknowledges most messages, makes the invisible time of some shorter, and leaves some without an
    acknowledgement."""

    _count = 0

    def consumer(self, env: Env, topic: str) -> AsyncPopConsumer:
        """Make the consumer for a topic (see `Popping`)."""
        return AsyncPopConsumer(
            POP_GROUP,
            self._stage.namesrv_addr,
            topic=topic,
            from_where=FromWhere.FIRST,
            options=POP_OPTIONS,
            client=replace(self.options(), instance_name=f"{topic}-{self.lives}"),
            env=env,
        )

    async def popped(
        self,
        env: Env,
        consumer: AsyncPopConsumer,
        messages: Sequence[ReceivedMessage],
        between: tuple[int, int],
        terms: tuple[int, int],
    ) -> None:
        """Handle popped messages (see `Popping`)."""
        found = [Handed(message.body, message.reconsume_times, between, terms) for message in messages]
        for handed in found:
            self._history.pops.handed.append(handed)
            self._history.pops.values[handed.value] = None
        for message, handed in zip(messages, found, strict=True):
            await self._settle(consumer, message, handed)

    async def _settle(self, consumer: AsyncPopConsumer, message: ReceivedMessage, handed: Handed) -> None:
        self._count += 1
        if self._count % FORGET_EVERY == 0:
            return
        ack = Ack(handed, short=self._count % SHORTEN_EVERY == 0)
        self._history.pops.acks.append(ack)
        if ack.short:
            await self.settle(ack, consumer.change_invisible(message, SHORT_MS / 1000))
        else:
            await self.settle(ack, consumer.ack(message))
