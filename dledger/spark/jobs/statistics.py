"""Topic statistics: how many messages a topic has, how large they are, their keys and tags, and their
latency from birth to storing.

Bodies are read once to measure them. Everything else is computed from a table of few columns that Spark
keeps during the job. Percentiles (within 0.01 % of rank) and numbers of distinct keys (within about 2 %)
are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F

from dledger.audit import html
from dledger.audit.findings import Severity
from dledger.audit.html import Markup
from dledger.audit.report_files import Records
from dledger.audit.text_table import text_table
from dledger.spark.jobs.log_source import CHOICE, LogSource
from dledger.spark.jobs.times import moment, rate_text, span_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PERCENTILES = (0.5, 0.95, 0.99)
ACCURACY = 10_000
MAX_BUCKETS = 240
BUCKETS_S = (1, 10, 60, 300, 900, 3600, 21_600, 86_400)
"""Possible widths, in seconds, of a bucket of time. The smallest width that needs at most MAX_BUCKETS
buckets for the whole span is used."""
TOP_TAGS = 10

TOPIC_COLUMNS = (
    ("topic", "string"),
    ("messages", "bigint"),
    ("bytes", "bigint"),
    ("queues", "bigint"),
    ("queue_skew", "double"),
    ("first_stored_ms", "bigint"),
    ("last_stored_ms", "bigint"),
    ("messages_per_s", "double"),
    ("peak_messages_per_s", "double"),
    ("size_min", "bigint"),
    ("size_avg", "double"),
    ("size_p50", "bigint"),
    ("size_p95", "bigint"),
    ("size_p99", "bigint"),
    ("size_max", "bigint"),
    ("with_key", "bigint"),
    ("distinct_keys", "bigint"),
    ("with_tag", "bigint"),
    ("latency_p50_ms", "bigint"),
    ("latency_p95_ms", "bigint"),
    ("latency_p99_ms", "bigint"),
    ("latency_max_ms", "bigint"),
    ("latency_negative", "bigint"),
)
"""Names of those fields of `TopicStatistics` that have a single value."""


@dataclass(frozen=True)
class TopicStatistics:
    """The statistics of one topic. Sizes are in bytes of uncompressed bodies. Latency is the time in ms
    from the birth of a message, by the producer's clock, to its storing.

    `queue_skew`: number of messages of the fullest queue, divided by the average of the queues that are
    not empty; `latency_negative`: number of messages whose birth is later than their storing;
    `peak_messages_per_s`: highest rate in a bucket of time, never below `messages_per_s`.
    """

    topic: str
    messages: int
    bytes: int
    queues: int
    queue_skew: float
    first_stored_ms: int
    last_stored_ms: int
    messages_per_s: float
    peak_messages_per_s: float
    size_min: int
    size_avg: float
    size_p50: int
    size_p95: int
    size_p99: int
    size_max: int
    with_key: int
    distinct_keys: int
    with_tag: int
    latency_p50_ms: int
    latency_p95_ms: int
    latency_p99_ms: int
    latency_max_ms: int
    latency_negative: int
    tags: tuple[tuple[str, int], ...] = ()
    """The most frequent tags, each with the number of messages that have it."""


@dataclass(frozen=True)
class Statistics:
    """The statistics of all topics. `series`: number and size of messages over time, as (topic, begin of
    the bucket in ms since the epoch, messages, bytes)."""

    topics: list[TopicStatistics]
    bucket_s: int
    series: list[tuple[str, int, int, int]] = field(repr=False)
    exit_code: int = 0

    def as_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {
            "topics": [{**asdict(topic), "tags": dict(topic.tags)} for topic in self.topics],
            "bucket_s": self.bucket_s,
            "series": [
                {"topic": topic, "time_ms": at, "messages": count, "bytes": size}
                for topic, at, count, size in self.series
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        if not self.topics:
            yield "no messages"
            return
        rows = [("topic", "messages", "body bytes", "queues", "msg/s", "peak", "size p50", "p99", "max",
                 "latency p50", "p99", "max", "keyed", "tags")]  # fmt: skip
        for one in self.topics:
            tags = ", ".join(f"{tag} {count}" for tag, count in one.tags[:3])
            rows.append(
                (
                    one.topic,
                    html.number(one.messages),
                    html.size_text(one.bytes),
                    str(one.queues),
                    rate_text(one.messages_per_s),
                    rate_text(one.peak_messages_per_s),
                    html.number(one.size_p50),
                    html.number(one.size_p99),
                    html.number(one.size_max),
                    span_text(one.latency_p50_ms),
                    span_text(one.latency_p99_ms),
                    span_text(one.latency_max_ms),
                    f"{one.with_key / one.messages:.0%}",
                    tags or "-",
                )
            )
        yield from text_table(rows, right=range(1, 13))
        for one in self.topics:
            if one.latency_negative:
                count = html.number(one.latency_negative)
                yield f"{one.topic}: {count} messages were stored before they were born: compare the clocks"

    def page(self, when: str) -> str:
        """Return the report as one self-contained HTML page."""
        total = sum(one.messages for one in self.topics)
        facts = [f"{html.number(total)} messages", f"{len(self.topics)} topics", when]
        word = f"{html.size_text(sum(one.bytes for one in self.topics))} in {html.number(total)} messages"
        parts = [html.banner(Severity.INFO, "Statistics of topics, from the log.", facts, word)]
        headings = (
            "topic",
            "messages",
            "bodies",
            "queues",
            "skew",
            "msg/s",
            "peak msg/s",
            "with key",
            "distinct keys",
        )
        rows: list[list[html.Cell]] = [
            [one.topic, one.messages, html.size_text(one.bytes), one.queues, one.queue_skew,
             one.messages_per_s, one.peak_messages_per_s, f"{one.with_key / one.messages:.0%}",
             one.distinct_keys]
            for one in self.topics
        ]  # fmt: skip
        parts.append(html.section("Topics", html.table(headings, rows)))
        for one in self.topics:
            parts.append(html.section(one.topic, self._topic(one)))
        footer = (
            "Percentiles and distinct keys are estimates. Latency: from born (producer) to stored (broker)."
        )
        return html.page("Topic statistics", parts, footer=footer)

    def _topic(self, one: TopicStatistics) -> Markup:
        first = one.first_stored_ms // (self.bucket_s * 1000)
        count = one.last_stored_ms // (self.bucket_s * 1000) - first + 1
        values = [0] * count
        for topic, at, messages, _ in self.series:
            if topic == one.topic:
                values[at // (self.bucket_s * 1000) - first] = messages
        labels = [
            f"{moment((first + number) * self.bucket_s * 1000)}: {html.number(value)} messages"
            for number, value in enumerate(values)
        ]
        begin, end = moment(one.first_stored_ms), moment(one.last_stored_ms)
        said = f"messages per {span_text(self.bucket_s * 1000)}, {begin} to {end} UTC"
        sizes = html.table(
            ("", "min", "average", "p50", "p95", "p99", "max"),
            [
                ["body bytes", one.size_min, one.size_avg, one.size_p50, one.size_p95, one.size_p99,
                 one.size_max],
                ["latency", None, None, span_text(one.latency_p50_ms), span_text(one.latency_p95_ms),
                 span_text(one.latency_p99_ms), span_text(one.latency_max_ms)],
            ],
        )  # fmt: skip
        tags = html.table(
            ("tag", "messages", "share"),
            [[tag, count, f"{count / one.messages:.1%}"] for tag, count in one.tags],
        )
        parts = [html.bars(values, labels), Markup(f'<p class="note">{html.text(said)}</p>'), sizes]
        return html.join([*parts, tags] if one.tags else parts)

    def records(self) -> Records:
        """Return one row for each topic."""
        names = [name for name, _ in TOPIC_COLUMNS]
        return Records(TOPIC_COLUMNS, [[getattr(one, name) for name in names] for one in self.topics])


def statistics(
    spark: SparkSession,
    source: LogSource,
    *,
    bucket_s: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Statistics:
    """Compute the statistics of all topics of the source. Blocking. Raises PySparkException or JobError.

    `bucket_s`: length, in seconds, of a bucket of the series; by default chosen from BUCKETS_S by the
    length of the span.
    """
    source.check_options("stats", CHOICE)
    source.check_topics()
    say("read messages")
    narrow = _narrow(source.messages(spark, value=True, headers=False)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = narrow.groupBy("topic").agg(*_aggregates()).orderBy("topic").collect()
        if not rows:
            return Statistics([], bucket_s or 1, [])
        say("tags, queues and series")
        span_s = (max(row.last for row in rows) - min(row.first for row in rows)) / 1000
        width = bucket_s or next((s for s in BUCKETS_S if span_s / s <= MAX_BUCKETS), BUCKETS_S[-1])
        tags = _tags(narrow)
        skew = _skew(narrow)
        series = _series(narrow, width)
    finally:
        narrow.unpersist()
    buckets: dict[str, list[tuple[int, int]]] = {}
    for topic, begin, messages, _ in series:
        buckets.setdefault(topic, []).append((begin, messages))
    topics = []
    for row in rows:
        rate = row.messages / seconds_between(row.first, row.last)
        peak = max(rate, peak_rate(buckets[row.topic], width, row.first, row.last))
        topics.append(
            TopicStatistics(
                topic=row.topic,
                messages=row.messages,
                bytes=row.bytes,
                queues=row.queues,
                queue_skew=round(skew[row.topic], 2),
                first_stored_ms=row.first,
                last_stored_ms=row.last,
                messages_per_s=round(rate, 3),
                peak_messages_per_s=round(peak, 3),
                size_min=row.size_min,
                size_avg=round(row.size_avg, 1),
                size_p50=row.sizes[0],
                size_p95=row.sizes[1],
                size_p99=row.sizes[2],
                size_max=row.size_max,
                with_key=row.with_key,
                distinct_keys=row.distinct_keys,
                with_tag=row.with_tag,
                latency_p50_ms=row.latencies[0],
                latency_p95_ms=row.latencies[1],
                latency_p99_ms=row.latencies[2],
                latency_max_ms=row.latency_max,
                latency_negative=row.negative,
                tags=tags.get(row.topic, ()),
            )
        )
    return Statistics(topics, width, series)


def seconds_between(first_ms: int, last_ms: int) -> float:
    """Return the time span in seconds, at least one second."""
    return max((last_ms - first_ms) / 1000, 1.0)


def peak_rate(buckets: Sequence[tuple[int, int]], width_s: int, first_ms: int, last_ms: int) -> float:
    """Return the highest rate, in messages per second, of the buckets (begin in ms, messages). Of the first
    and the last bucket only the part between the first and the last message counts; otherwise a short topic
    would have a peak below its average."""
    return max(
        messages / seconds_between(max(begin, first_ms), min(begin + width_s * 1000, last_ms))
        for begin, messages in buckets
    )


def _narrow(messages: DataFrame) -> DataFrame:
    stored = F.unix_millis("storeTimestamp")
    return messages.select(
        "topic",
        "partition",
        "key",
        "tags",
        F.octet_length("value").alias("size"),
        stored.alias("stored"),
        (stored - F.unix_millis("timestamp")).alias("latency"),
    )


def _aggregates() -> list[Column]:
    chosen = F.array(*map(F.lit, PERCENTILES))
    return [
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.count_distinct("partition").alias("queues"),
        F.min("stored").alias("first"),
        F.max("stored").alias("last"),
        F.min("size").alias("size_min"),
        F.avg("size").alias("size_avg"),
        F.percentile_approx("size", chosen, ACCURACY).alias("sizes"),
        F.max("size").alias("size_max"),
        F.count("key").alias("with_key"),
        F.least(F.approx_count_distinct("key", 0.02), F.count("key")).alias("distinct_keys"),
        F.count("tags").alias("with_tag"),
        F.percentile_approx("latency", chosen, ACCURACY).alias("latencies"),
        F.max("latency").alias("latency_max"),
        F.count_if(F.col("latency") < 0).alias("negative"),
    ]


def _tags(narrow: DataFrame) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the most frequent tags of each topic."""
    counted = narrow.where("tags is not null").groupBy("topic", "tags").count()
    ordered = F.sort_array(F.collect_list(F.struct((-F.col("count")).alias("less"), "tags")))
    rows = counted.groupBy("topic").agg(F.slice(ordered, 1, TOP_TAGS).alias("top")).collect()
    return {row.topic: tuple((one.tags, -one.less) for one in row.top) for row in rows}


def _skew(narrow: DataFrame) -> dict[str, float]:
    queues = narrow.groupBy("topic", "partition").count().groupBy("topic")
    return {row[0]: row[1] for row in queues.agg(F.max("count") / F.avg("count")).collect()}


def _series(narrow: DataFrame, bucket_s: int) -> list[tuple[str, int, int, int]]:
    width = bucket_s * 1000
    begin = (F.floor(F.col("stored") / width) * width).alias("begin")
    rows = narrow.groupBy("topic", begin).agg(F.count("*"), F.sum("size")).orderBy("topic", "begin").collect()
    return [(row[0], row[1], row[2], row[3]) for row in rows]
