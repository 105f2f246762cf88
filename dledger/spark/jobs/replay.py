"""Replay: messages of an archive or of a log into a topic of live brokers.

The messages of one source queue go to one target queue, in their order, in batches; each batch waits for its
acknowledgement. Delivery is at least once: a task that Spark runs again sends again. So every message carries
its origin (`ORIGIN`), and `resume` leaves out messages that the target has already. A replay that was killed
can be run again with it, and no message is duplicated that was acknowledged before.

Transactions, delays and retries are not repeated: each message is sent as a plain one, with its keys, tags
and the properties of the application.
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
"""Property: `<broker group>/<topic>/<queue>/<offset>` of the message that is replayed."""
ORIGIN_ID = "REPLAY_UNIQ_KEY"
"""Property: the unique id that the original producer gave the message; the copy gets a new one."""
BATCH_MESSAGES = 256
BATCH_BYTES = 512 * 1024
"""A batch has at most this many bytes of bodies and properties."""
TASKS = 8
"""At most this many source queues are sent at the same time. It bounds the load on the target."""
SENT = (("topic", "string"), ("broker", "string"), ("queue", "int"), ("messages", "bigint"))


class Sent(NamedTuple):
    """How many messages a target queue got."""

    topic: str
    broker: str
    queue: int
    messages: int


@dataclass(frozen=True)
class ReplayResult:
    """What was sent. `left_out`: messages that the target had already; None when the target was not asked."""

    sent: tuple[Sent, ...]
    left_out: int | None = None
    exit_code: int = 0

    @property
    def messages(self) -> int:
        """How many messages were sent."""
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
    """Send the messages of the source. Blocking; JobError, PySparkException (a task could not send).

    `to_topic`: the target topic of all messages; by default each message goes to the topic of its own name.
    `create_queues`: create missing target topics with this many queues. Store times in ms since the epoch,
    the end excluded.
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
    left_out = None
    if resume:
        say("read what is already there")
        there = _origins(spark, namesrv, topics)
        left_out = chosen.select("origin").join(there, "origin", "left_semi").count()
        chosen = chosen.join(there, "origin", "left_anti")
    say("send")
    ordered = chosen.repartition(TASKS, "group", "topic", "partition").sortWithinPartitions(
        "group", "topic", "partition", "offset"
    )
    columns = ordered.select("target", "partition", "value", "key", "tags", "flag", "headers", "origin")
    counts = columns.mapInArrow(partial(_send_all, namesrv, targets), ddl(SENT)).groupBy(
        "topic", "broker", "queue"
    )
    rows = counts.agg(F.sum("messages").alias("messages")).orderBy("topic", "broker", "queue").collect()
    return ReplayResult(tuple(Sent(*row) for row in rows), left_out)


def _queues_of(namesrv: str, topics: Sequence[str], create_queues: int) -> dict[str, list[MessageQueue]]:
    """Queues of the target topics. JobError for a topic that is missing or not writable."""
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


def _origins(spark: SparkSession, namesrv: str, topics: Sequence[str]) -> DataFrame:
    """Origins of all replayed messages that the target topics hold."""
    target = LogSource(servers=namesrv, options={"subscribe": ",".join(topics)})
    headers = target.messages(spark, value=False, headers=True).select(
        F.col("headers")[ORIGIN].alias("origin")
    )
    return headers.where("origin is not null").distinct()


def _send_all(
    namesrv: str, targets: dict[str, list[MessageQueue]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in a task: send the queues one after another with one producer."""
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
    """The copy of a message that is sent to the target."""
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
    """Group neighbours for the same queue, up to the limits of a batch."""
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
