"""Both push consumers, driven alike: one in a thread, one on a loop of its own; the cluster in another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dledger.client import AsyncPushConsumer, ConsumerOptions, FromWhere, Message, Producer, PushConsumer
from tests.client.fake_cluster import FakeCluster

QUICK = ConsumerOptions(
    concurrency=4,
    rebalance_retry_s=0.01,
    local_retry_first_s=0.01,
    send_back_retry_s=0.01,
    commit_s=0.02,
    close_timeout_s=20.0,
)
FACES = (PushConsumer, AsyncPushConsumer)
CHILD_PATIENCE = """
from dledger.client import ClientOptions, ProducerOptions
from dledger.remoting.limits import ClientLimits
PATIENT = ClientOptions(
    namesrv_timeout_s=20, request_timeout_s=20, probe_timeout_s=20, failover_timeout_s=60,
    limits=ClientLimits(connect_timeout_s=20))
"""
"""Begins a program whose cluster lives in our process: what `patience` of conftest.py does here."""


def fill(fake: FakeCluster, count: int, topic: str = "orders") -> None:
    """Messages with the bodies 0, 1, ..."""
    with Producer("producers", fake.namesrv) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait, in a thread, until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def committed(fake: FakeCluster, group: str = "group", topic: str = "orders") -> int:
    """Sum of the group's committed offsets."""
    return sum(offset for (of, about, _), offset in fake.offsets.items() if (of, about) == (group, topic))


def consume(
    face: type[PushConsumer] | type[AsyncPushConsumer],
    fake: FakeCluster,
    listener: Any,
    condition: Callable[[], object],
    *,
    batch: bool = False,
    options: ConsumerOptions = QUICK,
    meanwhile: Callable[[AsyncPushConsumer], Awaitable[None]] | None = None,
) -> None:
    """Consume topic `orders` from the beginning until a condition holds, and close.

    `meanwhile` runs first, on the loop of the consumer.
    """
    listeners: dict[str, Any] = {"batch_listener" if batch else "listener": listener}

    if face is PushConsumer:
        with PushConsumer(
            "group", fake.namesrv, topic="orders", from_where=FromWhere.FIRST, options=options, **listeners
        ) as threaded:
            if meanwhile is not None:
                threaded._run(meanwhile)
            until(condition)
        return

    async def main() -> None:
        async with AsyncPushConsumer(
            "group", fake.namesrv, topic="orders", from_where=FromWhere.FIRST, options=options, **listeners
        ) as consumer:
            if meanwhile is not None:
                await meanwhile(consumer)
            deadline = asyncio.get_running_loop().time() + 20
            while not condition():
                assert asyncio.get_running_loop().time() < deadline, "waited in vain"
                await asyncio.sleep(0.002)

    asyncio.run(main())
