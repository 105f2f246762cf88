"""Replay: send the messages of an archive or of a log to topics of live brokers again.

The messages of one source queue are sent to one target queue, in their order and in batches. The next
batch is sent when the batch before it is acknowledged.

Delivery is at least once, because a task that Spark runs again sends its messages again. So every message
has a property with its origin (`ORIGIN`), and with `resume` messages that the target already has are left
out: those with the same origin and the same unique id of the original producer. Both are compared, because a
topic that is made again has messages at the same offsets. A replay that was killed can be run again with
`resume`: messages that were acknowledged before are not sent twice.

Transactions, delays and retries are not repeated. Each message is sent as an ordinary message, with its
keys, its tags and the properties that the application set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from dledger.client import ClientError, Message, MessageQueue, Producer, TopicNotFound
from dledger.formats import properties as names
from dledger.spark.columns import arrow_schema, ddl
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import CHOICE, LogSource
from dledger.spark.sink_rows import FIRST_LIFE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCER_GROUP = "SPARK_REPLAY"
ORIGIN = "REPLAY_ORIGIN"
"""Property with the origin of a replayed message: `<broker group>/<topic>/<queue>/<offset>`."""
ORIGIN_ID = "REPLAY_UNIQ_KEY"
"""Property with the unique id that the original producer gave the message. The replayed copy gets a new
unique id."""
BATCH_MESSAGES = 256
BATCH_BYTES = 512 * 1024
"""Largest size of a batch, in bytes of bodies and properties."""
TASKS = 8
"""Largest number of source queues that are sent at the same time. It limits the load on the target."""
SENT = (("topic", "string"), ("broker", "string"), ("queue", "int"), ("messages", "bigint"))


class Sent(NamedTuple):
    """How many messages were sent to a target queue."""

    topic: str
    broker: str
    queue: int
    messages: int


@dataclass(frozen=True)
class ReplayResult:
    """What was sent. `left_out`: number of messages that were not sent because the target already had
    them; None without `resume`."""

    sent: tuple[Sent, ...]
    left_out: int | None = None
    exit_code: int = 0

    @property
    def messages(self) -> int:
        """The number of messages that were sent."""
        return sum(one.messages for one in self.sent)

    def as_json(self) -> dict[str, object]:
        """Return one JSON object."""
        queues = [one._asdict() for one in self.sent]
        return {"messages": self.messages, "left_out": self.left_out, "queues": queues, "exit_code": 0}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        topics: dict[str, int] = {}
        for one in self.sent:
            topics[one.topic] = topics.get(one.topic, 0) + one.messages
        for topic, count in topics.items():
            yield f"{topic}: {count} messages"
        known = "" if self.left_out is None else f", {self.left_out} were already there"
        yield f"replay: {self.messages} messages sent and acknowledged{known}"


def replay(
    spark: SparkSession,
    source: LogSource,
    namesrv: str,
    *,
    to_topic: str = "",
    stored_from_ms: int | None = None,
    stored_before_ms: int | None = None,
    resume: bool = False,
    create_queues: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> ReplayResult:
    """Send the messages of the source to the brokers of `namesrv`. Blocking. Raises JobError, and
    PySparkException if a task could not send.

    `to_topic`: the target topic of all messages; by default each message is sent to the topic of the same
    name. `create_queues`: if not 0, missing target topics are created with this many queues.
    `stored_from_ms`, `stored_before_ms`: send only messages stored in this range of ms since the epoch,
    without its end.
    """
    if source.servers and not to_topic:
        raise JobError(
            "a replay from live brokers into a topic of the same name would never end: give --to-topic"
        )
    source.check_options("replay", CHOICE)
    source.check_topics()
    messages = source.messages(spark, value=True, headers=True)
    stored = F.unix_millis("storeTimestamp")
    if stored_from_ms is not None:
        messages = messages.where(stored >= stored_from_ms)
    if stored_before_ms is not None:
        messages = messages.where(stored < stored_before_ms)
    say("look at the topics")
    topics = (
        [to_topic] if to_topic else sorted(row[0] for row in messages.select("topic").distinct().collect())
    )
    targets = _queues_of(namesrv, topics, create_queues)
    chosen = messages.withColumn("target", F.lit(to_topic) if to_topic else F.col("topic")).withColumn(
        "origin", F.concat_ws("/", F.coalesce("group", F.lit("")), "topic", "partition", "offset")
    )
    chosen = chosen.withColumn("origin_id", F.col("headers")[names.UNIQ_KEY])
    left_out = None
    if resume:
        say("read what is already there")
        there = _origins(spark, namesrv, topics)
        left_out = those_there(chosen, there, "left_semi").count()
        chosen = those_there(chosen, there, "left_anti")
    say("send")
    ordered = in_order(chosen)
    columns = ordered.select("target", "partition", "value", "key", "tags", "flag", "headers", "origin")
    counts = columns.mapInArrow(partial(_send_all, namesrv, targets), ddl(SENT)).groupBy(
        "topic", "broker", "queue"
    )
    rows = counts.agg(F.sum("messages").alias("messages")).orderBy("topic", "broker", "queue").collect()
    return ReplayResult(tuple(Sent(*row) for row in rows), left_out)


def _queues_of(namesrv: str, topics: Sequence[str], create_queues: int) -> dict[str, list[MessageQueue]]:
    """Return the queues of each target topic. Raises JobError for a topic that is missing or not writable."""
    try:
        with Producer(PRODUCER_GROUP, namesrv) as producer:
            return {topic: _queues(producer, topic, create_queues) for topic in topics}
    except ClientError as error:
        raise JobError(str(error)) from error


def _queues(producer: Producer, topic: str, create_queues: int) -> list[MessageQueue]:
    try:
        queues = producer.queues(topic)
        if producer.has_route(topic) or not create_queues:
            return queues  # else the broker would make it with the first message, as it likes
    except TopicNotFound:
        if not create_queues:
            raise
    producer.create_topic(topic, create_queues)
    return producer.queues(topic)


def in_order(messages: DataFrame) -> DataFrame:
    """Return the messages with those of each queue in one task and in order. An archive may have messages of
    a topic and of an earlier one of the same name, which come first."""
    life = F.col("life") if "life" in messages.columns else F.lit(None).cast("string")
    born = F.substring_index(life, ".", -1).cast("bigint")
    return messages.repartition(TASKS, "group", "topic", "partition").sortWithinPartitions(
        "group", "topic", "partition", born, "offset"
    )


def those_there(messages: DataFrame, there: DataFrame, how: str) -> DataFrame:
    """Return the messages that the target has (`how` is left_semi), or that it does not have (left_anti)."""
    same = F.expr("sent.origin = there.origin and sent.origin_id <=> there.origin_id")
    return messages.alias("sent").join(there.alias("there"), same, how)


def _origins(spark: SparkSession, namesrv: str, topics: Sequence[str]) -> DataFrame:
    """Return the origins (`ORIGIN`, `ORIGIN_ID`) of all replayed messages that the target topics contain."""
    target = LogSource(servers=namesrv, options={"subscribe": ",".join(topics)})
    headers = target.messages(spark, value=False, headers=True).select(
        F.col("headers")[ORIGIN].alias("origin"), F.col("headers")[ORIGIN_ID].alias("origin_id")
    )
    return headers.where("origin is not null").distinct()


def _send_all(
    namesrv: str, targets: dict[str, list[MessageQueue]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Send the messages of several source queues, one queue after another, with one producer. This runs in
    a task."""
    sent: dict[MessageQueue, int] = {}
    with Producer(PRODUCER_GROUP, namesrv) as producer:
        for queue, messages in _runs(_messages(batches, targets)):
            producer.send_batch(messages, queue)
            sent[queue] = sent.get(queue, 0) + len(messages)
    schema = arrow_schema(SENT)
    rows = [(*queue, count) for queue, count in sorted(sent.items())]
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(SENT)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _messages(
    batches: Iterable[pa.RecordBatch], targets: dict[str, list[MessageQueue]]
) -> Iterator[tuple[MessageQueue, Message]]:
    for batch in batches:
        columns = (column.to_pylist() for column in batch.columns)
        for target, partition, value, key, tags, flag, headers, origin in zip(*columns, strict=True):
            queues = targets[target]
            yield (
                queues[partition % len(queues)],
                again(target, value, key, tags, flag, dict(headers or ()), origin),
            )


