"""Consumer lag and its history, computed from the log of a store.

Each commit of an offset is an entry of the log. Commits for a topic that was deleted do not count for a later
topic of the same name. So the history need not have been recorded, and it reaches
back as far as the log. The history has the end of each queue and the committed offset of each group, for
each bucket of time. `lag_live` asks brokers for the present lag instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from dledger.audit.store_directory import Replica
from dledger.formats.state import ReplicatedState
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.lag_report import Lag, LagPoint, QueueLag
from dledger.spark.jobs.log_source import TOPIC_CHOICE, LogSource, best_replicas, group_name
from dledger.spark.jobs.offset_events import offset_events, state_at_begin
from dledger.spark.log_lives import log_topics
from dledger.spark.topic_segments import held_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BUCKETS = 240
BUCKETS_S = (1, 10, 60, 300, 900, 3600, 21_600, 86_400)
"""Possible widths, in seconds, of a bucket of time. The smallest width that needs at most MAX_BUCKETS
buckets for the whole span is used."""


class Queue(NamedTuple):
    """A queue of a topic in a broker group."""

    broker: str
    topic: str
    number: int


@dataclass
class _Tables:
    """Values that change over time, by number of the bucket of time: `ends` has the end of each queue,
    `commits` the committed offset of each consumer group in each queue. Values from before the log begins
    are in bucket -1."""

    ends: dict[Queue, dict[int, int]]
    commits: dict[tuple[str, Queue], dict[int, int]]


def lag_history(
    spark: SparkSession,
    source: LogSource,
    *,
    consumers: tuple[str, ...] = (),
    bucket_s: int | None = None,
    warn_above: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Lag:
    """Return the lag of consumer groups (all, or those named) over time. Blocking. Raises JobError or
    PySparkException.

    `warn_above`: how many messages of one queue a group may be behind without a warning.
    """
    if not source.stores:
        raise JobError(
            "the history of lag needs the log: give store directories (for the present lag: --namesrv)"
        )
    source.check_options("lag", TOPIC_CHOICE)
    source.check_topics()
    tables = _Tables({}, {})
    width = bucket_s
    for replica in best_replicas(source.stores):
        say(f"lag of {group_name(replica) or replica.name}")
        width = width or _suitable(spark, source, replica)
        _collect(spark, source, replica, width, tables)
    chosen = {key: commits for key, commits in tables.commits.items() if not consumers or key[0] in consumers}
    missing = sorted(set(consumers) - {consumer for consumer, _ in chosen})
    if missing:
        known = ", ".join(sorted({consumer for consumer, _ in tables.commits})) or "none"
        raise JobError(
            f"no commit of consumer group {', '.join(missing)} in the log; groups with commits: {known}"
        )
    return assemble(tables.ends, chosen, width or 1, warn_above)


def _messages(spark: SparkSession, source: LogSource, replica: Replica) -> DataFrame:
    one = LogSource(stores=(replica.store,), options=source.options)
    return one.messages(spark, value=False, headers=False)


def _suitable(spark: SparkSession, source: LogSource, replica: Replica) -> int:
    stored = F.unix_millis("storeTimestamp")
    row = _messages(spark, source, replica).agg(F.min(stored), F.max(stored)).collect()[0]
    span_s = 0 if row[0] is None else (row[1] - row[0]) / 1000
    return next((s for s in BUCKETS_S if span_s / s <= MAX_BUCKETS), BUCKETS_S[-1])


def _collect(
    spark: SparkSession, source: LogSource, replica: Replica, bucket_s: int, tables: _Tables
) -> None:
    """Add the ends of queues and the commits of offsets in the log of one replica to `tables`."""
    broker, width = group_name(replica), bucket_s * 1000
    lives = log_topics(replica, held_state(replica), replica.committed).lives
    begins = {topic: lives.begin(topic) for topic in lives.of if lives.begin(topic)}
    start = replica.segments[0].start if replica.segments else 0
    begin = state_at_begin(replica)
    for topic, position in begins.items():
        if position > start:
            begin.forget_topic(topic)
    _add_begin(begin, broker, tables)
    bucket = F.floor(F.unix_millis("storeTimestamp") / width).alias("bucket")
    ends = _messages(spark, source, replica).groupBy("topic", "partition", bucket)
    for topic, number, at, end in ends.agg(F.max("offset") + 1).collect():
        tables.ends.setdefault(Queue(broker, topic, number), {})[at] = end
    one = LogSource(stores=(replica.store,))
    entries = one.read(spark, view="entries", corruptRecords="include")
    effective = _effective(offset_events(spark, entries, replica, begins), begin_of(begin), spark)
    at = F.floor(F.col("time_ms") / width).alias("bucket")
    last = effective.groupBy("consumer", "topic", "partition", at).agg(F.max_by("stands", "index"))
    for consumer, topic, number, when, offset in last.collect():
        tables.commits.setdefault((consumer, Queue(broker, topic, number)), {})[when] = offset


def begin_of(state: ReplicatedState) -> list[tuple[str, str, int, int]]:
    """Return the offsets of consumer groups in a state, as (consumer group, topic, queue, offset)."""
    return [
        (consumer, topic, number, offset)
        for consumer, offsets in sorted(state.offsets.items())
        for (topic, number), offset in sorted(offsets.items())
    ]


def _add_begin(state: ReplicatedState, broker: str, tables: _Tables) -> None:
    before = -1  # a bucket before all others
    for topic, queues in state.queues.items():
        for number, bounds in queues.items():
            tables.ends.setdefault(Queue(broker, topic, number), {})[before] = bounds.next
    for consumer, topic, number, offset in begin_of(state):
        tables.commits.setdefault((consumer, Queue(broker, topic, number)), {})[before] = offset


def _effective(events: DataFrame, begin: list[tuple[str, str, int, int]], spark: SparkSession) -> DataFrame:
    """Return the events with a column `stands`: the group's offset after each event, as `ReplicatedState`
    would hold it.

    A commit counts only if it is higher than the offset before. A reset always counts. `begin`: the
    offsets before the first event.
    """
    if begin:
        rows = [(-1, None, *row, 1) for row in begin]
        schema = ("`index` bigint, time_ms bigint, consumer string, topic string, `partition` int, "
                  "`offset` bigint, reset int")  # fmt: skip
        events = events.unionByName(spark.createDataFrame(rows, schema))
    queue = Window.partitionBy("consumer", "topic", "partition").orderBy("index")
    since = Window.partitionBy("consumer", "topic", "partition", "epoch").orderBy("index")
    numbered = events.withColumn("epoch", F.sum("reset").over(queue))
    return numbered.withColumn("stands", F.max("offset").over(since)).where("time_ms is not null")


def assemble(
    ends: dict[Queue, dict[int, int]],
    commits: dict[tuple[str, Queue], dict[int, int]],
    bucket_s: int,
    warn_above: int | None,
) -> Lag:
    """Compute the lag in each bucket of time from the ends of queues and the commits of groups. A value is
    valid until the next value."""
    width = bucket_s * 1000
    history: list[LagPoint] = []
    present: list[QueueLag] = []
    for (consumer, queue), of_group in sorted(commits.items()):
        of_queue = ends.get(queue)
        if of_queue is None:
            continue  # of a topic that was not asked for, or without any message
        end = stands = 0
        ended: list[tuple[int, int]] = []  # (bucket, end) so far, ascending
        for bucket in sorted({*of_queue, *of_group}):
            end = max(end, of_queue.get(bucket, end))
            stands = of_group.get(bucket, stands)
            ended.append((bucket, end))
            if bucket >= 0 and bucket >= min(of_group):
                lag = max(0, end - stands)
                history.append(LagPoint((bucket + 1) * width, consumer, *queue, end, stands, lag))
        waits = next((bucket for bucket, reached in ended if reached > stands), None)
        newest = max((bucket for table in ends.values() for bucket in table), default=0)
        behind_ms = 0 if waits is None else (newest - max(waits, 0)) * width
        present.append(QueueLag(consumer, *queue, end, stands, max(0, end - stands), behind_ms))
    return Lag(present, history, bucket_s, warn_above)
