"""All brokers die under a program that delivers: nothing is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from dledger import (
    AsyncSpoolingProducer,
    FromWhere,
    Message,
    ProducerOptions,
    PullConsumer,
    SendResult,
    Spooled,
    SpoolOptions,
)
from dledger.local.cluster import STOP_LIMIT_S, LocalCluster, wait_for

STORED = 100
"""Messages that brokers take before they are killed."""
KEPT = 20
"""Messages of a sender that the spool takes then."""
KEYS = 7


def test_all_brokers_away_for_a_while(new_group: Callable[..., LocalCluster], tmp_path: Path) -> None:
    group = new_group()
    group.create_topic("Away")
    spool = SpoolOptions(str(tmp_path / "away.spool"), retry_s=0.1)
    options = ProducerOptions(timeout_s=1.0, attempt_timeout_s=0.5)

    results: list[list[SendResult | Spooled]] = [[] for _ in range(KEYS)]
    """By key."""

    async def main() -> None:
        async with AsyncSpoolingProducer("away", group.namesrv_addr, options, spool=spool) as producer:
            enough = asyncio.Event()

            async def send(key: int) -> None:
                kept = 0
                while kept < KEPT:
                    number = len(results[key])
                    result = await producer.deliver(Message("Away", b"%d %d" % (key, number)), str(key))
                    results[key].append(result)
                    if sum(map(len, results)) >= STORED:
                        enough.set()
                    kept += isinstance(result, Spooled)

            sends = [asyncio.create_task(send(key)) for key in range(KEYS)]
            await enough.wait()
            for node in group.spec.node_ids:  # one after the other would be a failover first
                group.signal(node, signal.SIGKILL)
            assert await asyncio.to_thread(group.wait_down, list(group.spec.node_ids), STOP_LIMIT_S)
            await asyncio.gather(*sends)
            assert producer.spooled
            await asyncio.to_thread(group.start)
            assert await producer.delivered(60)

    asyncio.run(main())
    count = sum(map(len, results))
    found: list[tuple[int, int]] = []
    with PullConsumer("reader", group.namesrv_addr) as consumer:
        consumer.assign(consumer.queues("Away"), start=FromWhere.FIRST)

        def all_there() -> bool:
            for message in consumer.poll(timeout_s=0.2):
                key, number = map(int, message.body.split())
                found.append((key, number))
            return len(found) >= count

        wait_for(all_there, 20, "all messages")
        assert not consumer.poll(timeout_s=1.0)
    for key in range(KEYS):
        assert [number for one, number in found if one == key] == list(range(len(results[key])))
