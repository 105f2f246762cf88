"""Archive topics to Parquet, by topic and day: resumable, and every committed message exactly once.

The log is archived in batches, in its order. Each batch ends at or below the index that was committed when
it was planned. A run resumes where the last run ended, even if that run was killed (`archive_files` says
how). Before a batch is committed its queue offsets are checked: no message of a queue may be missing or
occur twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from dledger.audit.store_directory import Replica
from dledger.runtime.files import Files
from dledger.spark import option_values as values
from dledger.spark.jobs.archive_files import LOG, ArchiveFiles, Batch, Gap, Positions
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import TOPIC_CHOICE, LogSource, best_replicas, group_name, stores_of_group
from dledger.spark.option_values import BadOption

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
)
"""Columns of the files; `topic` and `day` are part of their paths."""
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
            "exit_code": self.exit_code,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        for group, of, first, last in self.skipped:
            yield f"{group}: {of} {first} to {last}: deleted by retention before it could be archived"
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


def archive(
    spark: SparkSession,
    files: Files,
    source: LogSource,
    root: str,
    *,
    batch_bytes: int = BATCH_BYTES,
    batch_messages: int = BATCH_MESSAGES,
    say: Callable[[str], None] = lambda text: None,
) -> ArchiveResult:
    """Archive everything that is committed and not yet archived. Blocking.

    `root`: a directory that driver and executors see under this path. Raises JobError or PySparkException.
    Batches that were archived before the error stay, and the next run resumes after them.
    """
    if source.archive:
        raise JobError("an archive cannot be the source: give store directories or --namesrv")
    source.check_options("archive", SELECTION)
    source.check_topics()
    selection = {name: source.options[name] for name in SELECTION if name in source.options}
    target = ArchiveFiles(files, root)
    target.open()
    try:
        result = ArchiveResult(root, positions=dict(target.last.positions) if target.last else {})
        _check_selection(target, selection)
        if source.servers:
            plans = _plan_queues(spark, source, target, batch_messages)
        else:
            plans = _plan_log(source, target, batch_bytes)
        for plan in plans:
            say(f"archive {plan.what}")
            batch = _write(spark, source, target, plan, selection)
            result = replace(
                result,
                batches=result.batches + 1,
                rows=result.rows + batch.rows,
                files=result.files + len(batch.files),
                positions=batch.positions,
                skipped=(*result.skipped, *((plan.group, *gap) for gap in plan.skipped)),
            )
        return result
    finally:
        target.close()


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


def _plan_log(source: LogSource, target: ArchiveFiles, batch_bytes: int) -> Iterator[Plan]:
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
        skipped: tuple[Gap, ...] = ()
        if position is not None and begin > position:
            skipped = ((LOG, position, begin - 1),)
        stores = json.dumps(stores_of_group(replica, source.stores))
        for last in _cuts(replica, start, batch_bytes):
            yield Plan(
                group,
                cluster,
                {"path": stores, "indexRanges": f"{start}-{last}"},
                {LOG: last + 1},
                skipped,
                f"{group or 'log'}: index {start} to {last} of {replica.committed}",
            )
            start, skipped = last + 1, ()


def _first_index(replica: Replica) -> int:
    if not replica.segments:
        return replica.base_index + 1
    first = replica.segments[0].first_index
    if first is None:
        raise JobError(f"{replica.store}: the first entry cannot be read: run the audit")
    return first


def _cuts(replica: Replica, start: int, batch_bytes: int) -> Iterator[int]:
    """Divide the log from index `start` to the last committed entry into batches. Yields the last index of
    each batch."""
    size = 0
    for segment, following in zip(replica.segments, replica.segments[1:], strict=False):
        after = following.first_index
        if after is None or after <= start or after > replica.committed:
            continue
        size += segment.size
        if size >= batch_bytes:
            yield after - 1
            start, size = after, 0
    if start <= replica.committed:
        yield replica.committed


def _plan_queues(
    spark: SparkSession, source: LogSource, target: ArchiveFiles, batch_messages: int
) -> Iterator[Plan]:
    """Plan batches that are ranges of queue offsets. Each queue gets its share of a batch."""
    bounds = source.queues(spark)
    ends: dict[str, dict[Queue, tuple[int, int]]] = {}
    for row in bounds.select("group", "topic", "partition", "minOffset", "maxOffset").collect():
        ends.setdefault(row[0], {})[row[1], row[2]] = (row[3], row[4])
    for group in sorted(ends):
        position = dict(target.last.positions.get(group, {})) if target.last else {}
        if LOG in position:
            raise JobError(f"{target.root} was archived from store directories: continue with those")
        while shares := _share(ends[group], position, batch_messages):
            assigned: dict[str, list[int]] = {}
            for topic, queue in shares:
                assigned.setdefault(topic, []).append(queue)
            known = [(f"{topic}/{queue}", start) for (topic, queue), (start, _) in shares.items()]
            gaps = tuple(
                (name, position[name], start - 1)
                for name, start in known
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
            yield Plan(group, "", options, dict(position), gaps, what)


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
) -> Batch:
    """Read a batch, stage it, check it and commit it."""
    last, number = target.last, target.next_number
    other = {name: value for name, value in source.options.items() if name not in TOPIC_CHOICE}
    chosen = replace(source, options=other) if "assign" in plan.options else source
    frame = chosen.read(spark, **plan.options, includeHeaders="true")
    _stage(frame, plan.group, target.staging(number))
    before = dict(last.queues.get(plan.group, {})) if last else {}
    queues = _checked_queues(spark, target, before, plan, whole="tags" not in selected(selection))
    batch = Batch(
        number=number,
        group=plan.group,
        cluster=plan.cluster,
        selection=selection,
        positions={**(last.positions if last else {}), plan.group: plan.position},
        queues={**(last.queues if last else {}), plan.group: queues},
        skipped=plan.skipped,
    )
    return target.commit(batch, lambda path: int(pq.read_metadata(path).num_rows))


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


def _checked_queues(
    spark: SparkSession, target: ArchiveFiles, before: dict[str, int], plan: Plan, *, whole: bool
) -> dict[str, int]:
    """Return the next offset of each queue after this batch. Raises JobError if offsets are missing or
    occur twice."""

    def excused(name: str) -> bool:
        gaps = [of for of, _, _ in plan.skipped]
        return LOG in gaps or name in gaps or target.gap_since(plan.group, name)

    schema = "`partition` int, `offset` bigint, `topic` string, `day` date"
    files = spark.read.schema(schema).parquet(f"file://{target.staging(target.next_number)}")
    staged = files.groupBy("topic", "partition")
    found = staged.agg(F.min("offset"), F.max("offset"), F.count("*"), F.count_distinct("offset")).collect()
    after = dict(before)
    for topic, queue, first, last, count, distinct in found:
        name = f"{topic}/{queue}"
        wrong = ""
        if count != distinct:
            wrong = f"{count - distinct} offsets twice"
        elif whole and count != last - first + 1:
            wrong = f"{last - first + 1 - count} offsets between {first} and {last} missing"
        elif name in before and first < before[name]:
            wrong = f"offset {first} again: {before[name] - 1} is in the archive"
        elif name in before and whole and first > before[name] and not excused(name):
            wrong = f"offset {first} after {before[name] - 1}"
        if wrong:
            raise JobError(f"{plan.what}: {name}: {wrong}: nothing of it was archived; audit the store")
        after[name] = last + 1
    return after
