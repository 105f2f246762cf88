"""How queues are divided: as Java does, so that a group may have clients of both kinds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.client import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AsyncPushConsumer,
    ClientError,
    ConsumerOptions,
    FromWhere,
    MessageQueue,
)
from dledger.client.consuming.allocation import BY_NAME, AllocateStrategy, allocate, strategy_of
from tests.client.consuming.test_consumers import QUICK, Collector, produce
from tests.client.fake_cluster import FakeCluster, eventually

JAVAS = [json.loads(line) for line in (Path(__file__).parent / "allocations.jsonl").read_text().splitlines()]
"""Allocations that Apache's client computed. tests/interop/test_allocations.py makes and compares them."""


def room(name: str) -> str:
    return name.replace("@", "-").partition("-")[0]


def nearby(strategy: AllocateStrategy) -> AllocateMachineRoomNearby:
    return AllocateMachineRoomNearby(strategy, lambda queue: room(queue.broker_name), room)


STRATEGIES: list[Any] = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueByMachineRoom(["hz", "bj"]),
    AllocateMessageQueueConsistentHash(),
    nearby(AllocateMessageQueueAveragely()),
    nearby(AllocateMessageQueueConsistentHash(3)),
]


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("orders", "broker-a", number) for number in range(count)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_results_are_javas_one_by_one(strategy: Any) -> None:
    for case in JAVAS:
        known = [MessageQueue(*queue) for queue in case["queues"]]
        for client, wanted in zip(case["clients"], case["results"][strategy.name], strict=True):
            found = strategy("group", client, known, case["clients"])
            assert [known.index(queue) for queue in found] == wanted, (client, case)


def test_java_had_something_to_divide() -> None:
    assert {strategy.name for strategy in STRATEGIES} == set(JAVAS[0]["results"]) and len(JAVAS) >= 40
    for name in JAVAS[0]["results"]:
        assert sum(bool(own) for case in JAVAS for own in case["results"][name]) > 60, name


@given(st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]), st.integers(0, 40), st.integers(1, 12))
def test_every_queue_has_exactly_one_consumer(name: str, queue_count: int, consumer_count: int) -> None:
    names = [f"c{number:02}" for number in range(consumer_count)]
    shares = [allocate(BY_NAME[name], "g", one, queues(queue_count), names) for one in names]
    assert sorted(queue for share in shares for queue in share) == queues(queue_count)
    sizes = [len(share) for share in shares]
    assert name == "CONSISTENT_HASH" or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_stranger_gets_no_queue(strategy: Any) -> None:
    assert strategy("g", "c9", queues(4), ["c1", "c2"]) == []


def test_the_order_of_what_is_known_does_not_matter() -> None:
    found = allocate(BY_NAME["AVG"], "g", "c2", list(reversed(queues(8))), ["c3", "c1", "c2"])
    assert [queue.queue_id for queue in found] == [3, 4, 5]


def test_of_a_fixed_list_those_of_the_topic_count() -> None:
    own = AllocateMessageQueueByConfig([MessageQueue("other", "broker-a", 0), queues(3)[2], queues(3)[0]])
    assert allocate(own, "g", "c", queues(3), ["c"]) == [queues(3)[0], queues(3)[2]]
    with pytest.raises(ClientError, match="not a readable queue"):
        allocate(own, "g", "c", queues(1), ["c"])


def test_what_a_strategy_of_ones_own_does_wrong_is_said() -> None:
    def broken(*_: object) -> list[MessageQueue]:
        raise KeyError("c")

    with pytest.raises(ClientError, match=r"broken: KeyError\('c'\)"):
        allocate(broken, "g", "c", queues(1), ["c"])
    with pytest.raises(ClientError, match="has no machine room"):
        allocate(AllocateMachineRoomNearby(broken, lambda queue: "", room), "g", "c", queues(1), ["c"])
    with pytest.raises(ClientError, match="AVG_BY_CIRCLE"):
        strategy_of("RANDOM")
    with pytest.raises(ClientError, match="strategy"):
        ConsumerOptions(allocate=3)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="virtual_nodes"):
        AllocateMessageQueueConsistentHash(0)


def test_a_consumer_divides_with_a_strategy_of_ones_own() -> None:
    def odd(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        assert group == "group" and client_ids == [client_id]
        return [queue for queue in queues if queue.queue_id % 2]

    async def main() -> None:
        listener = Collector()
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            await produce(fake, 40)
            options = replace(QUICK, allocate=odd)
            async with AsyncPushConsumer(
                "group", fake.namesrv, listener, topic="orders", from_where=FromWhere.FIRST, options=options
            ):
                await eventually(lambda: len(listener.messages) == 20)
                await asyncio.sleep(0.05)
        assert {message.queue.queue_id for message in listener.messages} == {1, 3}

    asyncio.run(main())
