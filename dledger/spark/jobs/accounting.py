"""End-to-end accounting: check, message by message, that produced = stored = consumed.

* produced: a file of the acknowledgements that a producer received (`acknowledgements` describes its form)
* stored: the log
* consumed: the committed offsets of consumer groups and, if given, a file of the messages that a consumer
  processed

A message is identified by its unique id (property UNIQ_KEY, which every RocketMQ client sets). A message
in the log that was not acknowledged is reported only if it lies between the first and the last
acknowledged message of its queue, since other producers may have written before and after them. With
`strict`, every such message is reported.

A topic may have been deleted since, and made again. Its messages are still in the log of a store, or in an
archive, and count as stored (`account_lives`). Consumers are compared with the messages of the present topic
alone. Brokers show only these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F

from dledger.formats.properties import UNIQ_KEY
from dledger.runtime.remote_files import files_for
from dledger.spark.jobs.account_lives import AccountLives, lives_of
from dledger.spark.jobs.account_report import Account, AccountFinding, ConsumerAccount
from dledger.spark.jobs.acknowledgements import read_acknowledgements, read_consumed
from dledger.spark.jobs.archive import selected
from dledger.spark.jobs.archive_files import ArchiveFiles
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import LogSource
from dledger.spark.selection import is_system_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MAX_EXAMPLES = 200
"""Largest number of findings of one code that are listed. All are counted."""
MAX_PLACES = 4
"""Largest number of places kept for one message; further copies of it are only counted."""
_PLACE = ("broker", "topic", "partition")

_Place = tuple[str, str, int]
_BOUNDS = "broker string, topic string, `partition` int, lowest bigint, `end` bigint"

ConsumerOffsets = Mapping[str, Mapping[tuple[str, str, int], int]]
"""Maps a consumer group, and in it (broker group, topic, queue), to the offset at which the consumer group
resumes."""


@dataclass(frozen=True)
class _Frames:
    """The tables that are compared. Spark keeps `acks` and `log` while the job runs.

    `acks`: id and place of each acknowledged message. `log`: id and place of each stored message, the life of
    its topic, and whether that is the present one. `bounds`: the range of offsets of each queue. `sides`: one
    row for each id, joined from `acks` and `log`."""

    acks: DataFrame
    log: DataFrame
    bounds: DataFrame
    retired: DataFrame
    """The topics, as (broker, topic), of which retention deleted messages. `deleted`: whether messages of a
    deleted topic of that name may be among them."""
    sides: DataFrame
    brokers: list[str]
    """Broker groups of which the source has at least one queue."""
    gaps: list[str]
    """Broker groups with a gap in the archive: retention deleted some of their messages before they could
    be archived."""


def account(
    spark: SparkSession,
    source: LogSource,
    acknowledgements: str,
    *,
    offsets: ConsumerOffsets | None = None,
    consumed: str = "",
    strict: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Account:
    """Compare what was produced, stored and consumed. Blocking. Raises JobError for files that cannot be
    used and for options that leave messages out, and PySparkException.

    `offsets`: committed offsets of the consumer groups to check; `consumed`: path of a file of consumed
    messages, with their unique ids.
    """
    source.check_options("account", ("subscribe",))
    if consumed and not offsets:
        raise JobError(
            "consumed messages are compared with the offsets of consumer groups: give these offsets"
        )
    gaps = archive_gaps(source)
    source = source.best()
    lives = lives_of(source)
    say("read acknowledgements")
    acks, told = read_acknowledgements(spark, acknowledgements)
    acks = acks.persist(StorageLevel.MEMORY_AND_DISK)
    log: DataFrame | None = None
    try:
        topics = _topics(source, acks)
        source = lives.readable(source)
        say("read the log")
        before = _queues(spark, source, topics, lives)
        log = _stored(spark, source, topics, before, lives).persist(StorageLevel.MEMORY_AND_DISK)
        found = _found(log)
        after = _queues(spark, source, topics, lives, before)
        frames = _frames(spark, acks, log, bounds_of(before, found, after), gaps, lives.maybe_retired(topics))
        say("compare with the log")
        result = _compare(spark, frames, told, authoritative=bool(source.servers), strict=strict)
        if offsets:
            say("compare with the consumers")
            result = _consumers(spark, result, frames, offsets, consumed)
        return result
    finally:
        if log is not None:
            log.unpersist()
        acks.unpersist()


def archive_gaps(source: LogSource) -> list[str]:
    """Return the broker groups of which the archive lacks messages, because retention deleted them before
    they could be archived. Empty if the source is no archive.

    Raises JobError for an archive of only some tags, as it does not show which messages it left out.
    """
    if not source.archive:
        return []
    archive = ArchiveFiles(files_for(source.archive), source.archive)
    batches = [archive.read(number) for number in archive.numbers()]
    if any("tags" in selected(batch.selection) for batch in batches[-1:]):
        raise JobError(f"{source.archive} archives only some tags: run the job over the log itself")
    return sorted({batch.group for batch in batches if batch.skipped})


def _topics(source: LogSource, acks: DataFrame) -> list[str]:
    """Return the topics of the acknowledged messages. Raises JobError if there are none, or if the source
    leaves one of them out."""
    topics = sorted(row[0] for row in acks.select("topic").distinct().collect())
    if not topics:
        raise JobError("the file holds no acknowledgements, so there is nothing to compare")
    chosen = source.named_topics
    left_out = [topic for topic in topics if chosen and topic not in chosen]
    if left_out:
        raise JobError(f"there are acknowledgements of {', '.join(left_out)}: add them to --topics")
    return topics


_Ranges = dict[_Place, tuple[int, int]]
"""Maps a queue (broker group, topic, queue) to its offsets [lowest, end)."""


def _queues(
    spark: SparkSession,
    source: LogSource,
    topics: list[str],
    lives: AccountLives,
    known: _Ranges | None = None,
) -> _Ranges:
    """Return the offsets of the queues of these topics, as the ConsumeQueue files or the brokers report
    them. `known`: ranges from an earlier call; only topics in it are asked for again."""
    if source.archive:
        return {}
    if known is not None:
        topics = [topic for topic in topics if any(topic == place[1] for place in known)]
        if not topics:
            return {}
        source = replace(source, options={**source.options, "subscribe": ",".join(topics)})
    elif "subscribe" not in source.options and any(map(is_system_topic, topics)):
        source = replace(source, options={**source.options, "includeSystemTopics": "true"})
    chosen = lives.present_topics(source.named_topics)
    if chosen:
        source = replace(source, options={**source.options, "subscribe": ",".join(chosen)})
    elif "subscribe" in source.options:
        return {}
    broker = F.coalesce("group", F.lit(""))
    rows = source.queues(spark).select(broker, "topic", "partition", "minOffset", "maxOffset").collect()
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows}


def _stored(
    spark: SparkSession, source: LogSource, topics: list[str], known: _Ranges, lives: AccountLives
) -> DataFrame:
    """Return id, place and life of the stored messages of the acknowledged topics. `known`: the ranges of
    their queues."""
    if source.stores:
        topics = lives.stored_topics(topics)
        more = {"includeDeleted": "true", "includeLife": "true"}
        options = {name: value for name, value in source.options.items() if name != "subscribe"}
        source = replace(source, options={**options, **more})
    if source.servers:
        topics = [topic for topic in topics if any(topic == place[1] for place in known)]
    if topics and not source.archive:
        source = replace(source, options={**source.options, "subscribe": ",".join(topics)})
    messages = source.messages(spark, value=False, headers=True)
    life = F.col("life") if "life" in messages.columns else F.lit(None).cast("string")
    stored = messages.where(F.col("topic").isin(topics) if topics else F.lit(False)).select(
        F.col("headers")[UNIQ_KEY].alias("id"),
        F.coalesce("group", F.lit("")).alias("broker"),
        "topic",
        "partition",
        "offset",
        life.alias("life"),
    )
    rows = lives.present_rows(topics)
    now = spark.createDataFrame(rows, "broker string, topic string, now string, ended boolean")
    present = F.expr("now <=> life or (life is null and not coalesce(ended, false))").alias("present")
    return stored.join(F.broadcast(now), ["broker", "topic"], "left").select(*stored.columns, present)


def _found(log: DataFrame) -> _Ranges:
    """Return the range of offsets, in each queue, of the messages that were read."""
    rows = log.groupBy(*_PLACE).agg(F.min("offset"), F.max("offset") + 1).collect()
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows}


def bounds_of(before: _Ranges, found: _Ranges, after: _Ranges) -> dict[_Place, tuple[int | None, int | None]]:
    """Return, for each queue, the offsets [lowest, end) between which no message may be missing.

    `found` has the ranges of the messages that were read. `before` and `after` have the ranges that the
    ConsumeQueue files, or the brokers, reported before and after reading. They also contain queues whose
    messages are all deleted. ConsumeQueue files may lag behind the log, so `found` may reach further.

    A running node continues to write and to delete while the log is read. So messages that arrived after
    `before` was taken, and messages deleted since then, may be missing.
    """
    lowest = {place: low for place, (low, _) in after.items()}
    end = {place: high for place, (_, high) in before.items()}
    for place, (low, high) in found.items():
        lowest[place] = min(low, lowest.get(place, low))
        end[place] = max(high, end.get(place, high))
    return {place: (lowest.get(place), end.get(place)) for place in sorted({*before, *found, *after})}


def _frames(
    spark: SparkSession,
    acks: DataFrame,
    log: DataFrame,
    bounds: Mapping[_Place, tuple[int | None, int | None]],
    gaps: list[str],
    deleted: set[tuple[str, str]],
) -> _Frames:
    brokers = sorted({place[0] for place in bounds})
    named = acks.where("broker <> ''").limit(1).count() > 0
    if not named and len(brokers) > 1:
        raise JobError(
            f"the messages are in several broker groups, {', '.join(brokers)}: so each "
            "acknowledgement must name its broker group (brokerName)"
        )
    if brokers and (not named or brokers == [""]):
        acks = acks.withColumn("broker", F.lit(brokers[0]))
    place = F.struct(*_PLACE, "offset")
    acked = acks.groupBy("id").agg(F.first(place).alias("acked"), F.count("*").alias("times_acked"))
    stored = (
        log.where("id is not null")
        .groupBy("id")
        .agg(
            F.slice(F.sort_array(F.collect_set(place)), 1, MAX_PLACES).alias("places"),
            F.count("*").alias("copies"),
        )
    )
    retired = {(broker, topic) for (broker, topic, _), (low, _) in bounds.items() if low}
    lacking = [(*of, of in retired, of in deleted) for of in sorted(retired | deleted)]
    return _Frames(
        acks,
        log,
        spark.createDataFrame([(*of, *ends) for of, ends in bounds.items()], _BOUNDS),
        spark.createDataFrame(lacking, "broker string, topic string, retired boolean, deleted boolean"),
        acked.join(stored, "id", "full_outer"),
        brokers,
        gaps,
    )


def _compare(
    spark: SparkSession, frames: _Frames, told: int, *, authoritative: bool, strict: bool
) -> Account:
    """Compare what was produced with what is stored."""
    sides = (
        frames.sides.select(
            "id", "acked.*", F.coalesce("copies", F.lit(0)).alias("copies"), "places", "times_acked"
        )
        .join(F.broadcast(frames.bounds), [*_PLACE], "left")
        .join(F.broadcast(frames.retired), ["broker", "topic"], "left")
    )
    missing = F.col("copies") == 0
    state = (
        F.when(F.col("times_acked").isNull(), "unexpected")
        .when(missing & (F.col("offset") < F.col("lowest")), "RETIRED")
        .when(missing & _perhaps_retired(frames.gaps), "MAYBE_RETIRED")
        .when(missing & F.coalesce("deleted", F.lit(False)), "MAYBE_RETIRED")
        .when(missing & ~F.col("broker").isin(frames.brokers), "NOT_YET_KNOWN")
        .when(missing & _beyond() & F.lit(not authoritative), "NOT_YET_KNOWN")
        .when(missing, "LOST")
        .when(
            ~F.array_contains("places", F.struct(*_PLACE, "offset")) & ~_nowhere(),
            "MISPLACED",
        )
        .when(F.col("copies") > 1, "DUPLICATE")
        .otherwise("")
    )
    judged = sides.withColumn("state", state).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = {row[0]: row[1] for row in judged.groupBy("state").count().collect()}
        sums = judged.where("times_acked is not null").agg(
            F.count("*"),
            F.count_if(F.col("copies") > 0),
            F.sum(F.greatest("copies", F.lit(1)) - 1),
            F.sum("times_acked"),
        )
        produced, stored, more, _ = sums.collect()[0]
        findings = []
        for code in ("LOST", "NOT_YET_KNOWN", "MAYBE_RETIRED", "MISPLACED", "DUPLICATE", "RETIRED"):
            if counts.get(code):
                findings += _examples(judged.where(F.col("state") == code), code)
    finally:
        judged.unpersist()
    unexpected, inside, without_id = _unexpected(spark, frames, strict)
    findings += unexpected
    kept = {code: counts[code] for code in counts if code and code != "unexpected"}
    if inside:
        kept["UNEXPECTED"] = inside
    return Account(
        produced=produced,
        stored=stored,
        copies=more or 0,
        told=told,
        without_id=without_id,
        counts=kept,
        findings=findings,
    )


def _beyond() -> Column:
    """Whether the acknowledged place is behind all that this source knows to be committed. Also true if
    the acknowledgement has no offset."""
    return F.col("end").isNull() | F.col("offset").isNull() | (F.col("offset") >= F.col("end"))


def _nowhere() -> Column:
    """Whether the acknowledgement lacks the queue or the offset of the message."""
    return F.col("partition").isNull() | F.col("offset").isNull()


def _perhaps_retired(gaps: list[str]) -> Column:
    """Whether retention may have deleted the message. This is so in two cases: the acknowledgement does
    not say where the message is, and retention deleted messages where it may have been; or the message's
    place is in an archive with a gap."""
    queue_retired = F.coalesce(F.col("lowest") > 0, F.col("retired"), F.lit(False))
    in_gap = F.col("broker").isin(gaps)
    return (_nowhere() & (queue_retired | in_gap)) | (in_gap & (F.col("offset") < F.col("end")))


def _examples(judged: DataFrame, code: str) -> list[AccountFinding]:
    rows = judged.orderBy(*_PLACE, "offset", "id").limit(MAX_EXAMPLES).collect()
    return [
        AccountFinding(
            code, row.topic, row.broker, row.partition, row.offset, row.id, _detail(code, row.asDict(True))
        )
        for row in rows
    ]


def _detail(code: str, row: dict[str, object]) -> str:
    places = row["places"]
    found = (
        [f"{p['broker']} {p['partition']}/{p['offset']}".strip() for p in places]
        if isinstance(places, list)
        else []
    )
    match code:
        case "MISPLACED":
            return f"stored at {', '.join(found)}"
        case "DUPLICATE":
            return f"stored {row['copies']} times: {', '.join(found)}"
        case "RETIRED":
            return f"the queue begins at offset {row['lowest']}"
        case "MAYBE_RETIRED":
            if row["deleted"]:
                return "its topic was deleted, and what was written before that may be gone"
            if row["offset"] is None or row["partition"] is None:
                return (
                    "acknowledged without its place, and retention has deleted messages where it "
                    "may have been"
                )
            return "the archive lacks messages that retention deleted before they were archived"
        case "NOT_YET_KNOWN":
            end = row["end"]
            return (
                "no message of the queue is known"
                if end is None
                else f"the queue is known up to offset {end}"
            )
        case _:
            return "acknowledged, but not in the log"


_LIFE = "broker string, topic string, life string"


def _ended_lives(frames: _Frames) -> list[tuple[str, str, str | None]]:
    """Return the lives without an acknowledged message, (broker, topic, life), of topics of which the log has
    messages of several lives."""
    every = [tuple(row) for row in frames.log.select("broker", "topic", "life").distinct().collect()]
    several = {row[:2] for row in every if sum(row[:2] == other[:2] for other in every) > 1}
    if not several:
        return []
    acked = frames.log.join(frames.acks.select("id").distinct(), "id", "left_semi")
    known = {tuple(row) for row in acked.select("broker", "topic", "life").distinct().collect()}
    return [row for row in every if row[:2] in several and row not in known]


def _unexpected(spark: SparkSession, frames: _Frames, strict: bool) -> tuple[list[AccountFinding], int, int]:
    """Find stored messages that were never acknowledged. Returns examples, their number, and how many of
    them have no unique id."""
    windows = frames.acks.groupBy(*_PLACE).agg(F.min("offset").alias("low"), F.max("offset").alias("high"))
    known = frames.acks.select("id").distinct()
    rest = frames.log.join(known, "id", "left_anti")
    ended = _ended_lives(frames)
    if ended and not strict:  # there, the offsets of acknowledgements mean other messages
        gone = spark.createDataFrame(ended, _LIFE)
        same = F.expr("one.broker = of.broker and one.topic = of.topic and one.life <=> of.life")
        rest = rest.alias("one").join(F.broadcast(gone.alias("of")), same, "left_anti")
    if not strict:
        rest = rest.join(windows, [*_PLACE]).where("offset between low and high")
    rest = rest.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        count, ids = rest.agg(F.count("*"), F.count("id")).collect()[0]
        rows = rest.orderBy(*_PLACE, "offset").limit(MAX_EXAMPLES).collect()
    finally:
        rest.unpersist()
    text = "stored without an acknowledgement: its outcome was unknown, or another producer sent it"
    examples = [
        AccountFinding("UNEXPECTED", row.topic, row.broker, row.partition, row.offset, row.id or "", text)
        for row in rows
    ]
    return examples, count, count - ids


def _consumers(
    spark: SparkSession, result: Account, frames: _Frames, offsets: ConsumerOffsets, consumed: str
) -> Account:
    """Compare, for each consumer group, the acknowledged and stored messages with those that the group
    consumed."""
    ours = frames.log.where("present").join(frames.acks.select("id").distinct(), "id", "left_semi")
    worked = read_consumed(spark, consumed) if consumed else None
    for consumer, table in sorted(offsets.items()):
        rows = [(*place, offset) for place, offset in sorted(table.items())]
        stands = spark.createDataFrame(rows, "broker string, topic string, `partition` int, stands bigint")
        placed = ours.join(F.broadcast(stands), [*_PLACE], "left")
        passed = placed.withColumn("passed", F.coalesce(F.col("offset") < F.col("stands"), F.lit(False)))
        waiting = _waiting(passed, consumer)
        findings = [*result.findings, *waiting.findings]
        one = waiting.account
        if worked is not None:
            skipped, one = _worked(passed, worked, frames, waiting.account)
            findings += skipped
        counts = dict(result.counts)
        codes = (("UNCONSUMED", one.waiting), ("SKIPPED", one.skipped), ("UNKNOWN_CONSUMED", one.unknown))
        for code, count in codes:
            if count:
                counts[code] = counts.get(code, 0) + count
        result = result.with_consumer(one, counts, findings)
    return result


@dataclass(frozen=True)
class _Waiting:
    account: ConsumerAccount
    findings: list[AccountFinding]


def _waiting(passed: DataFrame, consumer: str) -> _Waiting:
    """Find the messages that the group has not passed yet. Returns one finding for each queue."""
    queues = passed.groupBy(*_PLACE, "stands").agg(
        F.count_if("passed").alias("done"), F.count_if(~F.col("passed")).alias("left")
    )
    rows = queues.orderBy(*_PLACE).collect()
    findings = []
    for row in rows:
        if row.left:
            where = (
                "has never committed an offset" if row.stands is None else f"continues at offset {row.stands}"
            )
            text = f"{row.left} messages are before {consumer}, which {where}"
            findings.append(
                AccountFinding(
                    "UNCONSUMED", row.topic, row.broker, row.partition, row.stands, "", text, consumer
                )
            )
    done, left = sum(row.done for row in rows), sum(row.left for row in rows)
    return _Waiting(ConsumerAccount(consumer, passed=done, waiting=left), findings)


def _worked(
    passed: DataFrame, worked: DataFrame, frames: _Frames, one: ConsumerAccount
) -> tuple[list[AccountFinding], ConsumerAccount]:
    """Compare what the group passed with the file of consumed messages. Finds messages that it passed
    without processing them, and messages that it processed although they were neither acknowledged nor
    stored."""
    mine = worked.where((F.col("consumer") == one.consumer) | (F.col("consumer") == "")).select("id")
    times = mine.groupBy("id").count()
    skipped = passed.where("passed").join(times, "id", "left_anti")
    unknown = times.join(frames.log.select("id").distinct(), "id", "left_anti").join(
        frames.acks.select("id").distinct(), "id", "left_anti"
    )
    count, lost = skipped.count(), unknown.count()
    total, distinct = times.agg(F.sum("count"), F.count("*")).collect()[0]
    text = f"{one.consumer} has passed it, but did not report it as processed"
    findings = [
        AccountFinding(
            "SKIPPED", row.topic, row.broker, row.partition, row.offset, row.id, text, one.consumer
        )
        for row in skipped.orderBy(*_PLACE, "offset").limit(MAX_EXAMPLES).collect()
    ]
    text = "processed, but neither acknowledged nor in the log"
    findings += [
        AccountFinding("UNKNOWN_CONSUMED", "", "", None, None, row.id, text, one.consumer)
        for row in unknown.orderBy("id").limit(MAX_EXAMPLES).collect()
    ]
    again = (total or 0) - distinct
    return findings, ConsumerAccount(
        one.consumer, one.passed, one.waiting, worked=distinct, again=again, skipped=count, unknown=lost
    )
