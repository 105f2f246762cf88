"""Namespaces: brokers see `namespace%name`, applications do not."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import (
    AsyncLitePullConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    ClientOptions,
    Message,
    MessageQueue,
    PushConsumer,
)
from dledger.client.namespaces import with_namespace, without_namespace
from tests.client.consumer_kit import QUICK, until
from tests.client.fake_cluster import GROUP, FakeCluster

INSTANCE = ClientOptions(namespace="INST")


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("orders", "INST%orders"),
        ("%RETRY%group", "%RETRY%INST%group"),
        ("%DLQ%group", "%DLQ%INST%group"),
        ("OTHER%orders", "INST%OTHER%orders"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_SYNC_BROKER_MEMBER_x", "rmq_sys_SYNC_BROKER_MEMBER_x"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
        ("", ""),
    ],
)
def test_names_are_wrapped_once_and_unwrapped(plain: str, wrapped: str) -> None:
    assert with_namespace(plain, "INST") == with_namespace(wrapped, "INST") == wrapped
    assert without_namespace(wrapped, "INST") == plain
    assert with_namespace(plain, "") == without_namespace(plain, "") == plain


def test_clients_of_a_namespace_share_topics_that_others_do_not_see() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"INST%orders": 2, "orders": 2}) as fake:
            async with AsyncProducer("producers", fake.namesrv, client=INSTANCE) as producer:
                message = Message("orders", b"1")
                await producer.send(message)
                assert message.topic == "orders"
                ended: list[object] = []
                producer.send_nowait(message, ended.append)
                producer.send_soon(message, ended.append)
                await producer.send_oneway(message)
                await producer.send_batch([message, message])
                queues = await producer.queues("orders")
                assert queues[0] == MessageQueue("INST%orders", GROUP, 0)
                await producer.send(message, queues[1])
                await producer.send(message, MessageQueue("orders", GROUP, 1))
                assert producer.has_route("orders")
                await producer.flush()
            assert len(fake.stored("INST%orders")) == 8 and not fake.stored("orders")
            assert {item.header.producerGroup for item in fake.stored("INST%orders")} == {"INST%producers"}

            async with AsyncPullConsumer("readers", fake.namesrv, client=INSTANCE) as consumer:
                await consumer.assign(await consumer.queues("orders"), "first")
                found = await consumer.poll(60.0)
                assert {got.topic for got in found} == {"orders"}
            lite = AsyncLitePullConsumer(
                "lite", fake.namesrv, topic="orders", from_where="first", client=INSTANCE
            )
            async with lite:
                assert (await lite.poll(60.0))[0].topic == "orders"
                assert await lite.fetch_queues("orders") == queues
            await asyncio.to_thread(push, fake)

    def push(fake: FakeCluster) -> None:
        got: list[str] = []
        failed: list[int] = []

        def listener(message: object) -> None:
            if not failed:
                failed.append(1)
                raise ValueError("comes again")
            got.append(message.topic)  # type: ignore[attr-defined]

        with PushConsumer(
            "group",
            fake.namesrv,
            listener,
            topic="orders",
            from_where="first",
            options=QUICK,
            client=INSTANCE,
        ):
            until(lambda: len(got) >= 7)
        assert set(got) == {"orders"}
        (back,) = fake.sent_back
        assert (back.group, back.originTopic) == ("INST%group", "INST%orders")
        assert {group for group, topic, _ in fake.offsets if topic == "INST%orders"} >= {"INST%group"}

    asyncio.run(main())
