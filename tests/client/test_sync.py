"""The synchronous face: the same clients without an event loop of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dledger.client import (
    AsyncProducer,
    ClientClosed,
    ClientError,
    ConsumerOptions,
    FromWhere,
    InvalidMessage,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    TopicNotFound,
)
from dledger.runtime.loops import LoopThread, Waiter
from tests.client.fake_cluster import FakeCluster


@contextmanager
def running(cluster: FakeCluster) -> Iterator[FakeCluster]:
    thread = LoopThread("fake cluster")
    thread.run(cluster.__aenter__())
    try:
        yield cluster
    finally:
        thread.run(cluster.__aexit__())
        thread.close(60.0)


def test_produce_and_consume_in_a_few_lines() -> None:
    with running(FakeCluster(topics={"orders": 2})) as fake:
        with Producer(group="producers", namesrv=fake.namesrv) as producer:
            result = producer.send(Message("orders", b"one", tags="paid", keys="k"))
            assert isinstance(result, SendResult)
            producer.send_batch([Message("orders", b"two"), Message("orders", b"three")])
            producer.send_oneway(Message("orders", b"four"))
            assert len(producer.queues("orders")) == 2
            producer.create_topic("fresh", queues=3)
            assert len(producer.queues("fresh")) == 3

        got: list[bytes] = []
        enough = Waiter()

        def handle(message: ReceivedMessage) -> None:
            got.append(message.body)
            if len(got) == 4:
                enough.set()

        options = ConsumerOptions(rebalance_retry_s=0.01)
        with PushConsumer(
            "group", fake.namesrv, handle, topic="orders", from_where=FromWhere.FIRST, options=options
        ) as consumer:
            assert enough.wait(60)
            assert not consumer.wait(0.01)
            assert len(consumer.queues) == 2
        assert consumer.wait(0)
        assert sorted(got) == [b"four", b"one", b"three", b"two"]
        assert sum(fake.offsets.values()) == 4

        with PullConsumer("reports", fake.namesrv) as reader:
            queues = reader.queues("orders")
            reader.assign(queues, start=FromWhere.FIRST)
            assert reader.assignment == sorted(queues) and reader.failure is None
            read: list[ReceivedMessage] = []
            while len(read) < 4:
                read += reader.poll(20.0)
            reader.commit()
            assert sum(reader.committed(queue) or 0 for queue in queues) == 4
            reader.seek_to_begin(queues[0])
            assert reader.position(queues[0]) == reader.lowest(queues[0]) == 0
            assert reader.highest(queues[0]) + reader.highest(queues[1]) == 4


def test_callbacks_get_results_and_errors() -> None:
    cluster = FakeCluster(topics={"orders": 1})
    cluster.default_queues = 0
    with running(cluster) as fake, Producer(group="producers", namesrv=fake.namesrv) as producer:
        results: list[SendResult | ClientError] = []
        done = Waiter()

        def note(result: SendResult | ClientError) -> None:
            results.append(result)
            if len(results) == 21:
                done.set()

        for number in range(20):
            producer.send_async(Message("orders", b"%d" % number), note, ordering_key="k")
        producer.send_async(Message("missing", b"x"), note)
        with pytest.raises(InvalidMessage):
            producer.send_async(Message("orders", b""), note)
        assert done.wait(60)
        assert [type(result) for result in results].count(TopicNotFound) == 1
        assert fake.bodies("orders") == [b"%d" % number for number in range(20)]


def test_sends_can_be_begun_and_waited_for_later() -> None:
    with running(FakeCluster(topics={"orders": 2})) as fake, Producer("producers", fake.namesrv) as producer:
        first, second = producer.queues("orders")
        batch = producer.begin_batch([Message("orders", b"a"), Message("orders", b"b")], first)
        single = producer.begin(Message("orders", b"c"), second)
        refused = producer.begin(Message("orders", b""), second)
        assert (single().queue, batch().queue, batch().queue_offset) == (second, first, 0)
        with pytest.raises(InvalidMessage):
            refused()
        assert sorted(fake.bodies("orders")) == [b"a", b"b", b"c"]


def test_a_sync_producer_can_be_awaited_from_another_loop() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake, Producer("producers", fake.namesrv) as producer:

        async def main() -> None:
            results = await asyncio.gather(*(producer.asend(Message("orders", b"x")) for _ in range(3)))
            assert sorted(result.queue_offset for result in results) == [0, 1, 2]

        asyncio.run(main())


def test_a_call_that_is_awaited_hears_of_the_end_and_of_its_own_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncProducer, "send", never)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.asend("orders", b"x")
        sent = asyncio.ensure_future(producer.asend("orders", b"x"))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(producer.close)
        with pytest.raises(ClientClosed, match="closed while this call waited"):
            await sent

    with Producer("producers", "127.0.0.1:1") as producer:
        asyncio.run(main())


def test_errors_reach_the_caller_and_closing_twice_is_fine() -> None:
    producer = Producer("producers", "127.0.0.1:1")
    with pytest.raises(ClientClosed):
        producer.send(Message("orders", b"x"))
    with producer:
        with pytest.raises(ClientError, match="NameServer"):
            producer.send(Message("orders", b"x"))
        with pytest.raises(ClientError, match="already started"):
            producer.start()
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("orders", b"x"))


def test_a_consumer_that_cannot_start_says_why() -> None:
    with pytest.raises(ClientError, match="no topic is subscribed"):
        PushConsumer("group", "127.0.0.1:1", print).start()


def test_what_needs_no_waiting_may_be_asked_in_a_coroutine_listener() -> None:
    """It runs on the client's own loop, where waiting for that loop would wait for ever."""
    answers: list[object] = []
    enough = Waiter()

    async def handle(message: ReceivedMessage) -> None:
        try:
            answers.extend([consumer.queues, consumer.client_id, producer.has_route("orders")])
        finally:
            enough.set()

    with running(FakeCluster(topics={"orders": 1})) as fake:
        consumer = PushConsumer("group", fake.namesrv, handle, topic="orders", from_where="first")
        with Producer("producers", fake.namesrv) as producer:
            producer.send(Message("orders", b"x"))
            with consumer:
                assert enough.wait(60.0)
                assert answers == [consumer.queues, consumer.client_id, True]
