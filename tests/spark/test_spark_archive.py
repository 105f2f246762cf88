"""Archiving to Parquet: every committed message exactly once, whatever happens in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dledger.formats.entry import Kind
from dledger.runtime.files import OsFiles
from dledger.spark.jobs.archive_files import ArchiveFiles
from dledger.spark.jobs.errors import JobError
from tests.audit.store_builder import SEGMENT_SIZE, Log, cut_after, flip, segment_path, write_store

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000


def make_log(messages: int = 900) -> Log:
    """Two topics over three days, some tags and keys, a topic that looks like a number."""
    log = Log()
    log.open_term(1)
    grow(log, messages)
    return log


def grow(log: Log, messages: int) -> None:
    first = len(log.entries)
    for number in range(first, first + messages):
        log.message(
            ("orders", "2024")[number % 3 == 0],
            b"body %05d " % number + bytes(200),
            queue_id=number % 4,
            properties=f"KEYS\x01k{number}\x02TAGS\x01{'AB'[number % 2]}\x02",
            store_timestamp=START_MS + number * 300_000,
            born_timestamp=START_MS + number * 300_000 - 7,
        )
        if number % 50 == 0:
            log.system({"op": "noise", "at": number})


@pytest.fixture(scope="module")
def log() -> Log:
    return make_log()


@pytest.fixture
def store(log: Log, tmp_path: Path) -> Path:
    return write_store(log, tmp_path / "n0")


def rewrite(log: Log, store: Path, **settings: Any) -> None:
    shutil.rmtree(store)
    write_store(log, store, **settings)


def run(
    spark: Any, root: Path, store: Path | tuple[Path, ...], files: OsFiles | None = None, **settings: Any
) -> Any:
    from dledger.spark.jobs.archive import archive
    from dledger.spark.jobs.log_source import LogSource

    options = settings.pop("options", {})
    stores = store if isinstance(store, tuple) else (store,)
    source = LogSource(stores=tuple(map(str, stores)), options=options)
    return archive(spark, files or OsFiles(), source, str(root), batch_bytes=SEGMENT_SIZE, **settings)


def rows(spark: Any, root: Path) -> list[Any]:
    """What a reader gets who knows nothing of how it was made."""
    frame = spark.read.parquet(str(root)).orderBy("logIndex")
    return [(row.logIndex, str(row.topic), row.partition, row.offset, bytes(row.value), row.key) for row in
            frame.collect()]  # fmt: skip


def expected(log: Log, up_to: int | None = None) -> Iterator[int]:
    for entry in log.entries:
        if entry.kind == Kind.MESSAGE and (up_to is None or entry.index <= up_to):
            yield entry.index


def test_messages_are_filed_by_topic_and_day(spark: Any, log: Log, store: Path, tmp_path: Path) -> None:
    from dledger.spark.jobs.log_source import LogSource

    result = run(spark, tmp_path / "archive", store)
    found = rows(spark, tmp_path / "archive")
    assert [row[0] for row in found] == list(expected(log))
    assert result.rows == len(found) and result.batches > 3 and result.exit_code == 0
    assert found[0][4].startswith(b"body 00001")
    again = LogSource(archive=str(tmp_path / "archive"), options={"topic": "2024"})
    topics = again.messages(spark, value=False, headers=False).groupBy("topic").count().collect()
    assert [tuple(row) for row in topics] == [("2024", sum(row[1] == "2024" for row in found))]
    days = sorted(path.name for path in (tmp_path / "archive" / "topic=orders").iterdir())
    assert days[:2] == ["day=2023-11-14", "day=2023-11-15"]
    one = spark.read.parquet(str(tmp_path / "archive")).where("topic = 'orders' and day = '2023-11-15'")
    assert {row.day for row in one.selectExpr("date_format(storeTimestamp, 'yyyy-MM-dd') day").collect()} == {
        "2023-11-15"
    }
    assert set(one.columns) >= {"headers", "tags", "flag", "group", "timestamp", "logTerm"}
    others_read_the_same(tmp_path / "archive", store, len(found))
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96", "the user's setting is kept"


def others_read_the_same(archive: Path, store: Path, rows: int) -> None:
    """Other programs read the archive as the page says, and its times fit those of other reads."""
    pandas, polars, duckdb = map(pytest.importorskip, ("pandas", "polars", "duckdb"))
    import pyarrow.dataset

    import dledger

    table = pyarrow.dataset.dataset(archive, partitioning="hive").to_table()
    whole = dledger.read(store).read_all()
    assert table.num_rows == rows
    for name in ("timestamp", "storeTimestamp"):
        assert table.schema.field(name).type == whole.schema.field(name).type
    frame = pandas.read_parquet(archive)
    assert (frame["storeTimestamp"].max() >= whole.to_pandas()["storeTimestamp"]).all()
    pattern = f"{archive}/topic=*/day=*/*.parquet"
    assert polars.scan_parquet(pattern, hive_partitioning=True).collect().height == rows
    query = f"SELECT count(*) FROM read_parquet('{pattern}', hive_partitioning = true)"
    assert duckdb.sql(query).fetchall() == [(rows,)]


@pytest.mark.smoke
def test_a_second_run_adds_only_what_is_new(spark: Any, tmp_path: Path) -> None:
    log = make_log(400)
    store = write_store(log, tmp_path / "n0", committed=300)
    first = run(spark, tmp_path / "archive", store)
    assert first.positions == {"g0": {"log": 301}}
    again = run(spark, tmp_path / "archive", store)
    assert (again.batches, again.rows) == (0, 0) and again.positions == first.positions
    grow(log, 300)
    rewrite(log, store)
    run(spark, tmp_path / "archive", store)
    assert [row[0] for row in rows(spark, tmp_path / "archive")] == list(expected(log))


class Crash(BaseException):
    """The process is gone."""


class DyingFiles(OsFiles):
    """Dies at the rename number `at`: a record's, or a data file's."""

    def __init__(self, at: int) -> None:
        self.left = at

    def rename(self, old: str, new: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash
        super().rename(old, new)


@pytest.mark.smoke
def test_killed_anywhere_and_run_again_the_rows_are_the_same(
    spark: Any, log: Log, store: Path, tmp_path: Path
) -> None:
    root = tmp_path / "archive"
    deaths = 0
    for at in (0, 1, 2, 0, 5, 3):
        try:
            run(spark, root, store, DyingFiles(at))
        except Crash:
            deaths += 1
        found = [row[0] for row in rows(spark, root)] if any(root.glob("topic=*/*/*.parquet")) else []
        assert len(set(found)) == len(found), "never twice"
    assert deaths == 6
    run(spark, root, store)
    assert [row[0] for row in rows(spark, root)] == list(expected(log))


def test_what_retention_took_before_is_told(spark: Any, tmp_path: Path) -> None:
    """A queue that lost messages may get its next one batches later."""
    from dledger.spark.jobs.accounting import account
    from dledger.spark.jobs.log_source import LogSource

    log = Log()
    log.open_term(1)
    for messages in (100, 300, 500):  # of `rare` one is archived, one is lost, one is in the last batch
        grow(log, messages)
        log.message("rare", b"rare")
    root, store = tmp_path / "archive", write_store(log, tmp_path / "n0")
    part = log.copy()
    cut_after(store, part, 150)
    assert run(spark, root, store).positions == {"g0": {"log": 151}}
    rewrite(log, store)
    gone = [start for start in log.segments if start < 3 * SEGMENT_SIZE]
    for start in gone:
        segment_path(store, start).unlink()
    begin = next(entry.index for entry in log.entries if entry.pos == 3 * SEGMENT_SIZE)
    result = run(spark, root, store)
    assert result.skipped == (("g0", "log", 151, begin - 1),) and result.exit_code == 1
    assert "deleted by retention" in "\n".join(result.lines())
    kept = [index for index in expected(log) if index <= 150 or index >= begin]
    assert [row[0] for row in rows(spark, root)] == kept
    rare = [row for row in rows(spark, root) if row[1] == "rare"]
    assert [row[3] for row in rare] == [0, 2] and rare[0][0] < 150 < begin < rare[1][0]
    assert result.batches > 1, "the gap is told in the first of them"
    assert run(spark, root, store).exit_code == 0, "told once"
    acks = tmp_path / "acks.jsonl"
    acks.write_text('{"id": "GONE", "topic": "rare", "queueId": 0, "queueOffset": 1}')
    counts = account(spark, LogSource(archive=str(root)), str(acks)).counts
    assert counts == {"MAYBE_RETIRED": 1}, "in the gap"


def test_what_does_not_fit_the_archive_is_refused(spark: Any, log: Log, store: Path, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    run(spark, root, store)
    with pytest.raises(JobError, match="use another directory for another selection"):
        run(spark, root, store, options={"subscribe": "orders"})
    lagging = log.copy()
    cut_after(store, lagging, 100)
    with pytest.raises(JobError, match="wait until it has caught up"):
        run(spark, root, store)
    rewrite(log, store, cluster="another")
    with pytest.raises(JobError, match="another cluster"):
        run(spark, root, store)


def test_rot_stops_the_archive_and_nothing_of_the_batch_is_seen(
    spark: Any, log: Log, store: Path, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    root = tmp_path / "archive"
    bad = next(e for e in log.entries if e.kind == Kind.MESSAGE and e.pos > 2 * SEGMENT_SIZE)
    flip(store, bad, 200)
    with pytest.raises(PySparkException, match=f"index {bad.index}"):
        run(spark, root, store)
    found = [row[0] for row in rows(spark, root)]
    assert found and max(found) < bad.index
    flip(store, bad, 200)
    run(spark, root, store)
    assert [row[0] for row in rows(spark, root)] == list(expected(log))


def test_rot_does_not_stop_the_archive_if_another_replica_was_given(
    spark: Any, log: Log, store: Path, tmp_path: Path
) -> None:
    other = write_store(log, tmp_path / "n1", "n1")
    messages = [entry for entry in log.entries if entry.kind == Kind.MESSAGE]
    flip(store, messages[500], 200)
    flip(other, messages[600], 200)
    result = run(spark, tmp_path / "archive", (store, other))
    assert result.exit_code == 0
    assert [row[0] for row in rows(spark, tmp_path / "archive")] == list(expected(log))


def test_missing_offsets_are_noticed(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a source ever leave rows out in silence, the batch is not committed."""
    from dledger.spark.jobs import archive as job

    stage = job._stage
    monkeypatch.setattr(job, "_stage", lambda frame, *rest: stage(frame.where("logIndex <> 77"), *rest))
    with pytest.raises(JobError, match="missing"):
        run(spark, tmp_path / "archive", store)
    monkeypatch.setattr(job, "_stage", lambda frame, *rest: stage(frame.union(frame), *rest))
    with pytest.raises(JobError, match="twice"):
        run(spark, tmp_path / "archive", store)
    assert ArchiveFiles(OsFiles(), str(tmp_path / "archive")).numbers() == []


