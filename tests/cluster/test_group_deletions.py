"""Topics deleted and made again on a real group, under load, while leaders are killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger import AsyncProducer, ClientError, FromWhere, Message, PullConsumer
from dledger.local.cluster import LocalCluster, wait_for
from tests.audit.report_kit import report_of

TOGETHER = 12
"""Topics at once."""
MESSAGES = 5
KILL_EVERY_S = 6.0


@pytest.mark.parametrize(("topics", "rounds"), [(1000, 3)])
def test_nothing_of_the_old_is_in_the_new(
    new_group: Callable[..., LocalCluster], topics: int, rounds: int
) -> None:
    """Nor any file, and no descriptors."""
    group = new_group(broker={"clientExpiryMs": "20000"})
    before = descriptors(group)
    memory = resident(group)
    doubtful, kills = asyncio.run(churn(group, topics, rounds))
    print(
        f"{topics} topics deleted and made again {rounds - 1} times, {kills} leaders killed;"
        f" {len(doubtful)} left out, as a lost request may still be carried out"
    )
    assert len(doubtful) < topics / 2
    with PullConsumer("readers", group.namesrv_addr) as consumer:
        for number in range(0, topics, 37):
            if f"Churn{number}" not in doubtful:
                last = [b"%d %d %d" % (number, rounds - 1, one) for one in range(MESSAGES)]
                assert read(consumer, f"Churn{number}") == last
    audited(group)
    asyncio.run(remove(group, topics))
    for node in group.spec.node_ids:
        no_files(Path(group.store(node)) / "consumequeue")
    after = descriptors(group)
    print(f"open files before {before}, after {after}; resident MiB before {memory}, after {resident(group)}")
    assert all(after[node] <= before[node] + 40 for node in after), (before, after)


def read(consumer: PullConsumer, topic: str) -> list[bytes]:
    """What is in a topic, each once."""
    consumer.assign(consumer.queues(topic), start=FromWhere.FIRST)
    bodies: list[bytes] = []

    def all_there() -> bool | None:
        bodies.extend(message.body for message in consumer.poll(timeout_s=0.2))
        return len(dict.fromkeys(bodies)) >= MESSAGES or None

    wait_for(all_there, 20, lambda: f"{topic} has {bodies}")
    return sorted(dict.fromkeys(bodies))


def no_files(root: Path) -> None:
    """Until there are no queues of deleted topics."""
    wait_for(lambda: not list(root.glob("Churn*")) or None, 60, lambda: f"{list(root.glob('Churn*'))}")


def audited(group: LocalCluster) -> None:
    """No replica's files differ from its log, though the log holds messages of topics that are gone."""
    group.stop()  # each writes its state: until then an audit may not know of the last deletions
    stores = (str(group.store(node)) for node in group.spec.node_ids)
    code, report = report_of("spark", "audit", "--engine", "local", *stores)
    group.start()
    found = [one for one in report["findings"] if one["severity"] != "info"]
    assert (code, found) == (0, []), found


async def churn(group: LocalCluster, topics: int, rounds: int) -> tuple[dict[str, None], int]:
    """Topics in doubt, and how many leaders were killed."""
    doubtful: dict[str, None] = {}
    ended = asyncio.Event()
    kills = 0

    async def kill() -> None:
        nonlocal kills
        while not ended.is_set():
            try:
                async with asyncio.timeout(KILL_EVERY_S):
                    await ended.wait()
            except TimeoutError:
                killed = await asyncio.to_thread(group.kill_leader)
                kills += 1
                await asyncio.to_thread(group.restart_node, killed.node)

    async def one(producer: AsyncProducer, number: int) -> None:
        name = f"Churn{number}"
        for turn in range(rounds):
            lost = producer._unanswered_count
            try:
                await producer.create_topic(name, 2)
                resent = producer._resent_count
                bodies = [b"%d %d %d" % (number, turn, one) for one in range(MESSAGES)]
                found = await asyncio.gather(*(producer.send(Message(name, body)) for body in bodies))
                if turn < rounds - 1:
                    await producer.delete_topic(name)
            except ClientError:
                doubtful[name] = None
                return
            if producer._unanswered_count != lost:
                doubtful[name] = None
                return
            first = min(one.queue_offset for one in found)
            assert first == 0 or producer._resent_count != resent, (name, turn, found)

    async with AsyncProducer("PG_churn", group.namesrv_addr) as producer:
        killing = asyncio.create_task(kill())
        waiting = iter(range(topics))

        async def some() -> None:
            for number in waiting:
                await one(producer, number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(TOGETHER):
                tasks.create_task(some())
        ended.set()
        await killing
    return doubtful, kills


async def remove(group: LocalCluster, topics: int) -> None:
    async with AsyncProducer("PG_churn", group.namesrv_addr) as producer:
        for number in range(topics):
            await producer.delete_topic(f"Churn{number}")


def descriptors(group: LocalCluster) -> dict[str, int]:
    """Open files of each broker."""
    return {node: len(os.listdir(f"/proc/{group.pid(node)}/fd")) for node in group.spec.node_ids}


def resident(group: LocalCluster) -> dict[str, int]:
    """Memory of each broker, in MiB."""
    sizes = {}
    for node in group.spec.node_ids:
        text = Path(f"/proc/{group.pid(node)}/status").read_text()
        sizes[node] = int(text.split("VmRSS:")[1].split()[0]) // 1024
    return sizes
