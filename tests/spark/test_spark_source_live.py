"""The source over a live group: batch, stream, and a stream across the loss of its leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client.message import Message, MessageQueue
from dledger.client.producing.sync_producer import Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

pytestmark = pytest.mark.spark

TOPIC = "Orders"
QUEUES = 4
MESSAGES = 600


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=26000), segment_size=16 * MIB)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("live") / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def sent(group: LocalCluster) -> dict[tuple[str, int, int], bytes]:
    """Messages in the topic, by place."""
    group.create_topic(TOPIC, QUEUES)
    found = {}
    with Producer("PG_source", group.namesrv_addr) as producer:
        for number in range(MESSAGES):
            body = b"order %d " % number + (b"x" * 6000 if number % 50 == 0 else b"")
            result = producer.send(Message(TOPIC, body, tags="AB"[number % 2], keys=f"k{number}"))
            found[TOPIC, result.queue.queue_id, result.queue_offset] = body
    return found


def read(spark: Any, group: LocalCluster, **options: str) -> Any:
    return spark.read.format("dledger").option("servers", group.namesrv_addr).options(**options).load()


def places(rows: list[Any]) -> dict[tuple[str, int, int], bytes]:
    found = {(row.topic, row.partition, row.offset): bytes(row.value) for row in rows}
    assert len(found) == len(rows), "a message came twice"
    return found


@pytest.mark.smoke
def test_a_batch_reads_everything_once(spark: Any, group: LocalCluster, sent: dict[Any, bytes]) -> None:
    rows = read(spark, group, topic=TOPIC, includeHeaders="true", includeGroup="true").collect()
    assert places(rows) == sent, "compressed bodies, too"
    row = next(row for row in rows if row.key == "k7")
    assert (row.tags, row.headers["KEYS"], row.group) == ("B", "k7", group.spec.group)
    assert row.logIndex is None and row.storeTimestamp >= row.timestamp


def test_all_topics_are_those_of_users(spark: Any, group: LocalCluster, sent: dict[Any, bytes]) -> None:
    assert places(read(spark, group).collect()) == sent
    queues = read(spark, group, view="queues").collect()
    ends = {row.partition: (row.minOffset, row.maxOffset) for row in queues if row.topic == TOPIC}
    counts = [sum(queue == number for _, queue, _ in sent) for number in range(QUEUES)]
    assert ends == {number: (0, count) for number, count in enumerate(counts)}
    assert not [row.topic for row in queues if row.topic in ("TBW102", "SELF_TEST_TOPIC", group.spec.cluster)]


@pytest.mark.smoke
def test_offsets_tags_and_times_are_chosen(spark: Any, group: LocalCluster, sent: dict[Any, bytes]) -> None:
    tagged = read(spark, group, topic=TOPIC, tags="A", pullBatchSize="7").collect()
    assert places(tagged) == {at: body for at, body in sent.items() if int(body.split()[1]) % 2 == 0}
    part = read(
        spark,
        group,
        assign=f'{{"{TOPIC}": [1, 2]}}',
        startingOffsets=f'{{"{TOPIC}": {{"1": 5}}}}',
        endingOffsets=f'{{"{TOPIC}": {{"1": 9, "2": -1}}}}',
    ).collect()
    assert places(part) == {
        at: body for at, body in sent.items() if at[1] == 2 or (at[1] == 1 and 5 <= at[2] < 9)
    }
    moment = sorted(row.storeTimestamp for row in read(spark, group, topic=TOPIC).collect())[MESSAGES // 2]
    cut = str(int(moment.timestamp() * 1000))
    late = read(spark, group, topic=TOPIC, startingTimestamp=cut).collect()
    early = read(spark, group, topic=TOPIC, endingTimestamp=cut).collect()
    assert places(late + early) == sent and late and early


def test_wrong_questions_are_answered_clearly(
    spark: Any, group: LocalCluster, sent: dict[Any, bytes]
) -> None:
    from pyspark.errors import PySparkException

    for options, text in (
        ({"topic": "NoSuchTopic"}, "no broker serves the topic 'NoSuchTopic'"),
        ({"topic": TOPIC, "startingOffsets": f'{{"{TOPIC}/77": 1}}'}, f"no queue {TOPIC}/77"),
        ({"topic": TOPIC, "endingOffsets": f'{{"{TOPIC}/0": 100000}}'}, "outside of the stored range"),
    ):
        with pytest.raises(PySparkException, match=text):
            read(spark, group, **options).collect()
    with pytest.raises(PySparkException, match="no NameServer answers"):
        spark.read.format("dledger").options(servers="127.0.0.1:1", topic=TOPIC).load().collect()


class Sender:
    """Sends numbered messages until stopped, in a thread; what was acknowledged."""

    def __init__(self, group: LocalCluster, topic: str) -> None:
        self.acknowledged: dict[tuple[str, int, int], bytes] = {}
        self._group = group
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + 60
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, "sending does not go on"
            time.sleep(0.01)

    def _run(self) -> None:
        number = 0
        with Producer("PG_stream", self._group.namesrv_addr) as producer:
            while not self._stop.is_set():
                queue = MessageQueue(self._topic, self._group.spec.group, number % QUEUES)
                body = b"%d" % number
                result = producer.send(Message(self._topic, body), queue)
                self.acknowledged[self._topic, result.queue.queue_id, result.queue_offset] = body
                number += 1


def test_a_stream_loses_and_repeats_nothing_across_a_leader_kill(
    spark: Any, group: LocalCluster, tmp_path: Path
) -> None:
    topic = "Stream"
    group.create_topic(topic, QUEUES)
    batches: dict[int, dict[tuple[str, int, int], bytes]] = {}

    def take(frame: Any, number: int) -> None:
        """A batch that was under way at a stop comes again under its number: it must be the same one."""
        found = places(frame.collect())
        assert batches.setdefault(number, found) == found

    def start(**options: str) -> Any:
        stream = spark.readStream.format("dledger").option("servers", group.namesrv_addr)
        stream = stream.options(subscribe=topic, startingOffsets="earliest", **options).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "check"))
        return writer.trigger(processingTime="100 milliseconds").start()

    def wait_for(count: int, query: Any) -> None:
        deadline = time.monotonic() + 60
        while (come := sum(map(len, list(batches.values())))) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{come} rows of {count}"
            time.sleep(0.05)

    with Sender(group, topic) as sender:
        query = start(maxOffsetsPerTrigger="500")
        sender.wait(100)
        wait_for(50, query)
        for _ in range(2):
            killed = group.kill_leader()
            sender.wait(100)
            wait_for(len(sender.acknowledged), query)
            group.start_node(killed.node)
            group.wait_caught_up()
        query.stop()  # in the middle of the traffic
        query.awaitTermination()
        sender.wait(100)
        query = start()
        sender.wait(100)
    wait_for(len(sender.acknowledged), query)
    time.sleep(0.5)
    query.stop()
    query.awaitTermination()
    every = [place for found in batches.values() for place in found]
    assert len(every) == len(dict.fromkeys(every)), "a message came twice"
    read_bodies = {at: body for found in batches.values() for at, body in found.items()}
    assert {at: read_bodies.get(at) for at in sender.acknowledged} == sender.acknowledged
    # What is there beside it was sent again, as its outcome was unknown (safety.md S24).
    assert {body for at, body in read_bodies.items() if at not in sender.acknowledged} <= {
        *sender.acknowledged.values()
    }
    for queue in range(QUEUES):
        offsets = sorted(offset for _, number, offset in read_bodies if number == queue)
        assert offsets == list(range(len(offsets))), "a gap"