def by_queues(spark: Any, root: Path, store: Path, **settings: Any) -> Any:
    """As from live brokers, by ranges of queue offsets; the rows come from a directory all the same."""
    from dledger.spark.jobs.archive import archive
    from dledger.spark.jobs.log_source import LogSource

    @dataclass(frozen=True)
    class AsIfLive(LogSource):
        def read(self, spark: Any, **options: str) -> Any:
            return LogSource(stores=(str(store),), options=self.options).read(spark, **options)

    return archive(spark, OsFiles(), AsIfLive(servers="127.0.0.1:1"), str(root), **settings)


def test_queues_are_archived_in_shares(spark: Any, tmp_path: Path) -> None:
    log = make_log(400)
    store = write_store(log, tmp_path / "n0")
    first = by_queues(spark, tmp_path / "archive", store, batch_messages=150)
    assert first.batches == 3 and first.rows == 400
    assert [row[0] for row in rows(spark, tmp_path / "archive")] == list(expected(log))
    assert by_queues(spark, tmp_path / "archive", store).batches == 0
    grow(log, 200)
    rewrite(log, store)
    again = by_queues(spark, tmp_path / "archive", store)
    assert (again.batches, again.rows) == (1, 200)
    assert [row[0] for row in rows(spark, tmp_path / "archive")] == list(expected(log))
    with pytest.raises(JobError, match="continue with --namesrv"):
        run(spark, tmp_path / "archive", store)