def again(
    topic: str,
    value: bytes,
    key: str | None,
    tags: str | None,
    flag: int,
    headers: dict[str, str],
    origin: str,
) -> Message:
    """Return the copy of a message that is sent to the target."""
    properties = {name: text for name, text in headers.items() if name not in FIRST_LIFE}
    properties[ORIGIN] = origin
    if names.UNIQ_KEY in headers:
        properties[ORIGIN_ID] = headers[names.UNIQ_KEY]
    message = Message(topic, value, keys=key, properties=properties, flag=flag)
    message.tags = tags  # also one that no subscription can name
    return message


def _runs(
    messages: Iterable[tuple[MessageQueue, Message]],
) -> Iterator[tuple[MessageQueue, list[Message]]]:
    """Group consecutive messages for the same queue, up to the limits of a batch."""
    pending: list[Message] = []
    size = 0
    to: MessageQueue | None = None
    for queue, message in messages:
        more = len(message.body) + sum(len(k) + len(v) for k, v in (message.properties or {}).items())
        if pending and (queue != to or len(pending) >= BATCH_MESSAGES or size + more > BATCH_BYTES):
            assert to is not None
            yield to, pending
            pending, size = [], 0
        to = queue
        pending.append(message)
        size += more
    if pending and to is not None:
        yield to, pending
