"""All brokers die under a program that delivers: nothing is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
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
from dledger.local.cluster import LocalCluster, wait_for

MESSAGES = 600
KEYS = 7


def test_all_brokers_away_for_a_while(new_group: Callable[..., LocalCluster], tmp_path: Path) -> None:
    group = new_group()
    group.create_topic("Away")
    spool = SpoolOptions(str(tmp_path / "away.spool"), retry_s=0.1)
    options = ProducerOptions(timeout_s=1.0, attempt_timeout_s=0.5)

    async def main() -> list[SendResult | Spooled]:
        async with AsyncSpoolingProducer("away", group.namesrv_addr, options, spool=spool) as producer:

            async def send(key: int) -> list[SendResult | Spooled]:
                return [
                    await producer.deliver(Message("Away", b"%d %d" % (key, number)), str(key))
                    for number in range(MESSAGES // KEYS)
                ]

            sends = [asyncio.create_task(send(key)) for key in range(KEYS)]
            await asyncio.sleep(0.1)
            for node in group.spec.node_ids:
                await asyncio.to_thread(group.kill, node)
            results = [result for some in await asyncio.gather(*sends) for result in some]
            assert producer.spooled
            await asyncio.to_thread(group.start)
            assert await producer.delivered(60)
            return results

    results = asyncio.run(main())
    kept = sum(isinstance(result, Spooled) for result in results)
    assert 0 < kept < len(results), "the brokers died in the midst of it"
    found: list[tuple[int, int]] = []
    with PullConsumer("reader", group.namesrv_addr) as consumer:
        consumer.assign(consumer.queues("Away"), start=FromWhere.FIRST)

        def all_there() -> bool:
            for message in consumer.poll(timeout_s=0.2):
                key, number = map(int, message.body.split())
                found.append((key, number))
            return len(found) >= len(results)

        wait_for(all_there, 20, "all messages")
        assert not consumer.poll(timeout_s=1.0)
    for key in range(KEYS):
        assert [number for one, number in found if one == key] == list(range(MESSAGES // KEYS))
