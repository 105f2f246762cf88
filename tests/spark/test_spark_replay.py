"""Replaying an archive into a topic, over the client protocol, and a look at rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.runtime.loops import LoopThread
from tests.audit.store_builder import Log, flip, write_store
from tests.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.spark
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def log() -> Log:
    log = Log()
    log.open_term(1)
    for number in range(700):
        properties = (
            f"UNIQ_KEY\x01ID{number:04d}\x02KEYS\x01k{number}\x02TAGS\x01A\x02color\x01red\x02DELAY\x013\x02"
        )
        log.message(
            ("orders", "clicks")[number % 7 == 0],
            b"body %d" % number,
            queue_id=number % 3,
            flag=number % 5,
            properties=properties,
            store_timestamp=START_MS + number * 1000,
        )
    return log


@pytest.fixture
def store(log: Log, tmp_path: Path) -> Path:
    return write_store(log, tmp_path / "n0")


@pytest.fixture
def target() -> Iterator[FakeCluster]:
    """A NameServer and brokers on a thread of their own: Spark's tasks are other processes."""
    thread = LoopThread("fake cluster")
    cluster = FakeCluster()
    thread.run(cluster.__aenter__())
    yield cluster
    thread.run(cluster.__aexit__())
    thread.close()


def run(spark: Any, target: FakeCluster, store: Path, **settings: Any) -> Any:
    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.replay import replay

    options = settings.pop("options", {})
    return replay(spark, LogSource(stores=(str(store),), options=options), target.namesrv, **settings)


@pytest.mark.smoke
def test_messages_arrive_in_the_order_of_their_queues(
    spark: Any, target: FakeCluster, log: Log, store: Path
) -> None:
    result = run(spark, target, store, to_topic="again", options={"subscribe": "orders"}, create_queues=3)
    stored = target.stored("again")
    assert result.messages == len(stored) == 600
    for queue in range(3):
        bodies = [int(m.body.split()[1]) for m in stored if m.queue_id == queue]
        assert bodies == [n for n in range(700) if n % 7 and n % 3 == queue]
    one = next(message for message in stored if message.body == b"body 8")
    assert one.properties["KEYS"] == "k8" and one.properties["TAGS"] == "A"
    assert one.properties["color"] == "red"
    assert one.properties["REPLAY_UNIQ_KEY"] == "ID0008" != one.properties["UNIQ_KEY"]
    assert one.properties["REPLAY_ORIGIN"].endswith("/orders/2/2")
    assert "DELAY" not in one.properties
    assert "\n".join(result.lines()).endswith("replay: 600 messages sent and acknowledged")


def test_topics_keep_their_names_and_times_choose(spark: Any, target: FakeCluster, store: Path) -> None:
    result = run(
        spark,
        target,
        store,
        stored_from_ms=START_MS + 70_000,
        stored_before_ms=START_MS + 140_000,
        create_queues=2,
    )
    assert {one.topic: one.messages for one in result.sent if one.queue == 0}
    assert len(target.stored("clicks")) == 10 and len(target.stored("orders")) == 60


def test_a_target_that_refuses_is_told(spark: Any, target: FakeCluster, store: Path) -> None:
    from dledger.spark.jobs.errors import JobError

    target.default_queues = 0
    with pytest.raises(JobError, match="nowhere"):
        run(spark, target, store, to_topic="nowhere")


def test_what_is_rotten_is_not_sent(spark: Any, target: FakeCluster, log: Log, store: Path) -> None:
    from pyspark.errors import PySparkException

    flip(store, log.entries[350], 130)
    with pytest.raises(PySparkException, match="index 350"):
        run(spark, target, store, to_topic="again", create_queues=3)


def test_rows_can_be_looked_at(spark: Any, store: Path) -> None:
    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.reading import read_rows

    source = LogSource(stores=(str(store),), options={"subscribe": "orders"})
    rows = read_rows(spark, source, where="offset < 3 and partition = 1", order_by="offset", limit=2)
    assert len(rows.rows) == 2 and rows.more
    told = rows.as_json()["rows"]
    assert isinstance(told, list) and told[0]["value"] == "body 1" and told[0]["tags"] == "A"
    text = list(rows.lines())
    assert "body 1" in text[1] and text[-1] == "2 rows, and there are more (--limit)"


def test_bytes_are_shown_as_text_or_hexadecimal() -> None:
    from dledger.spark.jobs.reading import plain

    assert plain(b"caf\xc3\xa9") == "café"
    assert plain(b"\xff\x00") == {"hex": "ff00"}
    assert plain({"a": b"x"}) == {"a": "x"}
