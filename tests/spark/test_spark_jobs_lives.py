"""Spark's jobs over stores and archives with topics that were deleted and made again."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dledger.formats.properties import UNIQ_KEY
from dledger.formats.state import offsets_op
from dledger.runtime.files import OsFiles
from dledger.spark.jobs.errors import JobError
from tests.audit.store_builder import SEGMENT_SIZE, Log, write_store
from tests.spark.test_deleted_messages import Builder

pytestmark = pytest.mark.spark
TOPIC, OTHER = "orders", "payments"
FIRST, SECOND = 30, 50
"""Messages of the two lives; the second has more, so the old offsets lie inside of it."""


class World(Builder):
    """A group whose log grows, with unique ids of messages. Its store is written again."""

    def __init__(self, root: Path) -> None:
        super().__init__(Log(segment_size=SEGMENT_SIZE))
        self.store = root / "n0"
        self.archive = root / "archive"
        self.acks: list[dict[str, Any]] = []
        self.log.open_term(1)
        self.make(OTHER)
        self.make()

    def write(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)
        write_store(self.log, self.store)

    def tell(self, count: int, topic: str = TOPIC) -> None:
        """Send messages, alternating between two queues, and keep their acknowledgements."""
        for _ in range(count):
            number = len(self.acks)
            queue, ident = number % 2, f"ID{number:06d}"
            offset = len(self.log.queues.get((topic, queue), []))
            body, properties = b"%06d" % number + bytes(200), f"{UNIQ_KEY}\x01{ident}\x02"
            self.log.message(topic, body, queue_id=queue, properties=properties)
            self.acks.append({"id": ident, "topic": topic, "queueId": queue, "queueOffset": offset})
        self.write()

    def again(self, count: int = SECOND) -> None:
        self.delete()
        self.make()
        self.tell(count)

    @property
    def lives(self) -> list[str]:
        return [f"c0.{born}" for born in self.births]

    def source(self, **options: str) -> Any:
        from dledger.spark.jobs.log_source import LogSource

        return LogSource(stores=(str(self.store),), options=options)

    def run(self, spark: Any, **options: str) -> Any:
        from dledger.spark.jobs.archive import archive

        return archive(spark, OsFiles(), self.source(**options), str(self.archive), batch_bytes=SEGMENT_SIZE)

    def run_live(self, spark: Any, **options: str) -> Any:
        """As from live brokers, by ranges of queue offsets; the rows come from a directory all the same."""
        from dledger.spark.jobs.archive import archive
        from dledger.spark.jobs.log_source import LogSource

        store = str(self.store)

        @dataclass(frozen=True)
        class AsIfLive(LogSource):
            def read(self, spark: Any, **more: str) -> Any:
                return LogSource(stores=(store,), options=self.options).read(spark, **more)

            def topics(self) -> set[str] | None:
                return LogSource(stores=(store,)).topics()

        source = AsIfLive(servers="127.0.0.1:1", options=options)
        return archive(spark, OsFiles(), source, str(self.archive), batch_messages=25)

    def rows(self, spark: Any, topic: str = TOPIC) -> list[tuple[str | None, int, int]]:
        """Life, queue and offset of what the archive has of a topic."""
        from dledger.spark.jobs.log_source import LogSource

        source = LogSource(archive=str(self.archive), options={"subscribe": topic})
        frame = source.messages(spark, value=False, headers=False)
        rows = frame.select("life", "partition", "offset").collect()
        born = {life: int(life.rpartition(".")[2]) if life else -1 for life, _, _ in rows}
        return sorted((tuple(row) for row in rows), key=lambda row: (born[row[0]], row[1:]))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.tell(FIRST)
    world.tell(6, OTHER)
    return world


def messages(life: str | None, count: int) -> list[tuple[str | None, int, int]]:
    return [(life, queue, offset) for queue in range(2) for offset in range(count // 2)]


@pytest.mark.parametrize("live", [False, True], ids=["files", "live"])
def test_an_archive_goes_on_with_the_new_life(spark: Any, world: World, live: bool) -> None:
    """Seen before, of files: `orders/0: offset 0 again`, exit code 4, for ever. Live: 0 to 14 left out."""
    run = world.run_live if live else world.run
    assert run(spark).rows == FIRST + 6
    world.tell(4)
    world.again()
    world.tell(2, OTHER)
    result = run(spark)
    assert result.exit_code == 0
    assert result.renewed == (("g0", TOPIC),)
    assert result.rows == SECOND + 2, "the four messages were deleted before they were archived"
    assert any("topic orders was deleted and made again" in line for line in result.lines())
    old, new = world.lives
    assert world.rows(spark) == messages(old, FIRST) + messages(new, SECOND)
    assert len(world.rows(spark, OTHER)) == 8
    world.tell(6)
    again = run(spark)
    assert (again.rows, again.renewed) == (6, ())
    assert world.rows(spark) == messages(old, FIRST) + messages(new, SECOND + 6)
    world.again(10)
    assert run(spark).rows == 10, "a third life, which has fewer messages"
    assert run(spark).batches == 0


@pytest.mark.parametrize("live", [False, True], ids=["files", "live"])
@pytest.mark.parametrize("again", [False, True], ids=["same life", "new life"])
def test_an_archive_of_an_older_version_goes_on(spark: Any, world: World, live: bool, again: bool) -> None:
    """It has records without lives, and files without the column."""
    import pyarrow.parquet as pq

    run = world.run_live if live else world.run
    run(spark)
    for record in (world.archive / "_archive").glob("*.json"):
        value = json.loads(record.read_text())
        assert value.pop("lives") and value.pop("renewed") == []
        record.write_text(json.dumps({**value, "version": 1}))
    for file in world.archive.rglob("topic=*/**/*.parquet"):
        pq.write_table(pq.ParquetFile(file).read().drop_columns(["life"]), file)
    assert {life for life, _, _ in world.rows(spark)} == {None}
    if again:
        world.again(4 if live else SECOND)
        result = run(spark)
        count = 4 if live else SECOND
        assert (result.rows, result.renewed) == (count, (("g0", TOPIC),))
        assert world.rows(spark) == messages(None, FIRST) + messages(world.lives[1], count)
    else:
        world.tell(4)
        result = run(spark)
        assert (result.rows, result.renewed) == (4, ())
        assert [row[1:] for row in sorted(world.rows(spark), key=lambda row: row[1:])] == [
            row[1:] for row in messages(None, FIRST + 4)
        ]
    assert run(spark).batches == 0


@pytest.mark.parametrize("live", [False, True], ids=["files", "live"])
def test_an_archive_outlives_a_topic(spark: Any, world: World, live: bool) -> None:
    run = world.run_live if live else world.run
    chosen = {"subscribe": f"{TOPIC},{OTHER}"}
    run(spark, **chosen)
    world.delete()
    world.tell(4, OTHER)
    assert run(spark, **chosen).rows == 4, "the other topic goes on"
    assert world.rows(spark) == messages(world.lives[0], FIRST)
    world.make()
    world.tell(8)
    assert run(spark, **chosen).rows == 8
    assert world.rows(spark) == messages(world.lives[0], FIRST) + messages(world.lives[1], 8)
    with pytest.raises(JobError, match="is an archive of subscribe=orders,payments"):
        run(spark, subscribe=OTHER)


def test_statistics_count_the_present_topic(spark: Any, world: World) -> None:
    from dledger.spark.jobs.statistics import statistics

    world.again()
    found = {one.topic: one.messages for one in statistics(spark, world.source()).topics}
    assert found == {TOPIC: SECOND, OTHER: 6}
    world.run(spark)
    world.delete()
    world.tell(1, OTHER)
    with pytest.raises(JobError, match="there is no topic 'orders'"):
        statistics(spark, world.source(subscribe=TOPIC))


def test_lag_forgets_the_commits_of_the_old_topic(spark: Any, world: World) -> None:
    """Seen before: the group stood at 15 of the new topic, and had no lag."""
    from dledger.spark.jobs.lag import lag_history

    world.op(offsets_op("readers", [(TOPIC, 0, FIRST // 2), (TOPIC, 1, FIRST // 2)]))
    world.op(offsets_op("payers", [(OTHER, 0, 2)]))
    world.again()
    world.op(offsets_op("readers", [(TOPIC, 0, 5)]))
    world.write()
    found = {(one.consumer, one.topic, one.queue): (one.end, one.consumed)
             for one in lag_history(spark, world.source()).now}  # fmt: skip
    assert found == {("readers", TOPIC, 0): (SECOND // 2, 5), ("payers", OTHER, 0): (3, 2)}


def account(spark: Any, world: World, source: Any = None, **settings: Any) -> Any:
    from dledger.spark.jobs.accounting import account

    told = world.store.parent / "acks.jsonl"
    told.write_text("".join(json.dumps(ack) + "\n" for ack in world.acks))
    return account(spark, source or world.source(), str(told), **settings)


@pytest.mark.parametrize("gone", [False, True], ids=["made again", "gone"])
def test_what_was_deleted_was_stored(spark: Any, world: World, gone: bool) -> None:
    if gone:
        world.delete()
        world.write()
    else:
        world.again()
    found = account(spark, world)
    assert (dict(found.counts), found.produced, found.stored) == ({}, len(world.acks), len(world.acks))
    world.acks = world.acks[FIRST:]
    assert dict(account(spark, world).counts) == {}, "messages of another life are somebody else's"
    if not gone:
        world.acks[-3]["id"] = "GONE"
        assert dict(account(spark, world).counts) == {"LOST": 1, "UNEXPECTED": 1}


def test_what_retention_took_of_a_deleted_topic_is_not_lost(spark: Any, world: World) -> None:
    world.tell(400, OTHER)
    world.again()
    (first, *_), *_ = [sorted((world.store / "dledger-n0/data").iterdir())]
    first.unlink()
    found = account(spark, world)
    assert found.counts["MAYBE_RETIRED"] == FIRST and "LOST" not in found.counts


def test_consumers_are_compared_with_the_present_topic(spark: Any, world: World) -> None:
    world.again()
    offsets = {"readers": {("g0", TOPIC, 0): SECOND // 2, ("g0", TOPIC, 1): SECOND // 2, ("g0", OTHER, 0): 3,
                           ("g0", OTHER, 1): 3}}  # fmt: skip
    assert dict(account(spark, world, offsets=offsets).counts) == {}
    offsets["readers"]["g0", TOPIC, 1] = 4
    assert dict(account(spark, world, offsets=offsets).counts) == {"UNCONSUMED": SECOND // 2 - 4}


def test_an_archive_of_two_lives_is_accounted_for(spark: Any, world: World) -> None:
    from dledger.spark.jobs.log_source import LogSource

    world.run(spark)
    world.tell(4)
    world.again()
    world.run(spark)
    kept = LogSource(archive=str(world.archive))
    found = account(spark, world, kept)
    assert dict(found.counts) == {"MAYBE_RETIRED": 4}, "deleted before they were archived"


def test_a_replay_keeps_the_lives_apart(spark: Any, world: World) -> None:
    """Seen before: messages of the new topic at offsets of the old one counted as sent already."""
    from pyspark.sql import functions as F

    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.replay import in_order, those_there

    world.run(spark)
    world.again()
    world.run(spark)
    source = LogSource(archive=str(world.archive), options={"subscribe": TOPIC})
    every = source.messages(spark, value=False, headers=True)
    sent = every.select(
        F.concat_ws("/", "group", "topic", "partition", "offset").alias("origin"),
        F.col("headers")[UNIQ_KEY].alias("origin_id"),
        "life",
    )
    there = sent.where(F.col("life") == world.lives[0]).drop("life")
    assert {row.life for row in those_there(sent, there, "left_semi").collect()} == {world.lives[0]}
    left = those_there(sent, there, "left_anti").collect()
    assert [row.life for row in left] == [world.lives[1]] * SECOND
    of_queue = [(row.life, row.offset) for row in in_order(every).collect() if row.partition == 1]
    assert of_queue == [
        *((world.lives[0], offset) for offset in range(FIRST // 2)),
        *((world.lives[1], offset) for offset in range(SECOND // 2)),
    ]


def test_a_deleted_topic_is_brought_back_from_the_log(spark: Any, world: World) -> None:
    """What `replay STORE --option includeDeleted=true` sends, in its order."""
    from dledger.spark.jobs.replay import in_order
    from dledger.spark.jobs.statistics import statistics

    world.again()
    world.delete()
    world.write()
    source = world.source(subscribe=TOPIC, includeDeleted="true")
    source.check_topics()
    rows = in_order(source.messages(spark, value=True, headers=True)).collect()
    old, new = world.lives
    assert [(row.life, row.partition, row.offset) for row in rows if row.partition == 0] == [
        *((old, 0, offset) for offset in range(FIRST // 2)),
        *((new, 0, offset) for offset in range(SECOND // 2)),
    ]
    assert statistics(spark, source).topics[0].messages == FIRST + SECOND
    with pytest.raises(JobError, match="there is no topic 'orders'"):
        world.source(subscribe=TOPIC).check_topics()
    with pytest.raises(JobError, match="includeDeleted: 'yes' is not one of true, false"):
        world.source(subscribe=TOPIC, includeDeleted="yes").check_topics()


def test_rows_in_spark_have_ids(spark: Any, world: World) -> None:
    world.again()
    frame = spark.read.format("dledger").option("path", str(world.store)).option("includeId", "true").load()
    ids = [row.id for row in frame.where(f"topic = '{TOPIC}'").select("id").collect()]
    assert sorted(ids) == sorted(
        f"{TOPIC}:{queue}:{life}:{offset}" for life, queue, offset in messages(world.lives[1], SECOND)
    )
