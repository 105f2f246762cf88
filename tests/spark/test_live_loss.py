"""`failOnDataLoss` over live brokers: what retention takes between plan and read. Without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.client import Message, MessageQueue, Producer
from dledger.spark.live_queues import LiveMessagesView, LiveQueues
from dledger.spark.offsets import DataLost
from dledger.spark.options import parse
from dledger.spark.streaming import StreamReader
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.client.test_sync import running

TOPIC = "orders"
MESSAGES = 10
START = {f"{TOPIC}/0": 0, f"{TOPIC}/1": 0}
END = {f"{TOPIC}/0": MESSAGES, f"{TOPIC}/1": MESSAGES}


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two queues of ten messages each."""
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for number in range(2 * MESSAGES):
                producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, GROUP, number % 2))
        yield cluster


def stream(fake: FakeCluster, fail: str) -> StreamReader:
    options = {"servers": fake.namesrv, "subscribe": TOPIC, "failOnDataLoss": fail, "pullBatchSize": "3"}
    parsed = parse(options, "stream")
    return StreamReader(parsed, LiveQueues(parsed))


def rows(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[int, int]]:
    """Queue ids and offsets of a micro-batch."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [
        at
        for batch in batches
        for at in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]


def test_a_batch_says_what_was_gone_when_it_came_to_read(fake: FakeCluster) -> None:
    view = LiveMessagesView(parse({"servers": fake.namesrv, "subscribe": TOPIC}, "batch"))
    parts = view.plan()
    fake.lowest[TOPIC, 0] = 4
    with pytest.raises(DataLost, match=rf"'{TOPIC}'.*queue_id=0.*offset 0 is not there, .* 4 to 10"):
        for part in parts:
            list(view.read(part))
    batches = [batch for part in view.plan() for batch in view.read(part)]
    found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert sorted(found) == sorted([*range(4, 10), *range(10)]), "planned anew: what is there"


def test_a_stream_that_goes_on_behind_a_gap_fails_unless_it_may(fake: FakeCluster) -> None:
    fake.lowest[TOPIC, 0] = 4
    failing = stream(fake, "true")
    text = rf"{TOPIC}/0: offset 0 is outside of what is there, 4 to 10: .*failOnDataLoss=false goes on"
    with pytest.raises(DataLost, match=text):
        failing.latestOffset(START, failing.getDefaultReadLimit())
    with pytest.raises(DataLost, match=text):
        failing.partitions(START, END)
    failing.stop()
    going_on = stream(fake, "false")
    assert going_on.latestOffset(START, going_on.getDefaultReadLimit()) == END
    assert sorted(rows(going_on, START, END)) == [
        *((0, offset) for offset in range(4, 10)),
        *((1, offset) for offset in range(10)),
    ]
    going_on.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_whose_messages_go_between_plan_and_read(fake: FakeCluster, fail: str) -> None:
    reader = stream(fake, fail)
    parts = reader.partitions(START, END)
    fake.lowest[TOPIC, 1] = 9
    found: list[int] = []
    try:
        if fail == "true":
            with pytest.raises(DataLost, match=r"queue_id=1.*offset 0 is not there, the broker has 9 to 10"):
                for part in parts:
                    list(reader.read(part))
        else:
            for part in parts:
                for batch in reader.read(part):
                    found += batch["offset"].to_pylist()
            assert sorted(found) == sorted([*range(10), 9])
    finally:
        reader.stop()


def test_a_queue_of_which_nothing_is_left(fake: FakeCluster) -> None:
    fake.lowest[TOPIC, 0] = MESSAGES
    reader = stream(fake, "false")
    assert rows(reader, START, END) == [(1, offset) for offset in range(10)]
    reader.stop()
