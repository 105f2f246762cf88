"""Streams over store directories: every committed message once, in bounded batches, across restarts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.audit.store_builder import Log, sample_log, write_group, write_store

pytestmark = pytest.mark.spark

MESSAGES = 1500


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(MESSAGES)


class Growing:
    """A store that is written again with more of the log, as a live node grows."""

    def __init__(self, log: Log, directory: Path, node: str = "n0") -> None:
        self.log = log
        self.path = directory / node
        self._node = node

    def commit(self, index: int) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)
        write_store(self.log, self.path, self._node, committed=index)


class Query:
    """A stream into memory; `run` lets it take all there is, as after a start or restart."""

    def __init__(self, spark: Any, directory: Path, path: object, **options: str) -> None:
        self._spark = spark
        self._directory = directory
        self._options = {"path": str(path), "startingOffsets": "earliest", **options}
        self.batches: list[int] = []
        self.rows: list[tuple[str, int, int]] = []
        self.frames: list[Any] = []

    def run(self) -> None:
        stream = self._spark.readStream.format("dledger").options(**self._options).load()

        def take(frame: Any, number: int) -> None:
            rows = frame.collect()
            self.frames += rows
            self.batches.append(len(rows))
            self.rows += [(row.topic, row.partition, row.offset) for row in rows]

        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def batch(spark: Any, path: Path, **options: str) -> list[tuple[str, int, int]]:
    rows = spark.read.format("dledger").option("path", str(path)).options(**options).load().collect()
    return sorted((row.topic, row.partition, row.offset) for row in rows)


@pytest.mark.parametrize("offset_type", [pytest.param("queue", marks=pytest.mark.smoke), "log"])
def test_every_message_comes_once_across_restarts(
    spark: Any, log: Log, tmp_path: Path, offset_type: str
) -> None:
    store = Growing(log, tmp_path)
    query = Query(spark, tmp_path, store.path, offsetType=offset_type)
    last = len(log.entries) - 1
    seen = 0
    for index in (200, 200, 700, last - 3, last):
        store.commit(index)
        query.run()
        assert sorted(query.rows) == batch(spark, store.path), f"up to entry {index}"
        assert (len(query.rows) > seen) == (index not in (seen, 200) or seen == 0)
        seen = len(query.rows)


def test_messages_are_whole(spark: Any, log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    query = Query(spark, tmp_path, store, includeHeaders="true", minPartitions="3")
    query.run()
    frame = spark.read.format("dledger").option("path", str(store)).option("includeHeaders", "true").load()
    assert sorted(map(str, query.frames)) == sorted(map(str, frame.collect()))


def need_read_limits() -> None:
    from dledger.spark.versions import HAS_READ_LIMITS

    if not HAS_READ_LIMITS:
        pytest.skip("Spark limits batches since 4.2; before, the options are refused")


def test_batches_are_bounded_in_messages(spark: Any, log: Log, tmp_path: Path) -> None:
    need_read_limits()
    store = write_store(log, tmp_path / "n0")
    query = Query(spark, tmp_path, store, maxOffsetsPerTrigger="400")
    query.run()
    total = len(batch(spark, store))
    assert sorted(query.rows) == batch(spark, store)
    assert query.batches == [400] * (total // 400) + ([total % 400] if total % 400 else [])


def test_batches_are_bounded_in_bytes(spark: Any, log: Log, tmp_path: Path) -> None:
    need_read_limits()
    store = write_store(log, tmp_path / "n0")
    query = Query(spark, tmp_path, store, maxBytesPerTrigger="60000", offsetType="log")
    query.run()
    assert sorted(query.rows) == batch(spark, store)
    mean = log.pos / len(log.entries)
    assert len(query.batches) >= 4 and max(query.batches) * mean < 2 * 60000


def test_topics_and_tags_are_chosen(spark: Any, log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    query = Query(spark, tmp_path, store, subscribe="orders", tags="A || B")
    query.run()
    assert sorted(query.rows) == batch(spark, store, subscribe="orders", tags="A || B")
    assert {row.tags for row in query.frames} == {"A", "B"}


def test_a_stream_begins_where_it_is_told(spark: Any, log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    every = batch(spark, store)
    start = '{"orders": {"0": 5, "1": -1}}'
    query = Query(spark, tmp_path, store, startingOffsets=start)
    query.run()
    wanted = [
        row for row in every if row[:2] != ("orders", 1) and not (row[:2] == ("orders", 0) and row[2] < 5)
    ]
    assert sorted(query.rows) == wanted


def test_a_stream_begins_at_a_time(spark: Any, log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    at = str(1_700_000_000_000 + 1000)
    query = Query(spark, tmp_path, store, startingTimestamp=at)
    del query._options["startingOffsets"]
    query.run()
    assert sorted(query.rows) == batch(spark, store, startingTimestamp=at)
    assert 0 < len(query.rows) < len(batch(spark, store))


def test_the_replica_that_knows_most_is_read(spark: Any, log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path, 2)
    last = len(log.entries) - 1
    behind, ahead = Growing(log, tmp_path, "n0"), Growing(log, tmp_path, "n1")
    behind.commit(300)
    ahead.commit(900)
    query = Query(spark, tmp_path, ",".join(map(str, stores)))
    query.run()
    behind.commit(last)
    query.run()
    ahead.commit(last)
    query.run()
    assert sorted(query.rows) == batch(spark, stores[0])


def test_retention_is_told_or_skipped(spark: Any, log: Log, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    store = Growing(log, tmp_path)
    store.commit(200)
    query = Query(spark, tmp_path, store.path)
    query.run()
    before = len(query.rows)
    store.commit(len(log.entries) - 1)
    for start in sorted(log.segments)[:-1]:
        (store.path / "dledger-n0" / "data" / f"{start:020d}").unlink()
    with pytest.raises(PySparkException, match=r"failOnDataLoss=false continues"):
        query.run()
    query._options["failOnDataLoss"] = "false"
    query.run()
    assert sorted(query.rows[before:]) == batch(spark, store.path)


def test_a_damaged_consume_queue_is_never_believed(spark: Any, log: Log, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    store = write_store(log, tmp_path / "n0")
    path = store / "consumequeue" / "orders" / "1" / f"{0:020d}"
    units = path.read_bytes()
    path.write_bytes(units[:100] + units[120:140] + units[100:120] + units[140:])
    with pytest.raises(PySparkException, match="points at something else"):
        Query(spark, tmp_path, store).run()
    other = Query(spark, tmp_path / "b", store, offsetType="log")
    other.run()
    assert sorted(other.rows) == batch(spark, store), "the log does without"


@pytest.mark.spark
def test_what_is_wrong_with_a_stream_is_what_the_user_sees_last(spark: Any, log: Log, tmp_path: Path) -> None:
    """Seen before: an UnboundLocalError of Spark. `load()` does not know that it makes a stream."""
    store = write_store(log, tmp_path / "n0")
    for options, text in (
        ({"view": "queues"}, "view queues cannot be streamed: only messages can"),
        ({"endingOffsets": "latest"}, "option endingOffsets has no effect on a stream, only on a batch"),
    ):
        frame = spark.readStream.format("dledger").options(path=str(store), **options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start()
        with pytest.raises(Exception, match="terminated with exception") as caught:
            query.awaitTermination()
        last = [line for line in str(caught.value).partition("SQLSTATE")[0].splitlines() if line.strip()][-1]
        assert text in last, str(caught.value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "quues"}, "'quues' is not one of .*did you mean 'queues'"),
        ({"view": "queues", "tags": "A"}, "option tags has no effect on view queues, only on messages"),
        ({"view": "entries", "corruptRecords": "skip"}, "'skip' is not one of fail, include"),
        (
            {"groupIdPrefix": "etl"},
            "option groupIdPrefix: it is an option of Kafka's source: no consumer group",
        ),
    ],
)
def test_wrong_options_are_an_error_of_load(spark: Any, options: dict[str, str], text: str) -> None:
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match=text):
            reader.format("dledger").options(path="/nowhere", **options).load()
