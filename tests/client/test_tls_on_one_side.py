"""One side speaks TLS and the other does not: the client is told so at once, and nothing was stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPullConsumer,
    ClientOptions,
    Message,
    MessageQueue,
    NoBroker,
    NoNameServer,
    ProducerOptions,
)
from dledger.runtime.env import production_env
from dledger.runtime.remoting_tls import ServerTls, TlsOptions
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.dledger.certificates import Authority
from tests.remoting.test_remoting_tls import settings_of

LONG = ProducerOptions(timeout_s=10_000.0, attempt_timeout_s=10_000.0)
"""Who is told at once does not wait for this."""
TLS = ClientOptions(tls=TlsOptions(verify=False), failover_timeout_s=10_000.0)
PLAIN = ClientOptions(tls=None, failover_timeout_s=10_000.0)
ONLY_TLS = r"the port accepts only TLS: give ClientOptions\(tls=TlsOptions"
NO_TLS = "the port does not speak TLS: connect without it"


def enforcing(tmp_path: Path) -> ServerTls:
    env = production_env("tls")
    tls = settings_of(Authority(tmp_path), mode="enforcing").server(env.log)
    assert tls is not None
    return tls


def told(fake: FakeCluster, client: ClientOptions, text: str) -> None:
    async def main() -> None:
        async with fake, asyncio.timeout(60):
            async with AsyncProducer("producers", fake.namesrv, LONG, client) as producer:
                for send in (producer.send, producer.send_batch):
                    message = Message("orders", b"x" * 100_000)
                    with pytest.raises(NoBroker, match=f"{text}.*; it is not stored"):
                        await send(message if send == producer.send else [message])  # type: ignore[operator]
                with pytest.raises(NoBroker, match=text):
                    await producer.create_topic("bills")
            async with AsyncPullConsumer("group", fake.namesrv, client=client) as consumer:
                with pytest.raises(NoBroker, match=text):
                    await consumer.assign(await consumer.queues("orders"))
                with pytest.raises(NoBroker, match=text):
                    await consumer.highest(MessageQueue("orders", GROUP, 0))
            assert not fake.bodies("orders")

    asyncio.run(main())


def test_brokers_that_demand_tls(tmp_path: Path) -> None:
    told(FakeCluster(topics={"orders": 1}, tls_of_brokers=enforcing(tmp_path)), PLAIN, ONLY_TLS)


def test_brokers_without_tls(tmp_path: Path) -> None:
    told(FakeCluster(topics={"orders": 1}, tls_of_namesrv=enforcing(tmp_path)), TLS, NO_TLS)


@pytest.mark.parametrize("demanded", [True, False])
def test_a_nameserver(tmp_path: Path, demanded: bool) -> None:
    tls = enforcing(tmp_path) if demanded else None
    client, text = (PLAIN, ONLY_TLS) if demanded else (TLS, NO_TLS)

    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}, tls_of_namesrv=tls) as fake,
            AsyncProducer("producers", fake.namesrv, LONG, client) as producer,
            asyncio.timeout(60),
        ):
            with pytest.raises(NoNameServer, match=text):
                await producer.send(Message("orders", b"x"))

    asyncio.run(main())


def test_both_sides_speak_tls(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}, tls_of_namesrv=enforcing(tmp_path)) as fake,
            AsyncProducer("producers", fake.namesrv, LONG, TLS) as producer,
            asyncio.timeout(60),
        ):
            assert await producer.queues("orders")

    asyncio.run(main())
