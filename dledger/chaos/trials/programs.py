"""Client programs that only trials have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from dledger.chaos.scenarios.brief_topics import BRIEF_PAUSE_S, BriefTopics
from dledger.chaos.scenarios.broker_clients import (
    DELAYED,
    IN_TRANSACTIONS,
    TIMED,
    Producer,
    Program,
    PullReader,
    PushWorker,
)
from dledger.chaos.scenarios.broker_history import QueueEnd
from dledger.chaos.scenarios.user_changes import change_a_user
from dledger.client.consuming.offsets import QueueOffsets
from dledger.client.errors import ClientError
from dledger.client.message import ReceivedMessage
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.transaction_producer import AsyncTransaction
from dledger.runtime.env import Env

SENDS: Mapping[str, int | None] = {
    "mixed": None,
    "plain": -1,
    "transactions": IN_TRANSACTIONS,
    "delays": DELAYED,
    "timers": TIMED,
}
"""What the single messages of the producers are. `mixed`: of six messages one has a delay level, one is sent
in a transaction, one is a timer message, and three are plain."""
CHANGES = 12
"""How many changes of users are made with the same names."""
SLOW_CALL_S = 0.02
"""How long a slow consumer works on each message, in seconds."""
ASK_EVERY_S = 0.02
"""Pause between two questions for the end of a queue, in seconds."""


class FocusedProducer(Producer):
    """A producer whose single messages are all of one kind."""

    kind = -1

    def turn(self) -> tuple[int, int]:
        return self._count, self.kind

    async def decide(self, transaction: AsyncTransaction, *, commit: bool) -> None:
        """End every second transaction twice at the same time, as happens if a broker asks for a decision
        that is on its way. The second end must change nothing. Raises the error of the first end."""
        end = transaction.commit if commit else transaction.rollback
        if self._count % 2:
            await end()
            return
        first, second = await asyncio.gather(end(), end(), return_exceptions=True)
        if first is not None and second is not None:
            raise first

    async def send_last(self, env: Env) -> None:
        self.kind = -1  # the last messages show that each topic takes one at once
        await super().send_last(env)


class SlowWorker(PushWorker):
    """A push consumer that needs some time for each message."""

    async def work(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(SLOW_CALL_S)


class PullAndEndReader(PullReader):
    """A reader that also asks for the end of one queue after the other, whatever its pulls do."""

    async def main(self, env: Env) -> None:
        async with (
            AsyncProducer(
                "end-readers", self._stage.namesrv_addr, client=self.options(), env=env
            ) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._ask_ends(producer), name=f"{self.name}-ends")
            await super().main(env)

    async def _ask_ends(self, producer: AsyncProducer) -> None:
        offsets = QueueOffsets(producer._core)
        while True:
            for topic in list(self._topics):
                with suppress(ClientError):  # the topic does not exist yet, or nobody leads
                    for queue in await producer.queues(topic):
                        begin = self.now()
                        offset = await offsets.highest(queue)
                        place = (queue.topic, queue.queue_id)
                        self._history.ends.append(QueueEnd(self.name, place, offset, begin, self.now()))
                        await asyncio.sleep(ASK_EVERY_S)
                await asyncio.sleep(ASK_EVERY_S)


class TopicChurn(BriefTopics):
    """Creates, uses and deletes topics for ever. After a few topics it takes new names: those whose outcome
    is unknown are not used again."""

    cycles = 6

    async def main(self, env: Env) -> None:
        while True:
            await super().main(env)


class UserChanges(Program):
    """Creates, changes and deletes users and their policies, one change after another. After a few changes it
    takes new names: those whose outcome is unknown are not used again."""

    async def main(self, env: Env) -> None:
        self.lives += 1
        async with AsyncProducer(
            "operators", self._stage.namesrv_addr, client=self.options(), env=env
        ) as producer:
            while True:
                for _ in range(CHANGES):
                    await change_a_user(producer._core, self._history.users, self.lives, env)
                    await asyncio.sleep(env.random.uniform(*BRIEF_PAUSE_S))
                self.lives += 1
