"""Which queue a message goes to: the application's function, rooms, and around slow broker groups."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import (
    AsyncProducer,
    InvalidMessage,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    SelectMessageQueueByHash,
    SelectMessageQueueByMachineRoom,
)
from dledger.client.broker_group import BrokerGroup
from dledger.client.producing.latency import LatencyFaultTolerance
from dledger.client.producing.pending_sends import Lane, SendHeader, Target
from dledger.client.producing.queue_selection import TopicTargets
from tests.client.fake_cluster import GROUP, FakeCluster, send_limit

MESSAGE = Message("orders", b"x")
STEPS = ProducerOptions().latency_steps_s


def queues_of(*brokers: str) -> list[MessageQueue]:
    return [MessageQueue("orders", broker, number) for broker in brokers for number in range(2)]


def test_a_function_chooses_among_the_queues() -> None:
    def last(queues: object, message: Message) -> MessageQueue:
        return list(queues)[int(message.body)]  # type: ignore[call-overload, no-any-return]

    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 4}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            for number in (3, 0, 3):
                result = await producer.send(Message("orders", b"%d" % number), queue=last)
                assert result.queue == MessageQueue("orders", GROUP, number)
            results = await asyncio.to_thread(from_a_thread, fake)
            assert results == [2, 2, 2]
            for wrong in (lambda queues, message: None, lambda queues, message: queues[99]):
                with pytest.raises(InvalidMessage, match="queue selector"):
                    await producer.send(MESSAGE, wrong)
            assert len(fake.stored("orders")) == 7

    def from_a_thread(fake: FakeCluster) -> list[int]:
        with Producer("producers", fake.namesrv) as producer:
            one = Message("orders", b"2")
            sent = [producer.send(one, last), producer.send("orders", b"2", queue=last)]
            return [result.queue.queue_id for result in [*sent, producer.send_batch([one, one], last)]]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("key", "number"), [("Aa", 0), ("BB", 0), ("polygenelubricants", 2), ("a", 1), ("b", 2)]
)
def test_the_queue_by_hash_is_javas(key: str, number: int) -> None:
    """ "Aa" and "BB" have one hash (2112), that of "polygenelubricants" is the smallest of all."""
    queues = [MessageQueue("orders", GROUP, queue) for queue in range(3)]
    assert SelectMessageQueueByHash(key)(queues, MESSAGE).queue_id == number


def test_a_room_is_preferred_while_it_has_queues() -> None:
    queues = queues_of("hz@a", "sh@b", "sh@c")
    select = SelectMessageQueueByMachineRoom("sh")
    assert [select(queues, MESSAGE) for _ in range(5)] == [*queues[2:], queues[2]]
    elsewhere = SelectMessageQueueByMachineRoom("bj")
    assert {elsewhere(queues, MESSAGE) for _ in range(6)} == set(queues)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("latency_s", "isolation", "pause_s"),
    [
        (0.01, False, 0),
        (0.54, False, 0),
        (0.55, False, 2),
        (2.0, False, 5),
        (16.0, False, 30),
        (0.01, True, 10),
    ],
)
def test_a_slow_group_is_passed_over_for_a_while(latency_s: float, isolation: bool, pause_s: float) -> None:
    clock = Clock()
    table = LatencyFaultTolerance(STEPS, clock)
    assert table.available("a")
    table.update("a", latency_s, isolation)
    assert table.available("a") is not bool(pause_s)
    clock.now = pause_s
    assert table.available("a")


def targets_of(*brokers: str) -> list[Target]:
    lanes = {}
    for broker in brokers:
        group = BrokerGroup(broker)
        group.accepted("127.0.0.1:1")
        lanes[broker] = Lane(group)
    header = SendHeader.of("producers", MessageQueue("orders", "", 0), 4)
    return [Target(queue, lanes[queue.broker_name], header) for queue in queues_of(*brokers)]


def chosen(topic: TopicTargets, count: int, avoid: str | None = None) -> set[str]:
    found = [topic.next_target(avoid) for _ in range(count)]
    return {target.queue.broker_name for target in found if target is not None}


def test_messages_go_around_slow_groups_and_to_the_least_bad_when_all_are() -> None:
    clock = Clock()
    table = LatencyFaultTolerance(STEPS, clock)
    topic = TopicTargets(targets_of("a", "b", "c"), 0, table)
    assert chosen(topic, 9) == {"a", "b", "c"}
    table.update("b", 1.0)
    assert chosen(topic, 9) == {"a", "c"}
    assert chosen(topic, 9, avoid="a") == {"c"}
    table.update("a", 3.0)
    table.update("c", 0.01, isolation=True)
    assert chosen(topic, 9) == {"c"}, "of three the better half is one: the fastest"
    assert chosen(topic, 9, avoid="c") == {"a", "b"}, "better a slow one than none"
    clock.now = 2.0
    assert chosen(topic, 9) == {"b"}
    clock.now = 10.0
    assert chosen(topic, 9) == {"a", "b", "c"}


def test_the_producer_measures_what_it_sends() -> None:
    async def main() -> None:
        # No latency counts, only a failed attempt, as 10 s: pauses of the machine are not measured.
        options = ProducerOptions(send_latency_fault=True, latency_steps_s=((10.0, 600.0),), retry_times=0)
        async with (
            FakeCluster(topics={"orders": 4}) as fake,
            AsyncProducer("producers", fake.namesrv, options) as producer,
        ):
            await producer.send(MESSAGE)
            table = producer._kernel.faults
            assert table is not None and table.available(GROUP)
            fake.brokers[fake.leader].silent = True
            with send_limit(producer, 0.1), pytest.raises(Exception, match="no acknowledgement"):
                await producer.send(MESSAGE)
            assert not table.available(GROUP)
            fake.brokers[fake.leader].silent = False
            await producer.send(MESSAGE)  # there is no other group
            assert table.available(GROUP)

    asyncio.run(main())
