"""The client program of the runs in which topics are deleted and made again (see `deletion_history`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from operator import lt
from typing import TypeVar

from dledger.chaos.scenarios.broker_clients import Program
from dledger.chaos.scenarios.broker_history import Send
from dledger.chaos.scenarios.broker_replay import SCHEDULE
from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.deletion_history import BRIEF, BriefSend, Life
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.chaos.scenarios.user_changes import change_a_user
from dledger.client.consuming.offsets import QueueOffsets
from dledger.client.errors import ClientError, OutcomeUnknown
from dledger.client.message import Message, MessageQueue
from dledger.client.producing.producer import AsyncProducer
from dledger.client.topics import delete_topic
from dledger.runtime.env import Env

BRIEF_GROUP, BRIEF_NAMES, BRIEF_QUEUES, BRIEF_SENDS, BRIEF_CYCLES = "brief-readers", 2, 2, 6, 30
BRIEF_PAUSE_S = (0.05, 1.5)
BRIEF_LOOKS = 25
USER_CHANGES = 2
"""How many changes of users and policies follow each topic."""
T = TypeVar("T")


class BriefTopics(Program):
    """Makes topics, uses them, deletes them, and makes them again. It also changes users and their
    policies."""

    cycles = BRIEF_CYCLES
    """How many topics are made in one life of the program."""

    async def main(self, env: Env) -> None:
        self.lives += 1
        client = self.options()
        async with AsyncProducer(
            "brief-producers", self._stage.namesrv_addr, client=client, env=env
        ) as producer:
            for _ in range(self.cycles):
                if self._stage.measured:
                    return
                await self._cycle(producer, f"{BRIEF}{self.lives}-{env.random.randrange(BRIEF_NAMES)}", env)
                for _ in range(USER_CHANGES):
                    await change_a_user(producer._core, self._history.users, self.lives, env)
                await asyncio.sleep(env.random.uniform(*BRIEF_PAUSE_S))

    async def _cycle(self, producer: AsyncProducer, topic: str, env: Env) -> None:
        history = self._history.deletions
        if topic in history.unsure:
            return
        number = len(history.lives)
        before = [life for life in history.lives if life.topic == topic]
        life = Life(topic, number)
        history.lives.append(life)
        history.unsure[topic] = None  # until all steps are done without any doubt
        core, lost = producer._core, producer._unanswered_count
        elections = self._stage.elections
        offsets = QueueOffsets(core)
        try:
            await producer.create_topic(topic, BRIEF_QUEUES)
            queues = [MessageQueue(topic, BROKER_NAME, number) for number in range(BRIEF_QUEUES)]
            for queue in queues if before else ():
                ask = partial(offsets.committed, queue, BRIEF_GROUP)
                offset = await self._in_time(ask, lambda offset: not offset)
                if offset:
                    history.strange.append(f"{queue} begins, but its group goes on at {offset}")
            sends = [self._send(producer, life, env) for _ in range(1 + env.random.randrange(BRIEF_SENDS))]
            await asyncio.gather(*sends)
            for queue in queues:
                stored = [send for send in life.sends if send.outcome == ACKNOWLEDGED and not send.delayed]
                highest = max((send.offset for send in stored if send.queue == queue.queue_id), default=-1)
                end = await self._in_time(partial(offsets.highest, queue), partial(lt, highest))
                if end <= highest:
                    history.strange.append(f"{queue} ends at {end}, acknowledged was {highest}")
                await offsets.commit(queue, BRIEF_GROUP, end, sets_back=False)
            await delete_topic(core, topic)
            life.deleted = True
            if self._stage.elections > elections and before:
                self._stage.marks.reach("a topic was made again and deleted while the leader changed")
        except ClientError:
            return
        if producer._unanswered_count == lost:
            del history.unsure[topic]

    async def _in_time(self, ask: Callable[[], Awaitable[T]], right: Callable[[T], bool]) -> T:
        """Ask until the answer is right, at most BRIEF_LOOKS times, because a deposed leader may answer for a
        moment. Returns the last answer."""
        for _ in range(BRIEF_LOOKS):
            found = await ask()
            if right(found):
                break
            await asyncio.sleep(0.2)
        return found

    async def _send(self, producer: AsyncProducer, life: Life, env: Env) -> None:
        value = b"%s#%d#%d|" % (life.topic.encode(), life.number, len(life.sends))
        send = BriefSend(value, delayed=env.random.randrange(3) == 0)
        life.sends.append(send)
        resent = producer._resent_count
        message = Message(life.topic, value, keys=value.decode().rstrip("|"))
        waits = Send(self.name, SCHEDULE, [value], self.now(), batch=False)
        if send.delayed:
            message.delay_level = 1
            self._history.sends.append(waits)
        try:
            result = await producer.send(message)
            send.outcome, send.queue = ACKNOWLEDGED, result.queue.queue_id
            send.offset = result.queue_offset
            send.once = producer._resent_count == resent
            waits.queue, waits.offset = 0, send.offset
            waits.ids = tuple(result.offset_message_id.split(","))
        except OutcomeUnknown:
            send.outcome = UNKNOWN
        except ClientError:
            send.outcome = REFUSED
        waits.outcome, waits.end = send.outcome, self.now()
