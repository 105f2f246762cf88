"""Clients for asyncio belong to the event loop in which they were opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger.client import (
    AsyncLitePullConsumer,
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSpoolingProducer,
    AsyncTransactionProducer,
    ClientClosed,
    ClientError,
    Message,
    MessageQueue,
)
from tests.client.fake_cluster import FakeCluster
from tests.client.test_sync import running

QUEUE = MessageQueue("orders", "broker-a", 0)
MESSAGE = Message("orders", b"x")
Make = Callable[[FakeCluster, Any], Any]

CLIENTS: dict[str, Make] = {
    "producer": lambda fake, _: AsyncProducer("p", fake.namesrv),
    "transactions": lambda fake, _: AsyncTransactionProducer("p", fake.namesrv, check=print),
    "spooling": lambda fake, path: AsyncSpoolingProducer("p", fake.namesrv, spool=str(path / "spool")),
    "pull": lambda fake, _: AsyncPullConsumer("c", fake.namesrv),
    "push": lambda fake, _: AsyncPushConsumer("c", fake.namesrv, print, topic="orders"),
    "lite pull": lambda fake, _: AsyncLitePullConsumer("c", fake.namesrv, topic="orders"),
    "pop": lambda fake, _: AsyncPopConsumer("c", fake.namesrv, topic="orders"),
}
"""One of each kind of client."""

CALLS: list[tuple[str, Callable[[Any], Awaitable[object]]]] = [
    ("producer", lambda producer: producer.send(MESSAGE)),
    ("producer", lambda producer: producer.send(Message("fresh", b"x"))),
    ("producer", lambda producer: producer.send_batch([MESSAGE, MESSAGE])),
    ("producer", lambda producer: producer.send_oneway(MESSAGE)),
    ("producer", lambda producer: producer.request(MESSAGE)),
    ("producer", lambda producer: producer.flush()),
    ("producer", lambda producer: producer.prepare("fresh")),
    ("producer", lambda producer: producer.queues("fresh")),
    ("producer", lambda producer: producer.create_topic("fresh")),
    ("producer", lambda producer: producer.delete_topic("orders")),
    ("producer", lambda producer: producer.recall("orders", "handle")),
    ("transactions", lambda producer: producer.transaction(MESSAGE).begin()),
    ("spooling", lambda producer: producer.deliver(MESSAGE)),
    ("spooling", lambda producer: producer.delivered()),
    ("pull", lambda consumer: consumer.queues("orders")),
    ("pull", lambda consumer: consumer.assign([QUEUE])),
    ("pull", lambda consumer: consumer.seek(QUEUE, 0)),
    ("pull", lambda consumer: consumer.poll()),
    ("pull", lambda consumer: consumer.commit()),
    ("pull", lambda consumer: consumer.committed(QUEUE)),
    ("pull", lambda consumer: consumer.query_by_key("orders", "k")),
    ("push", lambda consumer: consumer.wait(1)),
    ("lite pull", lambda consumer: consumer.poll()),
    ("lite pull", lambda consumer: consumer.commit()),
    ("lite pull", lambda consumer: consumer.seek(QUEUE, 0)),
    ("lite pull", lambda consumer: consumer.fetch_queues("orders")),
    ("lite pull", lambda consumer: consumer.__anext__()),
    ("pop", lambda consumer: consumer.pop()),
    *((name, lambda client: client.close()) for name in CLIENTS),
    *((name, lambda client: client._wait_until_over()) for name in CLIENTS),
]
"""What an application awaits."""


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[f"{name}-{at}" for at, (name, _) in enumerate(CALLS)])
def test_a_call_in_another_loop_is_refused_and_touches_nothing(
    name: str, call: Callable[[Any], Awaitable[object]], tmp_path: Any
) -> None:
    async def test(fake: FakeCluster) -> None:
        async with CLIENTS[name](fake, tmp_path) as client:
            if "producer" in name:
                await client.send(MESSAGE)  # the next one takes the quick way

            async def elsewhere() -> None:
                async with asyncio.timeout(20):
                    await call(client)

            with pytest.raises(ClientError, match="opened in another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
            if "producer" in name:
                await client.send(Message("fresh", b"y"))

    with running(FakeCluster(topics={"orders": 1})) as fake:
        asyncio.run(test(fake))


@pytest.mark.parametrize("name", CLIENTS)
def test_what_its_loop_has_ended_is_closed(name: str, tmp_path: Any) -> None:
    async def opened(fake: FakeCluster) -> Any:
        return await CLIENTS[name](fake, tmp_path).start()

    with running(FakeCluster(topics={"orders": 1})) as fake:
        client = asyncio.run(opened(fake))
        asyncio.run(client.close())
        asyncio.run(client.close())
        asyncio.run(client._wait_until_over())
        if "producer" in name:
            with pytest.raises(ClientClosed):
                asyncio.run(client.send(MESSAGE))


@pytest.mark.parametrize("name", CLIENTS)
def test_a_block_that_was_left_is_closed_for_any_loop(name: str, tmp_path: Any) -> None:
    async def used(fake: FakeCluster) -> Any:
        async with CLIENTS[name](fake, tmp_path) as client:
            return client

    with running(FakeCluster(topics={"orders": 1})) as fake:
        client = asyncio.run(used(fake))
        asyncio.run(client.close())
