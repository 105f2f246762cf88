"""Lives and ids of messages of live brokers, in `dledger.read` and in streams. Without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import dledger
from dledger.client import Message, MessageQueue, Producer, TopicNotFound
from dledger.client.bulk.range_puller import RangePuller
from dledger.spark.live_queues import LiveMessagesView, LiveQueues
from dledger.spark.offsets import DataLost
from dledger.spark.option_values import BadOption
from dledger.spark.options import parse
from dledger.spark.streaming import StreamReader
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.client.test_sync import running

TOPIC = "orders"
MESSAGES = 10


def send(fake: FakeCluster, count: int) -> None:
    """Send `count` messages to each of the two queues."""
    with Producer(group="producers", namesrv=fake.namesrv) as producer:
        for number in range(2 * count):
            producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, GROUP, number % 2))


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        send(cluster, MESSAGES)
        yield cluster


def rows(fake: FakeCluster, **options: Any) -> list[dict[str, Any]]:
    table = dledger.read(servers=fake.namesrv, **{"subscribe": TOPIC, **options}).read_all()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def ids(life: str | None, count: int = MESSAGES) -> list[str | None]:
    places = [(queue, offset) for queue in range(2) for offset in range(count)]
    return [life and f"{TOPIC}:{queue}:{life}:{offset}" for queue, offset in places]


def test_messages_are_named_by_queue_life_and_offset(fake: FakeCluster) -> None:
    found = rows(fake, includeId=True, includeLife=True)
    assert sorted(row["id"] for row in found) == sorted(ids("C.0"))
    assert {row["life"] for row in found} == {"C.0"}
    table = dledger.read(servers=fake.namesrv, subscribe=TOPIC, columns=["id"])
    assert sorted(table.read_all()["id"].to_pylist()) == sorted(ids("C.0"))
    assert not {"id", "life"} & rows(fake)[0].keys()
    fake.make_again(TOPIC)
    send(fake, 3)
    assert sorted(row["id"] for row in rows(fake, includeId=True)) == sorted(ids("C.1", 3))


def test_a_stream_names_its_messages_alike(fake: FakeCluster) -> None:
    options = {
        "servers": fake.namesrv,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "includeId": "true",
    }
    parsed = parse(options, "stream")
    reader = StreamReader(parsed, LiveQueues(parsed))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    assert sorted(one for batch in batches for one in batch["id"].to_pylist()) == sorted(ids("C.0"))
    reader.stop()


def test_queues_name_the_life(fake: FakeCluster) -> None:
    fake.make_again(TOPIC)
    assert {row["life"] for row in rows(fake, view="queues", includeLife=True)} == {"C.1"}
    assert "life" not in rows(fake, view="queues")[0]


def test_brokers_that_report_no_lives_have_no_ids(fake: FakeCluster) -> None:
    fake.ours = False
    assert {(row["id"], row["life"]) for row in rows(fake, includeId=True, includeLife=True)} == {
        (None, None)
    }
    assert {row["life"] for row in rows(fake, view="queues", includeLife=True)} == {None}


@pytest.mark.parametrize("again", [True, False])
def test_no_message_gets_the_id_of_another_life(fake: FakeCluster, again: bool) -> None:
    """The topic is deleted between plan and read."""
    view = LiveMessagesView(
        parse({"servers": fake.namesrv, "subscribe": TOPIC, "includeId": "true"}, "batch")
    )
    parts = view.plan()
    fake.make_again(TOPIC)
    send(fake, MESSAGES)
    if not again:
        fake.births[TOPIC] = 0  # as it was: nothing to complain of
        assert sum(len(batch) for part in parts for batch in view.read(part)) == 2 * MESSAGES
        return
    with pytest.raises(DataLost, match=f"topic {TOPIC} was deleted while it was read: its life was C.0"):
        for part in parts:
            list(view.read(part))


@pytest.mark.parametrize("view", ["messages", "queues"])
def test_a_reader_of_an_unknown_topic_is_told_the_close_one(fake: FakeCluster, view: str) -> None:
    with pytest.raises(TopicNotFound, match="'ordrs': did you mean 'orders'") as refused:
        rows(fake, subscribe="ordrs", view=view)
    assert "create" not in str(refused.value)


def test_deleted_messages_can_only_be_read_from_files(fake: FakeCluster) -> None:
    with pytest.raises(BadOption, match="includeDeleted has no effect with servers, only with path"):
        rows(fake, includeDeleted=True)


def test_a_retry_topic_may_lack_messages_of_deleted_topics(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers leave those out. Seen before: messages `were not received`, though nothing was lost."""
    retry = "%RETRY%readers"
    fake.topics[retry] = 1
    with Producer(group="producers", namesrv=fake.namesrv) as producer:
        producer.send(Message(retry, b"x"), MessageQueue(retry, GROUP, 0))
    assert len(rows(fake, subscribe=retry)) == 1
    monkeypatch.setattr(RangePuller, "pull", lambda *_: iter(()))
    assert rows(fake, subscribe=retry) == []
    with pytest.raises(DataLost, match="were not received"):
        rows(fake)
