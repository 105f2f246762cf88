"""`failOnDataLoss` over live brokers: what retention takes between plan and read. Without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.client import Message, MessageQueue, Producer
from dledger.spark.live_queues import LiveMessagesView, LiveQueues
from dledger.spark.offsets import DataLost, Encoded
from dledger.spark.options import parse
from dledger.spark.streaming import BaseReader, PlainStreamReader, StreamReader
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.client.test_sync import running

TOPIC = "orders"
MESSAGES = 10
START: Encoded = {f"{TOPIC}/0": 0, f"{TOPIC}/1": 0}
END: Encoded = {f"{TOPIC}/0": MESSAGES, f"{TOPIC}/1": MESSAGES}


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two queues of ten messages each."""
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for number in range(2 * MESSAGES):
                producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, GROUP, number % 2))
        yield cluster


def stream(fake: FakeCluster, fail: str, kind: type[BaseReader] = StreamReader) -> BaseReader:
    options = {"servers": fake.namesrv, "subscribe": TOPIC, "failOnDataLoss": fail, "pullBatchSize": "3"}
    parsed = parse(options, "stream")
    return kind(parsed, LiveQueues(parsed))


def rows(reader: BaseReader, start: Encoded, end: Encoded) -> list[tuple[int, int]]:
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
    with pytest.raises(DataLost, match=rf"'{TOPIC}'.*queue_id=0.*offset 0 does not exist; .* 4 to 10"):
        for part in parts:
            list(view.read(part))
    batches = [batch for part in view.plan() for batch in view.read(part)]
    found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert sorted(found) == sorted([*range(4, 10), *range(10)]), "planned anew: what is there"


def test_a_stream_that_goes_on_behind_a_gap_fails_unless_it_may(fake: FakeCluster) -> None:
    fake.lowest[TOPIC, 0] = 4
    failing = stream(fake, "true")
    text = rf"{TOPIC}/0: offset 0 is outside of the stored range 4 to 10: .*failOnDataLoss=false continues"
    with pytest.raises(DataLost, match=text):
        take(failing, START)
    with pytest.raises(DataLost, match=text):
        failing.partitions(START, END)
    failing.stop()
    going_on = stream(fake, "false")
    assert take(going_on, START) == {**END, TOPIC: "C.0"}
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
            with pytest.raises(
                DataLost, match=r"queue_id=1.*offset 0 does not exist; the broker has 9 to 10"
            ):
                for part in parts:
                    list(reader.read(part))
        else:
            for part in parts:
                for batch in reader.read(part):
                    found += batch["offset"].to_pylist()
            assert sorted(found) == sorted([*range(10), 9])
    finally:
        reader.stop()


def take(reader: BaseReader, start: Encoded) -> Encoded:
    """The end of the next micro-batch."""
    if isinstance(reader, StreamReader):
        return reader.latestOffset(start, reader.getDefaultReadLimit())
    assert isinstance(reader, PlainStreamReader)
    return reader.latestOffset()


def send(fake: FakeCluster, count: int) -> None:
    """Send `count` messages to each queue."""
    with Producer(group="producers", namesrv=fake.namesrv) as producer:
        for number in range(2 * count):
            producer.send(Message(TOPIC, b"y"), MessageQueue(TOPIC, GROUP, number % 2))


@pytest.mark.parametrize("count", [4, MESSAGES, 2 * MESSAGES], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("kind", [StreamReader, PlainStreamReader])
def test_a_topic_that_is_deleted_and_made_again(
    fake: FakeCluster, kind: type[BaseReader], count: int
) -> None:
    """Seen before: the stream went on at its old offsets, and read only what lay behind them."""
    first = stream(fake, "true", kind)
    read = take(first, first.initialOffset())
    assert read == {**END, TOPIC: "C.0"}
    first.stop()
    fake.make_again(TOPIC)
    send(fake, count)
    failing = stream(fake, "true", kind)
    text = (
        f"topic {TOPIC} was deleted and made again: .* the life C.0 .* now there is C.1. failOnDataLoss=false"
    )
    with pytest.raises(DataLost, match=text):
        failing.partitions(read, take(failing, read))
    failing.stop()
    going_on = stream(fake, "false", kind)
    end = take(going_on, read)
    assert end == {f"{TOPIC}/0": count, f"{TOPIC}/1": count, TOPIC: "C.1"}
    assert sorted(rows(going_on, read, end)) == [(queue, at) for queue in (0, 1) for at in range(count)]
    assert take(going_on, end) == end, "nothing comes twice"
    going_on.stop()


@pytest.mark.parametrize("kind", [StreamReader, PlainStreamReader])
def test_a_batch_of_a_life_that_ended_before_it_was_read(fake: FakeCluster, kind: type[BaseReader]) -> None:
    """As when Spark repeats the last batch of a query that was stopped."""
    reader = stream(fake, "true", kind)
    start: Encoded = {**START, TOPIC: "C.0"}
    end = take(reader, start)
    fake.make_again(TOPIC)
    send(fake, 3)
    with pytest.raises(DataLost, match="was deleted and made again"):
        reader.partitions(start, end)
    reader.stop()
    going_on = stream(fake, "false", kind)
    assert rows(going_on, start, end) == [], "what was planned is gone"
    following = take(going_on, end)
    assert sorted(rows(going_on, end, following)) == [(queue, at) for queue in (0, 1) for at in range(3)]
    going_on.stop()


def test_a_checkpoint_that_recorded_no_lives_goes_on_and_records_them(fake: FakeCluster) -> None:
    reader = stream(fake, "true")
    old: Encoded = {f"{TOPIC}/0": 4, f"{TOPIC}/1": 5}
    end = take(reader, old)
    assert end == {**END, TOPIC: "C.0"}
    assert len(rows(reader, old, end)) == 6 + 5
    reader.stop()


def test_brokers_that_report_no_lives_are_read_as_before(fake: FakeCluster) -> None:
    fake.ours = False
    reader = stream(fake, "true")
    assert reader.initialOffset() == END and take(reader, START) == END
    assert len(rows(reader, START, END)) == 2 * MESSAGES
    reader.stop()


def test_a_queue_of_which_nothing_is_left(fake: FakeCluster) -> None:
    fake.lowest[TOPIC, 0] = MESSAGES
    reader = stream(fake, "false")
    assert rows(reader, START, END) == [(1, offset) for offset in range(10)]
    reader.stop()
