"""Jobs against three live brokers: archive, statistics, accounts, replay; across the loss of a leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.sync_consumers import PullConsumer
from dledger.client.message import Message
from dledger.client.producing.sync_producer import Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.runtime.env import production_env

pytestmark = pytest.mark.spark

TOPIC = "Orders"
QUEUES = 4
MESSAGES = 500


class Sent:
    """What a producer sent, and the acknowledgements that it got."""

    def __init__(self, group: LocalCluster, acks: Path) -> None:
        self.group = group
        self.acks = acks
        self.bodies: list[bytes] = []

    def send(self, count: int) -> None:
        first = len(self.bodies)
        with self.acks.open("a") as file, Producer("PG_jobs", self.group.namesrv_addr) as producer:
            for number in range(first, first + count):
                body = b"order %d" % number
                result = producer.send(Message(TOPIC, body, keys=f"k{number}", tags="AB"[number % 2]))
                self.bodies.append(body)
                told = {
                    "id": result.message_id,
                    "topic": TOPIC,
                    "brokerName": result.queue.broker_name,
                    "queueId": result.queue.queue_id,
                    "queueOffset": result.queue_offset,
                }
                file.write(json.dumps(told) + "\n")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    spec = ClusterSpec(base_port=find_base_port(start=26000), segment_size=16 * MIB)
    directory = tmp_path_factory.mktemp("jobs")
    cluster = LocalCluster.create(directory / "group", spec)
    cluster.start()
    try:
        cluster.create_topic(TOPIC, QUEUES)
        made = Sent(cluster, directory / "acks.jsonl")
        made.send(MESSAGES)
        yield made
    finally:
        cluster.stop()


def live(sent: Sent) -> Any:
    from dledger.spark.jobs.log_source import LogSource

    return LogSource(servers=sent.group.namesrv_addr, options={"subscribe": TOPIC})


def test_statistics_and_accounts_of_a_live_group(spark: Any, sent: Sent, tmp_path: Path) -> None:
    from dledger.spark.jobs.accounting import account
    from dledger.spark.jobs.statistics import statistics

    (one,) = statistics(spark, live(sent)).topics
    assert (one.topic, one.messages, one.queues) == (TOPIC, len(sent.bodies), QUEUES)
    assert one.bytes == sum(map(len, sent.bodies))
    result = account(spark, live(sent), str(sent.acks))
    assert (result.produced, result.stored, result.exit_code) == (MESSAGES, MESSAGES, 0), result.counts
    lines = sent.acks.read_text().splitlines()
    gone = tmp_path / "acks.jsonl"
    gone.write_text("\n".join([json.dumps({**json.loads(lines[7]), "id": "GONE"}), *lines[8:]]))
    assert account(spark, live(sent), str(gone)).counts.get("LOST") == 1


def test_accounts_of_a_live_group_with_where_its_consumers_stand(
    spark: Any, sent: Sent, tmp_path: Path
) -> None:
    from dledger.spark.jobs.accounting import account
    from dledger.spark.jobs.consumer_offsets import offsets_of_lag
    from dledger.spark.jobs.lag_live import lag_live

    def accounted() -> Any:
        env = production_env("test")
        try:
            lag = asyncio.run(lag_live(env, sent.group.namesrv_addr, consumers=("CG_jobs",), topics=(TOPIC,)))
        finally:
            env.workers.close()
        stand = offsets_of_lag(lag)
        return account(spark, live(sent), str(sent.acks), offsets=stand, consumed=str(worked))

    worked, read = tmp_path / "worked.jsonl", []
    with PullConsumer("CG_jobs", sent.group.namesrv_addr) as consumer:
        queues = consumer.queues(TOPIC)
        expected = sum(consumer.highest(queue) for queue in queues[:2])
        consumer.assign(queues[:2], start=FromWhere.FIRST)
        while len(read) < expected:
            read += consumer.poll()
        consumer.commit()
        worked.write_text("".join(json.dumps({"id": message.message_id}) + "\n" for message in read[1:]))
        result = accounted()
        (one,) = result.consumers
        assert (one.passed, one.waiting, one.worked) == (expected, MESSAGES - expected, expected - 1)
        assert result.counts == {"UNCONSUMED": MESSAGES - expected, "SKIPPED": 1}
        assert read[0].message_id in {found.id for found in result.findings if found.code == "SKIPPED"}
        consumer.assign(queues, start=FromWhere.FIRST)
        while len(read) < MESSAGES:
            read += consumer.poll()
        consumer.commit()
        worked.write_text("".join(json.dumps({"id": message.message_id}) + "\n" for message in read))
        result = accounted()
        assert (result.exit_code, result.consumers[0].passed) == (0, MESSAGES), result.counts


def test_an_archive_goes_on_behind_a_killed_leader_and_is_replayed(
    spark: Any, sent: Sent, tmp_path: Path
) -> None:
    from dledger.runtime.files import OsFiles
    from dledger.spark.jobs.archive import archive
    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.replay import replay

    root = str(tmp_path / "archive")

    def bodies() -> list[bytes]:
        rows = spark.read.parquet(root).where(f"topic = '{TOPIC}'").select("value").collect()
        return sorted(bytes(row.value) for row in rows)

    first = archive(spark, OsFiles(), live(sent), root, batch_messages=200)
    assert (first.rows, first.exit_code) == (len(sent.bodies), 0) and first.batches == 3
    assert bodies() == sorted(sent.bodies)
    killed = sent.group.kill_leader()
    sent.send(150)
    again = archive(spark, OsFiles(), live(sent), root)
    assert (again.rows, again.exit_code) == (150, 0)
    sent.group.start_node(killed.node)
    assert archive(spark, OsFiles(), live(sent), root).rows == 0
    assert bodies() == sorted(sent.bodies)

    target = sent.group.namesrv_addr
    source = LogSource(archive=root)
    result = replay(spark, source, target, to_topic="Again", create_queues=QUEUES)
    assert result.messages == len(sent.bodies)
    frame = spark.read.format("dledger").options(
        servers=target, subscribe=f"Again,{TOPIC}", includeHeaders="true"
    )
    queues: dict[tuple[str, int], list[bytes]] = {}
    for row in sorted(frame.load().collect(), key=lambda row: row.offset):
        queues.setdefault((row.topic, row.partition), []).append(bytes(row.value))
    copies = sorted(bodies for (topic, _), bodies in queues.items() if topic == "Again")
    assert copies == sorted(bodies for (topic, _), bodies in queues.items() if topic == TOPIC)
    assert replay(spark, source, target, to_topic="Again", resume=True).messages == 0
