"""Live brokers whose retention took what a query wanted: told, or skipped by a stream that may."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import Message, MessageQueue, Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
TOPIC = "Kept"
QUEUES = 2
BEFORE = 20
"""Messages of each queue that the stream reads before retention."""
BODY_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=26000), segment_size=9 * MIB)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("kept") / "group", spec)
    cluster.start()
    cluster.create_topic(TOPIC, QUEUES)
    yield cluster
    cluster.stop()


def send(group: LocalCluster, count: int) -> None:
    """So many more messages to each queue, of bytes that no compression makes smaller."""
    rng = random.Random(count)
    with Producer("PG_kept", group.namesrv_addr) as producer:
        for number in range(count * QUEUES):
            queue = MessageQueue(TOPIC, group.spec.group, number % QUEUES)
            producer.send(Message(TOPIC, rng.randbytes(BODY_BYTES)), queue)


def delete_before(group: LocalCluster, index: int) -> None:
    peers = group.broker_properties(group.spec.node_ids[0])["dLegerPeers"]
    command = [sys.executable, "-m", "dledger", "delete-before", str(index), "--peers", peers]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)


def read(spark: Any, group: LocalCluster, **options: str) -> Any:
    options = {"servers": group.namesrv_addr, "topic": TOPIC, "includeValue": "false", **options}
    return spark.read.format("dledger").options(**options).load()


def bounds(spark: Any, group: LocalCluster) -> dict[int, range]:
    """Offsets that are there, by queue."""
    frame = spark.read.format("dledger").options(servers=group.namesrv_addr, view="queues").load()
    rows = [row for row in frame.collect() if row.topic == TOPIC]
    return {row.partition: range(row.minOffset, row.maxOffset) for row in rows}


def test_retention_is_told_or_skipped(spark: Any, group: LocalCluster, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    rows: list[tuple[int, int]] = []

    def run_stream(fail: str) -> None:
        """All that is there, from where the last run ended."""
        options = {"servers": group.namesrv_addr, "subscribe": TOPIC, "startingOffsets": "earliest"}
        stream = spark.readStream.format("dledger").options(**options, failOnDataLoss=fail).load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "check"))
        writer = writer.foreachBatch(
            lambda frame, number: rows.extend((row.partition, row.offset) for row in frame.collect())
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    send(group, BEFORE)
    run_stream("true")
    assert sorted(rows) == [(queue, offset) for queue in range(QUEUES) for offset in range(BEFORE)]
    send(group, 200)
    group.wait_caught_up()
    delete_before(group, group.committed_index(group.wait_leader()) - 10)
    deadline = time.monotonic() + 30
    while min(there.start for there in bounds(spark, group).values()) <= BEFORE:
        assert time.monotonic() < deadline, "retention took nothing"
        time.sleep(0.2)
    left = bounds(spark, group)
    expected = [(queue, offset) for queue, there in sorted(left.items()) for offset in there]
    assert 0 < len(expected) < 200 * QUEUES

    rows.clear()
    lost = rf"{TOPIC}/\d: offset {BEFORE} is outside of the stored range \d+ to {BEFORE + 200}: .*"
    with pytest.raises(PySparkException, match=lost + "failOnDataLoss=false continues"):
        run_stream("true")
    assert rows == []
    run_stream("false")
    assert sorted(rows) == expected

    found = read(spark, group).collect()
    assert sorted((row.partition, row.offset) for row in found) == expected
    for first in (0, left[1].start - 1):
        with pytest.raises(
            PySparkException, match=rf"{TOPIC}/1: offset {first} is outside of the stored range"
        ):
            read(spark, group, startingOffsets=f'{{"{TOPIC}/1": {first}}}').collect()
