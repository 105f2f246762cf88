"""Archive topics to Parquet, by topic and day: resumable, and every committed message exactly once.

The log is archived in batches, in its order. Each batch ends at or below the index that was committed when
it was planned. A run resumes where the last run ended, even if that run was killed (`archive_files` says
how). Before a batch is committed its queue offsets are checked: no message of a queue may be missing or
occur twice.

If a topic is deleted and made again, its offsets begin again, and the archive goes on with the new topic. The
record of each batch has the life of each topic (`formats.life`), so that a new one is recognised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from dledger.audit.store_directory import Replica, segment_tasks
from dledger.client.errors import ClientError
from dledger.runtime.files import Files
from dledger.runtime.remote_files import files_for
from dledger.spark import option_values as values
from dledger.spark.jobs.archive_files import LOG, ArchiveFiles, Batch, Gap, Positions, topic_of
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import TOPIC_CHOICE, LogSource, best_replicas, group_name, stores_of_group
from dledger.spark.log_lives import log_topics
from dledger.spark.option_values import BadOption
from dledger.spark.segment_times import first_store_ms
from dledger.spark.stores import IndexUnits
from dledger.spark.topic_segments import held_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_BYTES = 4 * 1024**3
"""Approximate size, in bytes of log, of one batch, which is cut between segments. The staging directory
needs as much room, less what compression saves."""
BATCH_MESSAGES = 2_000_000
"""Largest number of messages in one batch from live brokers. They do not report bytes."""
FILE_ROWS = 1_000_000
"""Largest number of rows in one file."""
SPREAD = 8
"""Largest number of files for one topic and day in one batch. The queues are divided among as many tasks."""
COLUMNS = (
    "key",
    "value",
    "group",
    "partition",
    "offset",
    "timestamp",
    "storeTimestamp",
    "tags",
    "flag",
    "headers",
    "logIndex",
    "logTerm",
    "life",
)
"""Columns of the files; `topic` and `day` are part of their paths. `life` tells the messages of a topic from
those of an earlier topic of the same name, which stay in the archive."""
DAY = "date_from_unix_date(cast(floor(unix_millis(storeTimestamp) / 86400000) as int))"
"""Day of the store time in UTC, whatever time zone the session has."""
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
"""Setting that says how Spark writes times to Parquet. Its default, INT96, has no time zone. With
TIMESTAMP_MICROS times are in UTC and say so, as in `dledger.read`."""
Queue = tuple[str, int]
SELECTION = (*TOPIC_CHOICE, "tags")
"""Options that choose what is archived. They are recorded, and must be the same for all batches of an
archive."""


@dataclass(frozen=True)
class ArchiveResult:
    """What a run archived. `skipped`: messages that retention deleted before they could be archived, as
    (broker group, "log" or "topic/queue", first, last)."""

    root: str
    batches: int = 0
    rows: int = 0
    files: int = 0
    positions: Positions = field(default_factory=dict)
    skipped: tuple[tuple[str, str, int, int], ...] = ()
    renewed: tuple[tuple[str, str], ...] = ()
    """Topics that were made again since the archive had read them, as (broker group, topic)."""

    @property
    def exit_code(self) -> int:
        """Exit code: 1 if messages were deleted before they could be archived, else 0."""
        return 1 if self.skipped else 0

    def as_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {
            "archive": self.root,
            "batches": self.batches,
            "rows": self.rows,
            "files": self.files,
            "positions": self.positions,
            "skipped": [
                {"group": group, "of": of, "first": first, "last": last}
                for group, of, first, last in self.skipped
            ],
            "renewed": [{"group": group, "topic": topic} for group, topic in self.renewed],
            "exit_code": self.exit_code,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        for group, of, first, last in self.skipped:
            yield f"{group}: {of} {first} to {last}: deleted by retention before it could be archived"
        for group, topic in self.renewed:
            yield f"{group}: topic {topic} was deleted and made again: archived from its first message"
        for group, position in self.positions.items():
            if LOG in position:
                yield f"{group or 'log'}: archived up to index {position[LOG] - 1}"
            else:
                yield f"{group}: archived up to the offsets of {len(position)} queues"
        yield f"archive: {self.rows} messages in {self.files} files, {self.batches} batches, to {self.root}"


class Plan(NamedTuple):
    """The plan of one batch: how to read it, and the position that the archive has reached after it."""

    group: str
    cluster: str
    options: dict[str, str]
    position: dict[str, int]
    skipped: tuple[Gap, ...]
    what: str
    renewed: frozenset[str] = frozenset()
    """Topics that were made again since the archive had read them, where that does not follow from the life
    that the archive recorded: it was written by a version that recorded none."""


def archive(
    spark: SparkSession,
    files: Files,
    source: LogSource,
    root: str,
    *,
    batch_bytes: int = BATCH_BYTES,
    batch_messages: int = BATCH_MESSAGES,
    stored_before_ms: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ArchiveResult:
    """Archive everything that is committed and not yet archived. Blocking.

    `stored_before_ms`: archive only whole segments, and of these only those whose messages were all stored
    before this time, in ms since the epoch; a later run goes on after them. `root`: a directory that driver
    and executors see under this path. Raises JobError or PySparkException.
    Batches that were archived before the error stay, and the next run resumes after them.
    """
    if source.archive:
        raise JobError("an archive cannot be the source: give store directories or --namesrv")
    if source.servers and stored_before_ms is not None:
        raise JobError("--stored-before archives whole segments: give store directories, not --namesrv")
    source.check_options("archive", SELECTION)
    selection = {name: source.options[name] for name in SELECTION if name in source.options}
    target = ArchiveFiles(files, root)
    if not target.numbers():
        source.check_topics()  # before a directory is made for it
    target.open()
    try:
        result = ArchiveResult(root, positions=dict(target.last.positions) if target.last else {})
        _check_selection(target, selection)
        source = _without_deleted(source, target, say)
        if source.servers:
            plans = _plan_queues(spark, source, target, batch_messages)
        else:
            plans = _plan_log(source, target, batch_bytes, stored_before_ms)
        for plan in plans:
            say(f"archive {plan.what}")
            batch, renewed = _write(spark, source, target, plan, selection)
            result = replace(
                result,
                batches=result.batches + 1,
                rows=result.rows + batch.rows,
                files=result.files + len(batch.files),
                positions=batch.positions,
                skipped=(*result.skipped, *((plan.group, *gap) for gap in plan.skipped)),
                renewed=(*result.renewed, *((plan.group, topic) for topic in sorted(renewed))),
            )
        return result
    finally:
        target.close()


def _without_deleted(source: LogSource, target: ArchiveFiles, say: Callable[[str], None]) -> LogSource:
    """Return the source without those topics of the option `subscribe` that were deleted since the archive
    read them: what is archived of them stays, and the other topics go on."""
    named = source.named_topics
    queues = target.last.queues if target.last else {}
    archived = {topic_of(name) for of_group in queues.values() for name in of_group}
    if not archived.intersection(named):
        source.check_topics()
        return source
    try:
        there = source.topics()
    except ClientError as error:
        raise JobError(str(error)) from error
    gone = [topic for topic in named if there is not None and topic in archived and topic not in there]
    left = [topic for topic in named if topic not in gone]
    for topic in gone:
        say(f"topic {topic} was deleted: what is archived of it stays")
    if not left:
        raise JobError(f"{', '.join(gone)} was deleted: there is nothing to archive, and the archive stays")
    chosen = replace(source, options={**source.options, "subscribe": ",".join(left)}) if gone else source
    chosen.check_topics()
    return chosen


def _check_selection(target: ArchiveFiles, selection: Mapping[str, str]) -> None:
    wanted = selected(selection)
    if target.last is not None and selected(target.last.selection) != wanted:
        was = ", ".join(f"{name}={value}" for name, value in target.last.selection.items()) or "all topics"
        raise JobError(f"{target.root} is an archive of {was}: use another directory for another selection")


def selected(selection: Mapping[str, str]) -> dict[str, object]:
    """Return the meaning of a selection, so that two spellings of it compare as equal: order, blanks and
    options without an effect do not matter. Raises JobError for a wrong value."""
    try:
        found = {name: _meaning(name, value) for name, value in selection.items()}
    except BadOption as error:
        raise JobError(str(error)) from error
    if "subscribe" in found:
        found.pop("includeSystemTopics", None)
    return {name: meant for name, meant in found.items() if meant}


def _meaning(name: str, value: str) -> object:
    match name:
        case "subscribe":
            return sorted(dict.fromkeys(values.topics(name, value)))
        case "assign":
            return values.assignment(name, value)
        case "tags":
            return sorted(values.tags(name, value))
        case "includeSystemTopics":
            return values.flag(name, value)
        case _:
            return value


def _plan_log(
    source: LogSource, target: ArchiveFiles, batch_bytes: int, stored_before_ms: int | None
) -> Iterator[Plan]:
    """Plan batches that are ranges of the log, cut between segments."""
    for replica in best_replicas(source.stores):
        group = group_name(replica)
        cluster = replica.identity.cluster if replica.identity else ""
        known = target.last.positions.get(group, {}) if target.last else {}
        if known and LOG not in known:
            raise JobError(f"{target.root} was archived from live brokers: continue with --namesrv")
        if target.last and target.last.cluster != cluster:
            raise JobError(f"{target.root} is the archive of another cluster than that of {replica.store}")
        position = known.get(LOG)
        if position is not None and position > replica.committed + 1:
            raise JobError(
                f"{target.root} holds entries up to {position - 1}, but {replica.store} knows entries "
                f"only up to {replica.committed} to be committed: wait until it has caught up, or "
                "give another replica"
            )
        begin = _first_index(replica)
        start = begin if position is None else max(position, begin)
        renewed = frozenset[str]() if position is None else _made_since(replica, start)
        skipped: tuple[Gap, ...] = ()
        if position is not None and begin > position:
            skipped = ((LOG, position, begin - 1),)
        stores = json.dumps(stores_of_group(replica, source.stores))
        for last in _cuts(replica, start, batch_bytes, _last_before(replica, stored_before_ms)):
            yield Plan(
                group,
                cluster,
                {"path": stores, "indexRanges": f"{start}-{last}"},
                {LOG: last + 1},
                skipped,
                f"{group or 'log'}: index {start} to {last} of {replica.committed}",
                renewed,
            )
            start, skipped = last + 1, ()


def _made_since(replica: Replica, index: int) -> frozenset[str]:
    """Return the topics that were deleted by this entry or a later one, and perhaps made again."""
    with closing(IndexUnits(files_for(replica.directory), replica)) as units:
        position = units.position(index)
    if position is None:
        return frozenset()
    lives = log_topics(replica, held_state(replica), replica.committed).lives
    return frozenset(topic for topic in lives.of if lives.begin(topic) >= position)


def _first_index(replica: Replica) -> int:
    if not replica.segments:
        return replica.base_index + 1
    first = replica.segments[0].first_index
    if first is None:
        raise JobError(f"{replica.store}: the first entry cannot be read: run the audit")
    return first


def _last_before(replica: Replica, stored_before_ms: int | None) -> int:
    """Return the last entry to archive: the last committed one, or the last of the segments whose messages
    were all stored before this time. Raises JobError."""
    if stored_before_ms is None:
        return replica.committed
    if replica.identity is None:
        raise JobError(
            f"{replica.store}: --stored-before needs messages in the order of their store times, which a log "
            "of Apache RocketMQ does not have"
        )
    last = _first_index(replica) - 1
    for task in segment_tasks(replica)[1:]:
        stored = first_store_ms(files_for(replica.directory), task)
        if stored is not None and stored >= stored_before_ms:
            break
        if stored is not None and task.first_index <= replica.committed:
            last = task.first_index - 1
    return last


def _cuts(replica: Replica, start: int, batch_bytes: int, end: int) -> Iterator[int]:
    """Divide the log from index `start` to `end` into batches. Yields the last index of each batch."""
    size = 0
    for segment, following in zip(replica.segments, replica.segments[1:], strict=False):
        after = following.first_index
        if after is None or after <= start or after > end:
            continue
        size += segment.size
        if size >= batch_bytes:
            yield after - 1
            start, size = after, 0
    if start <= end:
        yield end


def _plan_queues(
    spark: SparkSession, source: LogSource, target: ArchiveFiles, batch_messages: int
) -> Iterator[Plan]:
    """Plan batches that are ranges of queue offsets. Each queue gets its share of a batch."""
    bounds = source.queues(spark, includeLife="true")
    ends: dict[str, dict[Queue, tuple[int, int]]] = {}
    now: dict[str, dict[str, str]] = {}
    columns = ("group", "topic", "partition", "minOffset", "maxOffset", "life")
    for group, topic, queue, low, end, life in bounds.select(*columns).collect():
        ends.setdefault(group, {})[topic, queue] = (low, end)
        now.setdefault(group, {})[topic] = life
    for group in sorted(ends):
        position = dict(target.last.positions.get(group, {})) if target.last else {}
        if LOG in position:
            raise JobError(f"{target.root} was archived from store directories: continue with those")
        known = target.last.lives.get(group, {}) if target.last else {}
        renewed = renewed_queues(ends[group], position, known, now[group])
        position = {name: at for name, at in position.items() if topic_of(name) not in renewed}
        while shares := _share(ends[group], position, batch_messages):
            assigned: dict[str, list[int]] = {}
            for topic, queue in shares:
                assigned.setdefault(topic, []).append(queue)
            starts = [(f"{topic}/{queue}", start) for (topic, queue), (start, _) in shares.items()]
            gaps = tuple(
                (name, position[name], start - 1)
                for name, start in starts
                if position.get(name, start) < start
            )
            position.update((f"{topic}/{queue}", end) for (topic, queue), (_, end) in shares.items())
            options = {
                "group": group,
                "assign": json.dumps(assigned),
                "startingOffsets": _offsets({key: start for key, (start, _) in shares.items()}),
                "endingOffsets": _offsets({key: end for key, (_, end) in shares.items()}),
            }
            count = sum(end - start for start, end in shares.values())
            what = f"{group}: {count} messages of {len(shares)} queues"
            yield Plan(group, "", options, dict(position), gaps, what, renewed)
            renewed = frozenset()


def renewed_queues(
    ends: Mapping[Queue, tuple[int, int]],
    position: Mapping[str, int],
    known: Mapping[str, str],
    now: Mapping[str, str | None],
) -> frozenset[str]:
    """Return the topics that were made again since the archive read them: those with another life. Where the
    archive recorded none, a topic with a queue that ends before the archived offset."""
    found = set()
    for (topic, queue), (_, end) in ends.items():
        recorded, life = known.get(topic), now.get(topic)
        if recorded is None or life is None:
            if position.get(f"{topic}/{queue}", 0) > end:
                found.add(topic)
        elif recorded != life:
            found.add(topic)
    return frozenset(found)


def _share(
    bounds: Mapping[Queue, tuple[int, int]], position: Mapping[str, int], limit: int
) -> dict[Queue, tuple[int, int]]:
    """Return the range of offsets [start, end) of each queue in the next batch. The batch is divided among
    the queues in proportion to the number of their new messages."""
    backlog = {}
    for (topic, queue), (lowest, end) in sorted(bounds.items()):
        start = max(position.get(f"{topic}/{queue}", lowest), lowest)
        if start < end:
            backlog[topic, queue] = (start, end)
    total = sum(end - start for start, end in backlog.values())
    part = min(1.0, limit / total) if total else 1.0
    return {key: (start, start + max(1, int((end - start) * part))) for key, (start, end) in backlog.items()}


def _offsets(of: Mapping[Queue, int]) -> str:
    table: dict[str, dict[str, int]] = {}
    for (topic, queue), offset in of.items():
        table.setdefault(topic, {})[str(queue)] = offset
    return json.dumps(table)


def _write(
    spark: SparkSession, source: LogSource, target: ArchiveFiles, plan: Plan, selection: Mapping[str, str]
) -> tuple[Batch, frozenset[str]]:
    """Read a batch, stage it, check it and commit it. Return it with the topics that were made again since
    the batch before."""
    last, number = target.last, target.next_number
    other = {name: value for name, value in source.options.items() if name not in TOPIC_CHOICE}
    chosen = replace(source, options=other) if "assign" in plan.options else source
    frame = chosen.read(spark, **plan.options, includeHeaders="true", includeLife="true")
    _stage(frame, plan.group, target.staging(number))
    checked = _checked_queues(spark, target, plan, whole="tags" not in selected(selection))
    batch = Batch(
        number=number,
        group=plan.group,
        cluster=plan.cluster,
        selection=selection,
        positions={**(last.positions if last else {}), plan.group: plan.position},
        queues={**(last.queues if last else {}), plan.group: checked.queues},
        skipped=plan.skipped,
        lives={**(last.lives if last else {}), plan.group: checked.lives},
        renewed=tuple(sorted(checked.renewed)),
    )
    whole = target.commit(batch, lambda path: int(pq.read_metadata(path).num_rows))
    return whole, checked.renewed


def _stage(frame: DataFrame, group: str, staging: str) -> None:
    """Write the batch to the staging directory. The rows of a queue are in one file, in order, and each
    topic and day has few files."""
    rows = frame.withColumn("group", F.lit(group)).withColumn("day", F.expr(DAY))
    conf = frame.sparkSession.conf
    before = conf.get(TIMESTAMPS)
    conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        _write_files(rows, staging)
    finally:
        conf.set(TIMESTAMPS, str(before))


def _write_files(rows: DataFrame, staging: str) -> None:
    (
        rows.select("topic", "day", *COLUMNS)
        .repartition("topic", "day", F.pmod(F.col("partition"), F.lit(SPREAD)))
        .sortWithinPartitions("topic", "day", "partition", "offset")
        .write.mode("overwrite")
        .partitionBy("topic", "day")
        .option("compression", "zstd")
        .option("maxRecordsPerFile", FILE_ROWS)
        .parquet(f"file://{staging}")
    )


class Checked(NamedTuple):
    """What the archive holds of a broker group after a batch: the next offset of each queue, and the life of
    each topic. `renewed`: topics that were made again since the batch before."""

    queues: dict[str, int]
    lives: dict[str, str]
    renewed: frozenset[str]


def _checked_queues(spark: SparkSession, target: ArchiveFiles, plan: Plan, *, whole: bool) -> Checked:
    """Compare the staged messages with the archive. Raises JobError if offsets are missing or occur twice."""
    schema = "`partition` int, `offset` bigint, `life` string, `topic` string, `day` date"
    files = spark.read.schema(schema).parquet(f"file://{target.staging(target.next_number)}")
    staged = files.groupBy("topic", "partition", "life")
    found = staged.agg(F.min("offset"), F.max("offset"), F.count("*"), F.count_distinct("offset")).collect()
    return checked_queues([StagedQueue(*row) for row in found], target, plan, whole=whole)


class StagedQueue(NamedTuple):
    """The staged messages of one queue and one life of its topic."""

    topic: str
    queue: int
    life: str | None
    first: int
    last: int
    messages: int
    distinct: int


def checked_queues(staged: list[StagedQueue], target: ArchiveFiles, plan: Plan, *, whole: bool) -> Checked:
    """See `_checked_queues`. `whole`: all messages of a queue are archived, and not only those with some
    tags."""
    last = target.last
    before = dict(last.queues.get(plan.group, {})) if last else {}
    known = dict(last.lives.get(plan.group, {})) if last else {}
    lives: dict[str, str | None] = {}
    for one in staged:
        if lives.setdefault(one.topic, one.life) != one.life:
            raise JobError(
                f"{plan.what}: topic {one.topic} was deleted while it was read: nothing of it was "
                "archived; run the job again"
            )
    renewed = frozenset(
        topic
        for topic, life in lives.items()
        if any(topic_of(name) == topic for name in before)
        and (topic in plan.renewed if known.get(topic) is None or life is None else known[topic] != life)
    )
    before = {name: offset for name, offset in before.items() if topic_of(name) not in renewed}

    def excused(name: str) -> bool:
        gaps = [of for of, _, _ in plan.skipped]
        return LOG in gaps or name in gaps or target.gap_since(plan.group, name)

    after = dict(before)
    for topic, queue, _, first, end, count, distinct in staged:
        name = f"{topic}/{queue}"
        wrong = ""
        if count != distinct:
            wrong = f"{count - distinct} offsets twice"
        elif whole and count != end - first + 1:
            wrong = f"{end - first + 1 - count} offsets between {first} and {end} missing"
        elif name in before and first < before[name]:
            wrong = f"offset {first} again: {before[name] - 1} is in the archive"
        elif name in before and whole and first > before[name] and not excused(name):
            wrong = f"offset {first} after {before[name] - 1}"
        if wrong:
            raise JobError(f"{plan.what}: {name}: {wrong}: nothing of it was archived; audit the store")
        after[name] = end + 1
    known.update((topic, life) for topic, life in lives.items() if life is not None)
    return Checked(after, known, renewed)
