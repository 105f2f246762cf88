"""Queues that are handed over while the group is set to other offsets: consumers that work in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger.client.consuming import rebalancing
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.queue_locks import QueueLocks
from dledger.client.consuming.rebalancing import QueueShare, Rebalancer
from dledger.client.errors import ClientError
from dledger.client.message import MessageQueue
from dledger.remoting.codes import RequestCode

FIRST, SECOND = (MessageQueue("orders", "b", number) for number in (0, 1))
SUBSCRIPTION = cast(Any, SimpleNamespace(topic="orders"))
AT, SET_TO = 10, 2


class Reader:
    """In place of one that pulls."""

    def __init__(self, *rest: object) -> None:
        pass

    async def run(self) -> None:
        """Nothing comes."""
        await asyncio.sleep(60)


@pytest.fixture(autouse=True)
def two_queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rebalancing, "QueueReader", Reader)
    monkeypatch.setattr(rebalancing, "subscribe_queues", lambda topic, route: [FIRST, SECOND])
    yield


class Consumer:
    """One that works in order; another may join its group, and gets the second queue."""

    def __init__(self) -> None:
        self.members = ["me"]
        self.saved: dict[MessageQueue, int] = {}
        self.at_saves: list[Callable[[], None]] = []
        """What happens during the next ones."""
        self.call_ends = asyncio.Event()
        self.rebalances = 0
        self.unlocked: list[MessageQueue] = []
        log = SimpleNamespace(info=lambda *a, **k: None, warning=lambda *a, **k: None)
        core = cast(
            Any,
            SimpleNamespace(
                now=asyncio.get_running_loop().time,
                log=log,
                client_id="me",
                env=SimpleNamespace(wall=SimpleNamespace(now_ms=lambda: 0)),
                spawn=lambda work, name: asyncio.ensure_future(work),
                route=self._route,
            ),
        )
        options = ConsumerOptions()
        self.locks = QueueLocks(core, "group", options)
        self.locks._ask = self._ask  # type: ignore[method-assign]
        self.locks._invoke = self._invoke  # type: ignore[method-assign]
        progress = cast(Any, SimpleNamespace(load=self._load, save=self._save))
        nothing = cast(Any, None)
        self.share = QueueShare(core, "group", options, progress, nothing, self.locks, nothing)
        self.share._released = self._released  # type: ignore[method-assign]
        self.share.on_reset = self._count
        beginnings = cast(Any, SimpleNamespace(decided=lambda topic: True))
        self._rebalancer = Rebalancer(core, "group", options, self.share, beginnings, False, self.locks)
        self._rebalancer._consumers = self._consumers  # type: ignore[method-assign]

    async def rebalance(self) -> None:
        await self._rebalancer._rebalance(SUBSCRIPTION)

    async def go_on(self) -> None:
        """The listener's call ends, and what waited for it is done."""
        self.call_ends.set()
        for _ in range(10):
            await asyncio.sleep(0)

    def _count(self) -> None:
        self.rebalances += 1

    async def _route(self, topic: str) -> None:
        return None

    async def _ask(self, broker: str, queues: list[MessageQueue]) -> dict[MessageQueue, None]:
        return dict.fromkeys(queues)

    async def _invoke(
        self, broker: str, code: RequestCode, queues: list[MessageQueue], known: dict[MessageQueue, int]
    ) -> bytes:
        assert code == RequestCode.UNLOCK_BATCH_MQ
        self.unlocked += queues
        return b""

    async def _load(self, queue: MessageQueue) -> int:
        return self.saved.get(queue, AT)

    async def _save(self, offsets: dict[MessageQueue, int], back: Container[MessageQueue]) -> None:
        for at_save in self.at_saves[:1]:
            del self.at_saves[0]
            at_save()
        self.saved |= offsets

    async def _released(self, assigned: object) -> None:
        await self.call_ends.wait()

    async def _consumers(self, queues: object) -> list[str]:
        return self.members


def test_it_begins_again_where_it_was_told() -> None:
    async def test() -> None:
        consumer = Consumer()
        await consumer.rebalance()
        consumer.share.reset(SECOND, SET_TO)
        assert consumer.share.queues == [FIRST] and consumer.rebalances == 1
        await consumer.go_on()
        assert consumer.rebalances == 2
        await consumer.rebalance()
        again = consumer.share.assigned(SECOND)
        assert again is not None and again.process.commit_offset == SET_TO
        assert consumer.unlocked == [] and consumer.saved == {}

    asyncio.run(test())


def test_whoever_is_next_gets_the_lock_and_the_offset() -> None:
    async def test() -> None:
        consumer = Consumer()
        await consumer.rebalance()
        consumer.share.reset(SECOND, SET_TO)
        consumer.members.append("you")
        await consumer.rebalance()
        assert consumer.unlocked == []  # a call for it runs
        await consumer.go_on()
        await consumer.rebalance()
        assert consumer.unlocked == [SECOND] and consumer.locks.queues == [FIRST]
        assert consumer.saved == {SECOND: SET_TO}

    asyncio.run(test())


def test_a_reset_counts_while_a_queue_is_handed_over() -> None:
    async def test() -> None:
        consumer = Consumer()
        await consumer.rebalance()
        consumer.members.append("you")
        await consumer.rebalance()
        assert consumer.share.leaving == [SECOND]
        consumer.share.reset(SECOND, SET_TO)
        await consumer.share.commit_now()
        assert SECOND not in consumer.saved
        await consumer.go_on()
        assert consumer.rebalances == 1
        await consumer.rebalance()
        assert consumer.saved[SECOND] == SET_TO and consumer.unlocked == [SECOND]

    asyncio.run(test())


def test_without_its_lock_it_says_nothing_of_a_queue() -> None:
    async def test() -> None:
        consumer = Consumer()
        await consumer.rebalance()
        consumer.members.append("you")
        await consumer.rebalance()
        consumer.locks._lost(SECOND, "test")  # another works on it
        consumer.share.reset(SECOND, SET_TO)
        await consumer.go_on()
        await consumer.rebalance()
        await consumer.share.close()
        assert SECOND not in consumer.saved

    asyncio.run(test())


def test_what_cannot_be_saved_is_tried_again_before_the_lock_is_given_back() -> None:
    async def test() -> None:
        consumer = Consumer()
        await consumer.rebalance()
        consumer.share.reset(SECOND, SET_TO)
        consumer.members.append("you")
        await consumer.go_on()

        def fail() -> None:
            raise ClientError("no leader")

        consumer.at_saves.append(fail)
        await consumer.rebalance()
        assert consumer.unlocked == [] and consumer.saved == {}
        await consumer.rebalance()
        assert consumer.unlocked == [SECOND] and consumer.saved == {SECOND: SET_TO}

    asyncio.run(test())


def test_a_reset_while_the_last_offset_is_saved_counts() -> None:
    async def test() -> None:
        consumer = Consumer()
        await consumer.rebalance()
        consumer.share.assigned(SECOND).process.put([], AT + 10)  # type: ignore[union-attr]
        consumer.members.append("you")
        await consumer.rebalance()
        consumer.at_saves.append(lambda: consumer.share.reset(SECOND, SET_TO))
        await consumer.go_on()
        assert consumer.unlocked == [] and consumer.rebalances == 1
        await consumer.rebalance()
        assert consumer.unlocked == [SECOND] and consumer.saved == {SECOND: SET_TO}

    asyncio.run(test())
