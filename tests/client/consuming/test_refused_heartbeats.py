"""A broker that refuses what a client says of its groups: that is told, and a consumer ends by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from dledger.client import (
    AsyncLitePullConsumer,
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    BrokerRefused,
    ClientError,
    ClientOptions,
    InvalidMessage,
    LitePullConsumer,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
)
from dledger.remoting.codes import ResponseCode
from tests.client.consuming.test_consumers import QUICK, Collector
from tests.client.fake_cluster import FakeCluster, eventually

REFUSALS = [
    (ResponseCode.INVALID_PARAMETER, "The specified group is longer than group max length 120."),
    (ResponseCode.NO_PERMISSION, "no permission for group"),
    (ResponseCode.SYSTEM_ERROR, "cannot decode the heartbeat"),
    (9999, "a limit of tomorrow"),
]
OFTEN = ClientOptions(heartbeat_s=0.01)


def pushed(fake: FakeCluster, client: ClientOptions | None = None) -> AsyncPushConsumer:
    return AsyncPushConsumer("group", fake.namesrv, Collector(), topic="orders", options=QUICK, client=client)


def pulled(fake: FakeCluster, client: ClientOptions | None = None) -> AsyncLitePullConsumer:
    return AsyncLitePullConsumer("group", fake.namesrv, topic="orders", options=QUICK, client=client)


KINDS = [pushed, pulled]


def refuse(fake: FakeCluster, refusal: tuple[int, str] | None, *numbers: int) -> None:
    for broker in fake.brokers:
        if broker.number in (numbers or range(3)):
            broker.refusal = refusal


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if "refused a heartbeat" in text]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_that_all_brokers_refuse_does_not_start(
    kind: Callable[..., Any], refusal: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            refuse(fake, refusal)
            with pytest.raises(BrokerRefused, match=refusal[1]) as told:
                await kind(fake).start()
            assert told.value.code == refusal[0]
            with pytest.raises(BrokerRefused, match=refusal[1]):
                async with kind(fake):
                    raise AssertionError("it has started")
            (text,) = set(refused(caplog))
            assert refusal[1] in text and len(refused(caplog)) == 2  # once for each of the two

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_also_where_the_topic_is_not_there_yet(kind: Callable[..., Any]) -> None:
    async def main() -> None:
        async with FakeCluster() as fake, asyncio.timeout(60):
            refuse(fake, REFUSALS[0])
            with pytest.raises(BrokerRefused, match="longer than"):
                await kind(fake).start()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_one_broker_that_refuses_is_logged_once(
    kind: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            refuse(fake, REFUSALS[1], 1)
            async with kind(fake, OFTEN):
                heard = fake.brokers[1].heartbeats
                await eventually(lambda: len(heard) > 5)
                assert len(refused(caplog)) == 1
                refuse(fake, REFUSALS[2], 1)
                await eventually(lambda: len(refused(caplog)) == 2)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_that_all_brokers_refuse_later_ends(kind: Callable[..., Any]) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            consumer = await kind(fake, OFTEN).start()
            refuse(fake, REFUSALS[1])
            await consumer._wait_until_over()
            assert isinstance(consumer.failure, BrokerRefused)
            with pytest.raises(ClientError, match="no permission for group"):
                if isinstance(consumer, AsyncPushConsumer):
                    await consumer.wait()
                else:
                    await consumer.poll(20.0)
            with pytest.raises(ClientError, match="no permission for group"):
                if isinstance(consumer, AsyncPushConsumer):
                    await consumer.wait()
                else:
                    async for _ in consumer:
                        raise AssertionError("a message")

    asyncio.run(main())


def test_a_leader_that_is_searched_for_refuses_nothing() -> None:
    """Code 14 says nothing of the client, and a broker that does not answer neither."""

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            refuse(fake, (ResponseCode.SERVICE_NOT_AVAILABLE, "not now"))
            async with pushed(fake, OFTEN) as consumer:
                await eventually(lambda: len(fake.brokers[0].heartbeats) > 3)
                assert consumer.failure is None
                refuse(fake, None)
                await eventually(lambda: len(consumer.queues) == 1)

    asyncio.run(main())


def test_a_passing_refusal_of_all_brokers_does_not_end_a_consumer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, pushed(fake) as consumer, asyncio.timeout(60):
            refuse(fake, REFUSALS[1])
            consumer._core.beat_soon()
            await eventually(lambda: refused(caplog))
            refuse(fake, None)
            await consumer._core.beat()
            assert consumer.failure is None and consumer._core._answers._refused_since is None

    asyncio.run(main())


def test_producers_and_pop_consumers_tell_it(caplog: pytest.LogCaptureFixture) -> None:
    """What they send and take is answered by itself: they go on."""

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            refuse(fake, REFUSALS[1])
            async with AsyncProducer("group", fake.namesrv) as producer:
                await producer.send(Message("orders", b"x"))
                await eventually(lambda: len(refused(caplog)) == 1)
                await producer.send(Message("orders", b"x"))
            async with AsyncPopConsumer("group", fake.namesrv, topic="orders") as pop:
                await pop._core.route("orders")
                await eventually(lambda: len(refused(caplog)) == 2)

    asyncio.run(main())


def test_with_threads() -> None:
    def drive(namesrv: str) -> None:
        for one in (
            PushConsumer("group", namesrv, print, topic="orders"),
            LitePullConsumer("group", namesrv, topic="orders"),
        ):
            with pytest.raises(BrokerRefused, match="longer than"):
                one.start()
            one.close()

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            refuse(fake, REFUSALS[0])
            await asyncio.to_thread(drive, fake.namesrv)

    asyncio.run(main())


def every_client(group: str, client: ClientOptions | None = None) -> list[Callable[[], object]]:
    where = "127.0.0.1:1"
    return [
        lambda: Producer(group, where, client=client),
        lambda: AsyncProducer(group, where, client=client),
        lambda: PushConsumer(group, where, print, topic="t", client=client),
        lambda: AsyncPushConsumer(group, where, print, topic="t", client=client),
        lambda: PullConsumer(group, where, client=client),
        lambda: AsyncPullConsumer(group, where, client=client),
        lambda: LitePullConsumer(group, where, topic="t", client=client),
        lambda: AsyncLitePullConsumer(group, where, topic="t", client=client),
        lambda: PopConsumer(group, where, topic="t", client=client),
        lambda: AsyncPopConsumer(group, where, topic="t", client=client),
    ]


@pytest.mark.parametrize("number", range(10))
def test_a_group_name_that_brokers_do_not_take_is_refused_where_it_is_given(number: int) -> None:
    every_client("g" * 120)[number]()
    with pytest.raises(InvalidMessage, match="121 characters; the limit of the brokers is 120"):
        every_client("g" * 121)[number]()
    named = ClientOptions(namespace="shop")
    every_client("g" * 115, named)[number]()
    with pytest.raises(InvalidMessage, match="121 characters; the limit of the brokers is 120"):
        every_client("g" * 116, named)[number]()
