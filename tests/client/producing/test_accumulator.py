"""Automatic batching: messages that are sent one by one travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dledger.client import (
    AsyncProducer,
    ClientClosed,
    ClientError,
    InvalidMessage,
    Message,
    Producer,
    ProducerOptions,
    SendFailed,
    SendResult,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from tests.client.consumer_kit import until
from tests.client.fake_cluster import FakeCluster, eventually

OPTIONS = ProducerOptions(auto_batch=True, batch_hold_s=0.05)
SLOW = ProducerOptions(auto_batch=True, batch_hold_s=20.0)


def run(scenario: Callable[[FakeCluster, AsyncProducer], Awaitable[None]], options: ProducerOptions) -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 4, "other": 4}) as fake,
            AsyncProducer("producers", fake.namesrv, options) as producer,
            asyncio.timeout(60),
        ):
            await producer.prepare("orders")
            await scenario(fake, producer)

    asyncio.run(main())


def requests(fake: FakeCluster) -> tuple[int, int]:
    """How many sends of one message, and of a batch, the leader has seen."""
    codes = fake.brokers[fake.leader].requests
    return codes.count(RequestCode.SEND_MESSAGE_V2), codes.count(RequestCode.SEND_BATCH_MESSAGE)


def messages(count: int, topic: str = "orders") -> list[Message]:
    return [Message(topic, b"%d" % number, tags=f"t{number}") for number in range(count)]


def test_each_message_has_its_own_result() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        results = await asyncio.gather(*(producer.send(message) for message in messages(20)))
        assert requests(fake) == (0, 1)
        stored = {item.properties["UNIQ_KEY"]: item for item in fake.stored("orders")}
        assert len(stored) == len({result.offset_message_id for result in results}) == 20
        for number, result in enumerate(results):
            item = stored[result.message_id]
            assert (item.body, item.properties["TAGS"]) == (b"%d" % number, f"t{number}")
            assert (item.queue_id, item.offset) == (result.queue.queue_id, result.queue_offset)

    run(scenario, OPTIONS)


def test_a_full_batch_goes_at_once_and_the_rest_with_flush() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        ended: list[SendResult | ClientError] = []
        for _ in range(10):
            producer.send_nowait(Message("orders", b"x" * 10_000), ended.append)
        producer.send_nowait(Message("orders", b"alone" * 20_000), ended.append)  # larger than any batch
        assert producer._pending_count > 1
        await eventually(lambda: len(ended) == 10)
        assert requests(fake) == (1, 3), "three of 30 KB each; the tenth still waits"
        assert await producer.flush(60) == 0
        assert requests(fake) == (1, 4) and len(ended) == 11 and producer._pending_count == 0

    run(scenario, ProducerOptions(auto_batch=True, batch_hold_s=20.0, compress_over=0))


def test_what_may_not_wait_or_share_goes_by_itself() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"x"), ordering_key="k")
        await producer.send(Message("orders", b"x", delay_level=1))
        await producer.send(Message("orders", b"x" * 5000))  # is compressed
        assert requests(fake) == (3, 0)
        with pytest.raises(InvalidMessage):
            await producer.send(Message("orders", b"x", properties={"TAGS": "x"}))

    run(scenario, SLOW)


def test_topics_and_chosen_queues_have_batches_of_their_own() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        queues = await producer.queues("orders")
        await producer.prepare("other")
        chosen = [producer.send(message, queues[2]) for message in messages(3)]
        by_function = [producer.send(message, lambda queues, message: queues[2]) for message in messages(3)]
        other = [producer.send(message) for message in messages(3, "other")]
        results = await asyncio.gather(*chosen, *by_function, *other)
        assert {result.queue for result in results[:6]} == {queues[2]}
        assert requests(fake) == (0, 2)

    run(scenario, OPTIONS)


def test_a_refused_batch_is_an_error_for_each() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        def refuse(broker: object, connection: object, request: object) -> bool:
            connection.respond(request, ResponseCode.MESSAGE_ILLEGAL, remark="no")  # type: ignore[attr-defined]
            return True

        fake.script = refuse
        sends = (producer.send(message) for message in messages(3))
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(result) for result in results] == [SendFailed] * 3

    run(scenario, OPTIONS)


def test_what_is_held_is_sent_when_others_wait_for_room() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        sends = [asyncio.ensure_future(producer.send(message)) for message in messages(25, "other")]
        await asyncio.sleep(0)  # they ask for the route, and then for room
        assert await producer.flush(60) == 0
        results = await asyncio.gather(*sends)
        assert len({(result.queue, result.queue_offset) for result in results}) == 25

    run(scenario, ProducerOptions(auto_batch=True, batch_hold_s=20.0, max_pending=10))


@pytest.mark.parametrize("drain", [True, False])
def test_what_is_held_at_close_is_sent_or_told(drain: bool) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake:
            producer = await AsyncProducer("producers", fake.namesrv, SLOW).start()
            await producer.prepare("orders")
            ended: list[SendResult | ClientError] = []
            for message in messages(5):
                producer.send_nowait(message, ended.append)
            await producer.close(drain)
            assert {type(result) for result in ended} == {SendResult if drain else ClientClosed}
            assert len(ended) == 5 and len(fake.stored("orders")) == (5 if drain else 0)

    asyncio.run(main())


def test_threads_share_batches() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake:
            await asyncio.to_thread(many_threads, fake)
            assert requests(fake) == (0, 2)

    def many_threads(fake: FakeCluster) -> None:
        with Producer("producers", fake.namesrv, SLOW) as producer, ThreadPoolExecutor(8) as threads:
            producer.queues("orders")  # before its route is known a message is sent by itself
            sending = threads.map(producer.send, messages(16))
            for _ in range(2):
                until(lambda: producer._inner._pending_count == 8)  # each thread waits for its message
                assert producer.flush(60) == 0
            results = list(sending)
            assert len({(result.queue, result.queue_offset) for result in results}) == 16

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"batch_hold_s": 31.0}, {"batch_hold_bytes": 8 * 2**20}])
def test_wrong_limits_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ClientError, match="batch_hold"):
        ProducerOptions(**wrong)  # type: ignore[arg-type]