def test_shares_are_in_proportion_and_gaps_are_told() -> None:
    from dledger.spark.jobs.archive import _share

    bounds = {("a", 0): (0, 900), ("a", 1): (50, 150), ("b", 0): (5, 5)}
    assert _share(bounds, {}, 10_000) == {("a", 0): (0, 900), ("a", 1): (50, 150)}
    assert _share(bounds, {}, 100) == {("a", 0): (0, 90), ("a", 1): (50, 60)}
    assert _share(bounds, {"a/0": 900, "a/1": 20}, 100) == {("a", 1): (50, 150)}
    assert _share(bounds, {"a/0": 900, "a/1": 150}, 100) == {}


def test_only_segments_older_than_a_time(spark: Any, log: Log, store: Path, tmp_path: Path) -> None:
    """Whole segments; a later run goes on after them."""
    middle = START_MS + len(log.entries) // 2 * 300_000
    result = run(spark, tmp_path / "archive", store, stored_before_ms=middle)
    ends = [entry.index for entry in log.entries if entry.pos % SEGMENT_SIZE == 0 and entry.pos]
    last = result.positions["g0"]["log"] - 1
    assert last + 1 in ends and 0 < last < len(log.entries) // 2
    assert last + 1 == max(index for index in ends if START_MS + index * 300_000 < middle)
    found = rows(spark, tmp_path / "archive")
    assert [row[0] for row in found] == list(expected(log, last))
    again = run(spark, tmp_path / "archive", store, stored_before_ms=middle)
    assert (again.rows, again.positions) == (0, result.positions)
    run(spark, tmp_path / "archive", store)
    assert [row[0] for row in rows(spark, tmp_path / "archive")] == list(expected(log))


def test_a_time_before_the_first_segment_archives_nothing(spark: Any, store: Path, tmp_path: Path) -> None:
    result = run(spark, tmp_path / "archive", store, stored_before_ms=START_MS)
    assert (result.rows, result.batches, result.exit_code) == (0, 0, 0)
