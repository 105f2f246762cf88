"""Both push consumers, driven alike: one in a thread, one on a loop of its own; the cluster in another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dledger.client import AsyncPushConsumer, ConsumerOptions, FromWhere, Message, Producer, PushConsumer
from tests.client.fake_cluster import FakeCluster

QUICK = ConsumerOptions(
    concurrency=4,
    rebalance_retry_s=0.01,
    local_retry_first_s=0.01,
    send_back_retry_s=0.01,
    commit_s=0.02,
    close_timeout_s=2.0,
)
FACES = (PushConsumer, AsyncPushConsumer)


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
) -> None:
    """Consume topic `orders` from the beginning until a condition holds, and close."""
    listeners: dict[str, Any] = {"batch_listener" if batch else "listener": listener}

    if face is PushConsumer:
        with PushConsumer(
            "group", fake.namesrv, topic="orders", from_where=FromWhere.FIRST, options=options, **listeners
        ):
            until(condition)
        return

    async def main() -> None:
        async with AsyncPushConsumer(
            "group", fake.namesrv, topic="orders", from_where=FromWhere.FIRST, options=options, **listeners
        ):
            deadline = asyncio.get_running_loop().time() + 20
            while not condition():
                assert asyncio.get_running_loop().time() < deadline, "waited in vain"
                await asyncio.sleep(0.002)

    asyncio.run(main())
