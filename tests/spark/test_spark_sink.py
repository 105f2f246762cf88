"""The sink: options, rows and batches without Spark; batch, stream and repeats on a live group."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa

from dledger.client import Message, MessageQueue, NoBroker, OutcomeUnknown, SendFailed, SendResult, SendStatus
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.spark.option_values import BadOption
from dledger.spark.sink import QueueWriter
from dledger.spark.sink_brokers import begun_batch
from dledger.spark.sink_options import SinkOptions, check_columns, parse
from dledger.spark.sink_rows import DEDUP_ID, Outgoing, SinkError, message_of, outgoing, rows_of

SERVERS = "127.0.0.1:9876"
VALUE = ("value", "string")


# --- options and columns ------------------------------------------------------------------------------


def test_options_have_defaults_aliases_and_any_case() -> None:
    assert parse({"SERVERS": SERVERS}) == SinkOptions(SERVERS, "", 512 * 1024, 3, None, 4)
    given = {"nameServer": SERVERS, "topic": "T", "maxbatchbytes": "9000", "retries": "0", "dedupid": "False"}
    assert parse(given | {"maxInFlight": "1"}) == SinkOptions(SERVERS, "T", 9000, 0, False, 1)
    assert parse({"servers": SERVERS, "checkpointLocation": "/c"}).servers == SERVERS, "Spark's own"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "option servers is missing"),
        ({"servers": "nowhere"}, "'nowhere': expected host:port"),
        ({"servers": SERVERS, "tpoic": "T"}, "unknown option 'tpoic': did you mean 'topic'"),
        ({"servers": SERVERS, "dedupeId": "true"}, "did you mean 'dedupId'"),
        ({"servers": SERVERS, "path": "/store"}, "option path: only live brokers"),
        ({"servers": SERVERS, "acks": "1"}, "option acks: .* when a quorum of its broker group has ack"),
        ({"servers": SERVERS, "kafka.acks": "all"}, "option kafka.acks: .* a quorum .*: remove this option"),
        (
            {"servers": SERVERS, "delaylevel": "3"},
            "option delaylevel: the sink cannot .* remove",
        ),
        ({"servers": SERVERS, "nameServer": SERVERS}, "option servers is given twice"),
        ({"servers": SERVERS, "topic": "a b"}, "option topic: .* holds ' '"),
        ({"servers": SERVERS, "topic": ""}, "option topic: .* empty"),
        ({"servers": SERVERS, "retries": "-1"}, "option retries: '-1' is not a number"),
        ({"servers": SERVERS, "maxBatchBytes": "0"}, "option maxBatchBytes: '0' is not a positive"),
        ({"servers": SERVERS, "maxInFlight": "0"}, "option maxInFlight: '0' is not a positive"),
        ({"servers": SERVERS, "maxBatchBytes": "9999999"}, "more than brokers accept; the limit is 4194304"),
        ({"servers": SERVERS, "dedupId": "yes"}, "option dedupId: 'yes' is not one of true, false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse(options)


def test_columns_in_any_order_and_case() -> None:
    columns = [("Topic", "string"), ("VALUE", "binary"), ("partition", "bigint")]
    assert check_columns([*columns, ("headers", "map<string,string>")], "") == (
        "topic",
        "value",
        "partition",
        "headers",
    )


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ([("key", "string")], "T", "column value .* is missing"),
        ([VALUE], "", "option topic is missing, and there is no column topic"),
        ([("value", "bigint")], "T", "column value is bigint: cast it to string or binary"),
        ([VALUE, ("key", "binary")], "T", "column key is binary: cast it to string"),
        ([VALUE, ("tag", "string")], "T", "unknown column 'tag': did you mean 'tags'"),
        ([VALUE, ("delayLevel", "int")], "T", "column delayLevel: the sink cannot delay messages"),
        ([VALUE, ("Value", "string")], "T", "is given twice"),
    ],
)
def test_wrong_columns_are_named(columns: list[tuple[str, str]], topic: str, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        check_columns(columns, topic)


# --- rows ---------------------------------------------------------------------------------------------


def test_a_row_becomes_a_message() -> None:
    row = {"value": "ü", "key": "k", "tags": "A", "topic": "T", "flag": 7, "headers": [("h", "1")]}
    assert message_of(row, "", "q:1:2:3") == Message(
        "T", "ü".encode(), tags="A", keys="k", properties={"h": "1", DEDUP_ID: "q:1:2:3"}, flag=7
    )
    assert message_of(row, "Other", None).topic == "Other", "the option goes before the column"


def test_headers_of_a_message_that_was_read_can_be_sent_again() -> None:
    headers = [
        ("KEYS", "k"),
        ("TAGS", "A"),
        ("UNIQ_KEY", "x"),
        ("WAIT", "true"),
        (DEDUP_ID, "old"),
        ("h", "1"),
    ]
    message = message_of({"value": b"v", "headers": headers}, "T", "new")
    assert message == Message("T", b"v", tags="A", keys="k", properties={"h": "1", DEDUP_ID: "new"})
    assert message_of({"value": b"v", "headers": headers}, "T", None).properties == {
        "h": "1",
        DEDUP_ID: "old",
    }


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"value": None}, "row 2 of the task: value is null"),
        ({"value": ""}, "value is empty"),
        ({"value": "v", "headers": [("DELAY", "3")]}, "header DELAY: the sink cannot delay messages"),
        ({"value": "v", "headers": [("TIMER_DELAY_MS", "3")]}, "cannot delay messages"),
        ({"value": "v", "headers": [("TRAN_MSG", "true")]}, "cannot send transactions"),
        ({"value": "v", "headers": [("h", None)]}, "header 'h' is null"),
        ({"value": "v", "topic": None}, "topic is null"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(row: dict[str, Any], text: str) -> None:
    rows = [{"value": "fine", "topic": "T"}] * 2 + [row]
    columns = ("value", "topic", "headers")
    schema = pa.schema(
        [("value", pa.string()), ("topic", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))]
    )
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    topic = "" if "topic" in row else "T"
    with pytest.raises(SinkError, match=text):
        list(outgoing(rows_of([batch]), columns, topic, None))


def test_rows_are_numbered_over_all_batches() -> None:
    large = "x" * 700_000  # more than one slice
    batches = [
        pa.RecordBatch.from_pydict({"value": values}) for values in (["a", "b"], [], [large] * 3, ["c"])
    ]
    rows = list(outgoing(rows_of(batches), ("value",), "T", None))
    assert [row.row for row in rows] == list(range(6))
    assert not any(row.message.properties for row in rows), "a row's place in the task is no id"
    assert [len(row.message.body) for row in rows] == [1, 1, 700_000, 700_000, 700_000, 1]


# --- batches ------------------------------------------------------------------------------------------


class FakeProducer:
    """Two queues. `fails`: errors of the next sends."""

    def __init__(self, *fails: Exception, status: SendStatus = SendStatus.OK) -> None:
        self.calls: list[tuple[int, list[bytes]]] = []
        self.under_way: list[MessageQueue] = []
        self.most = 0
        self._fails = list(fails)
        self._status = status

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        return [MessageQueue(topic, "g", number) for number in (1, 0)]

    def has_route(self, topic: str) -> bool:
        return topic != "Mistyped"

    def begin(self, message: Message, queue: MessageQueue) -> Callable[[], SendResult]:
        return self.begin_batch([message], queue)

    def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Callable[[], SendResult]:
        self.calls.append((queue.queue_id, [message.body for message in messages]))
        assert queue not in self.under_way, "a queue gets one batch after the other"
        self.under_way.append(queue)
        self.most = max(self.most, len(self.under_way))
        failure = self._fails.pop(0) if self._fails else None

        def answer() -> SendResult:
            self.under_way.remove(queue)
            if failure is not None:
                raise failure
            return SendResult(self._status, "", "", queue, 0)

        return answer


def numbered(count: int, size: int = 0, **fields: Any) -> list[Outgoing]:
    keys, partition = fields.get("keys"), fields.get("partition")
    return [Outgoing(n, Message("T", b"%d" % n + b" " * size, keys=keys), partition) for n in range(count)]


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (9, 2)])
def test_requests_are_under_way_to_different_queues(limit: int, most: int) -> None:
    producer = FakeProducer()
    options = SinkOptions(SERVERS, "T", max_batch_bytes=2500, max_in_flight=limit)
    assert QueueWriter(producer, options, 0).write(numbered(40, size=300)) == 40
    assert (producer.most, producer.under_way) == (most, [])
    assert [int(body) for _, bodies in producer.calls for body in bodies] == list(range(40))


def test_a_failure_among_several_is_repeated_before_the_next_of_its_queue() -> None:
    producer = FakeProducer(OutcomeUnknown("?"))
    options = SinkOptions(SERVERS, "T", max_batch_bytes=2500, max_in_flight=2)
    assert QueueWriter(producer, options, 0).write(numbered(12, size=300)) == 12
    first = [bodies for queue, bodies in producer.calls if queue == 0]
    assert first[0] == first[1], "again, as it was"
    numbers = [int(body) for bodies in first[1:] for body in bodies]
    assert numbers == sorted(numbers) and producer.under_way == []


def test_rows_without_key_and_partition_go_round_in_batches() -> None:
    producer = FakeProducer()
    writer = QueueWriter(producer, SinkOptions(SERVERS, "T", max_batch_bytes=2500), turn=1)
    assert writer.write(numbered(10, size=300)) == 10
    assert [queue for queue, _ in producer.calls] == [1, 0, 1, 0], "begins at its partition's number"
    assert [int(body) for _, bodies in producer.calls for body in bodies] == list(range(10))


def test_partition_goes_before_key_and_rows_keep_their_order() -> None:
    for number in (0, 1):
        producer = FakeProducer()
        QueueWriter(producer, SinkOptions(SERVERS, "T"), 0).write(numbered(5, keys="k", partition=number))
        assert [(queue, len(bodies)) for queue, bodies in producer.calls] == [(number, 5)]
    producer = FakeProducer()
    QueueWriter(producer, SinkOptions(SERVERS, "T"), 0).write(
        [Outgoing(n, Message("T", b"%d" % n, keys=f"k{n % 7}"), None) for n in range(3000)]
    )
    for queue in (0, 1):
        sent = [int(body) for to, bodies in producer.calls if to == queue for body in bodies]
        assert sent == sorted(sent) and len({number % 7 for number in sent}) < 7
    assert sum(len(bodies) for _, bodies in producer.calls) == 3000
    with pytest.raises(
        SinkError, match=r"row 0 of the task: partition 2 is not a queue of the topic 'T'.*0 to 1"
    ):
        QueueWriter(FakeProducer(), SinkOptions(SERVERS, "T"), 0).write(numbered(1, partition=2))


def test_a_topic_that_a_row_names_and_that_does_not_exist_is_refused() -> None:
    sent = [Outgoing(3, Message("Mistyped", b"x"), None)]
    with pytest.raises(SinkError, match=r"row 3 of the task: there is no topic 'Mistyped'.* createTopic"):
        QueueWriter(FakeProducer(), SinkOptions("127.0.0.1:1"), 0).write(sent)
    assert QueueWriter(FakeProducer(), SinkOptions("", create_topic=True), 0).write(sent) == 1


def test_what_waits_is_bounded_over_all_topics() -> None:
    producer = FakeProducer()
    writer = QueueWriter(producer, SinkOptions(SERVERS, max_batch_bytes=10_000), 0)

    def rows() -> Iterator[Outgoing]:
        for number in range(500):
            yield Outgoing(number, Message(f"T{number}", b"x" * 1000), 0)
            waiting = number + 1 - sum(len(bodies) for _, bodies in producer.calls)
            assert waiting * 1000 <= 40_000

    assert writer.write(rows()) == 500


def test_a_batch_without_an_acknowledgement_is_sent_again_as_it_was() -> None:
    producer = FakeProducer(OutcomeUnknown("?"), NoBroker("gone"))
    assert QueueWriter(producer, SinkOptions(SERVERS, "T", retries=2), 0).write(numbered(3)) == 3
    assert producer.calls == [(0, [b"0", b"1", b"2"])] * 3
    producer = FakeProducer(OutcomeUnknown("?"), NoBroker("gone"))
    with pytest.raises(SinkError, match=r"rows 0 to 2 of the task.*not acknowledged in 2 attempts: gone"):
        QueueWriter(producer, SinkOptions(SERVERS, "T", retries=1), 0).write(numbered(3))


def test_a_refusal_is_not_repeated_and_a_weak_acknowledgement_is_none() -> None:
    producer = FakeProducer(SendFailed("illegal"))
    with pytest.raises(SinkError, match="illegal"):
        QueueWriter(producer, SinkOptions(SERVERS, "T"), 0).write(numbered(3))
    assert len(producer.calls) == 1
    weak = FakeProducer(status=SendStatus.SLAVE_NOT_AVAILABLE)
    with pytest.raises(SinkError, match="not on a quorum: SLAVE_NOT_AVAILABLE"):
        QueueWriter(weak, SinkOptions(SERVERS, "T"), 0).write(numbered(3))


# --- with Spark and brokers ---------------------------------------------------------------------------

QUEUES = 4


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=26000), segment_size=16 * MIB)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("sink") / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()


def read(spark: Any, group: LocalCluster, topic: str) -> list[Any]:
    """Rows in the order of the queues."""
    frame = spark.read.format("dledger").options(
        servers=group.namesrv_addr, subscribe=topic, includeHeaders="true"
    )
    rows: list[Any] = frame.load().orderBy("partition", "offset").collect()
    return rows


def writer(frame: Any, group: LocalCluster, **options: str) -> Any:
    return frame.write.format("dledger").options(servers=group.namesrv_addr, **options).mode("append")


@pytest.mark.smoke
@pytest.mark.spark
def test_a_batch_arrives_with_all_columns(spark: Any, group: LocalCluster) -> None:
    group.create_topic("Batch", QUEUES)
    frame = spark.range(0, 2000, 1, 3).selectExpr(
        "cast(concat('body ', id) as binary) value",
        "'Batch' topic",
        "concat('k', id) key",
        "if(id % 2 = 0, 'A', null) tags",
        "cast(id % 4 as int) partition",
        "map('h', string(id)) headers",
        "cast(id % 5 as int) flag",
        "concat(spark_partition_id(), ':', id) number",
    )
    writer(frame, group, maxBatchBytes="20000", idColumn="number").save()
    rows = read(spark, group, "Batch")
    numbers = [int(bytes(row.value).split()[1]) for row in rows]
    assert sorted(numbers) == list(range(2000))
    for row, number in zip(rows, numbers, strict=True):
        assert (row.key, row.tags, row.partition) == (
            f"k{number}",
            "A" if number % 2 == 0 else None,
            number % 4,
        )
        assert (row.headers["h"], row.flag) == (str(number), number % 5)
    ids = [row.headers[DEDUP_ID].split(":") for row in rows]
    assert [int(number) for _, number in ids] == numbers
    for queue in range(QUEUES):  # row order of every task, in every queue
        for task in ("0", "1", "2"):
            order = [
                int(n)
                for row, (at, n) in zip(rows, ids, strict=True)
                if row.partition == queue and at == task
            ]
            assert order == sorted(order) and order


@pytest.mark.spark
def test_the_largest_batches_and_messages_are_taken(spark: Any, group: LocalCluster) -> None:
    group.create_topic("Large", QUEUES)
    frame = spark.range(0, 4000, 1, 1).selectExpr(
        "rpad(string(id), if(id = 1500, 3500000, 3600), uuid()) value"
    )
    writer(frame, group, topic="Large", maxBatchBytes="4194304").save()
    lengths = Counter(len(row.value) for row in read(spark, group, "Large"))
    assert lengths == {3600: 3999, 3_500_000: 1}


@pytest.mark.spark
def test_wrong_writes_are_refused_before_anything_is_sent(spark: Any, group: LocalCluster) -> None:
    from pyspark.errors import PySparkException

    frame = spark.range(5).selectExpr("string(id) value")
    for wrong, text in (
        (writer(frame, group, topic="T", maxBatchByte="1"), "did you mean 'maxBatchBytes'"),
        (
            writer(frame, group, topic="T").mode("overwrite"),
            "mode overwrite: a topic can only be appended to",
        ),
        (writer(frame.selectExpr("value", "1 delayLevel"), group, topic="T"), "column delayLevel"),
        (writer(frame, group), "option topic is missing"),
    ):
        with pytest.raises(PySparkException, match=text):
            wrong.save()


@pytest.mark.spark
@pytest.mark.parametrize("way", ["exactly once", "named", "without ids"])
def test_repeats_of_a_task_that_reads_in_another_order(spark: Any, group: LocalCluster, way: str) -> None:
    """Exactly once, each row is there once. Otherwise failed attempts leave what they sent, with the same
    ids if there are any."""
    from pyspark import TaskContext
    from pyspark.sql import functions as F

    def text(number: int) -> str | None:
        context = TaskContext.get()
        return None if context and context.attemptNumber() < 2 and number % 500 == 499 else str(number)

    def place(number: int) -> int:
        context = TaskContext.get()
        return number * (1, 7919, 104_729)[context.attemptNumber() if context else 0] % 1009

    for function in (text, place):
        function.__annotations__.clear()  # they are texts in this module, which Spark warns of
    value, order = F.udf(text, "string"), F.udf(place, "int")
    topic = "Repeats" + way.title().replace(" ", "")
    group.create_topic(topic, QUEUES)
    options = {"exactly once": {"exactlyOnce": "true", "idColumn": "number"}, "named": {"idColumn": "number"}}
    frame = spark.range(0, 1000, 1, 2).sortWithinPartitions(order("id"))
    frame = frame.select(value("id").alias("value"), F.format_string("row %d", "id").alias("number"))
    if way not in options:
        frame = frame.drop("number")
    writer(frame, group, topic=topic, maxBatchBytes="20000", **options.get(way, {})).save()
    rows = read(spark, group, topic)
    bodies = [int(row.value) for row in rows]
    assert sorted(set(bodies)) == list(range(1000))
    assert (len(bodies) == 1000) == (way == "exactly once")
    if way in options:
        assert [row.headers[DEDUP_ID] for row in rows] == [f"row {body}" for body in bodies]
    else:
        assert not any(DEDUP_ID in row.headers for row in rows)


@pytest.mark.spark
def test_rows_of_our_source_are_copied_once_with_their_ids(spark: Any, group: LocalCluster) -> None:
    for topic in ("From", "To"):
        group.create_topic(topic, QUEUES)
    writer(spark.range(200).selectExpr("string(id) value"), group, topic="From", dedupId="false").save()
    options = {"servers": group.namesrv_addr, "subscribe": "From", "includeId": "true", "includeLife": "true"}
    frame = spark.read.format("dledger").options(**options).load().select("value", "id", "life")
    for _ in range(2):  # as if the driver had been killed before it knew that it had written
        writer(frame, group, topic="To", exactlyOnce="true").save()
    found = {row.headers[DEDUP_ID]: bytes(row.value) for row in read(spark, group, "To")}
    assert found == {row.id: bytes(row.value) for row in frame.collect()}
    assert len(read(spark, group, "To")) == len(found) == 200


@pytest.mark.spark
def test_a_stream_arrives_across_failures_and_a_restart_exactly_once(
    spark: Any, group: LocalCluster, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    group.create_topic("Stream", QUEUES)

    def feed(number: int) -> None:
        lines = "".join(f"{number * 1000 + n}\n" for n in range(1000))
        part = tmp_path / f"{number}.part"
        part.write_text(lines)
        os.utime(part, (1_000_000 + number, 1_000_000 + number))  # the order of batches
        part.rename(source / f"{number}.txt")

    def start() -> Any:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
        out = frame.writeStream.format("dledger").options(
            servers=group.namesrv_addr, topic="Stream", exactlyOnce="true", idColumn="value"
        )
        return out.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()

    def run() -> str:
        query = start()
        query.awaitTermination()
        return str(query.id)

    feed(0)
    feed(1)
    query_id = run()
    for commit in (tmp_path / "check" / "commits").iterdir():
        if commit.name.strip(".").split(".")[0] == "1":
            commit.unlink()  # as if the driver had died before it noted the end of batch 1
    begun = begun_batch(str(tmp_path / "check"))
    assert begun is not None and begun.number == 1 and abs(begun.time / 1000 - time.time()) < 3600
    killed = group.kill_leader()
    feed(2)
    assert run() == query_id
    group.start_node(killed.node)
    group.wait_caught_up()
    found = Counter((row.headers[DEDUP_ID], bytes(row.value)) for row in read(spark, group, "Stream"))
    assert sorted(int(value) for _, value in found) == list(range(3000))
    assert set(found.values()) == {1}, "batch 1 was sent twice, and stored once"
    assert all(dedup == value.decode() for dedup, value in found)
