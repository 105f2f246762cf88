"""Options of the jobs: any spelling counts, and what a job does not apply is refused. Without a session."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from dledger.bench.big_store import write_big_group
from dledger.runtime.files import OsFiles
from dledger.spark.commands.source_arguments import source_of
from dledger.spark.jobs.accounting import account, archive_gaps, bounds_of
from dledger.spark.jobs.archive import archive, selected
from dledger.spark.jobs.archive_files import ArchiveFiles, Batch, Gap
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.lag import lag_history
from dledger.spark.jobs.log_source import LogSource
from dledger.spark.jobs.reading import read_rows
from dledger.spark.jobs.replay import replay
from dledger.spark.jobs.statistics import statistics
from tests.audit.store_builder import sample_log, write_store
from tests.command_line import options
from tests.command_line import spark as run

NO_SESSION: Any = None
STORE = ("/nowhere",)


def test_options_are_known_by_any_of_their_names() -> None:
    source = LogSource(stores=STORE, options={"TOPIC": "orders", "subExpression": "A"})
    assert source.options == {"subscribe": "orders", "tags": "A"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topik": "x"}, "did you mean 'topic'"),
        ({"topic": "x", "subscribe": "y"}, "are the same option"),
        ({"topics": " , "}, "names no topic"),
        ({"path": "/other"}, "path has no effect here: give the store directories"),
        ({"nameServer": "h:1"}, "servers has no effect here"),
        ({"view": "queues"}, "view has no effect here"),
    ],
)
def test_what_no_source_applies_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(JobError, match=text):
        LogSource(stores=STORE, options=options)


def test_an_archive_gives_the_topics_that_are_named_however_that_is_written() -> None:
    assert LogSource(archive="/a", options={"topic": "orders"}).options == {"subscribe": "orders"}
    for name in ("tags", "assign", "endingTimestamp", "pushdown", "subscribePattern"):
        with pytest.raises(JobError, match=f"{name} has no effect on an archive"):
            LogSource(archive="/a", options={name: "1"})
    with pytest.raises(JobError, match="an archive holds only messages"):
        read_rows(NO_SESSION, LogSource(archive="/a"), "queues")


@pytest.mark.parametrize(
    "name", ["endingTimestamp", "startingOffsets", "corruptRecords", "group", "isolation"]
)
def test_an_archive_records_or_refuses_what_chooses_messages(name: str) -> None:
    with pytest.raises(JobError, match=f"{name} has no effect on archive"):
        archive(NO_SESSION, OsFiles(), LogSource(stores=STORE, options={name.upper(): "1"}), "/nowhere")


@pytest.mark.parametrize("name", ["includeValue", "maxOffsetsPerTrigger", "blockRows"])
def test_jobs_refuse_what_they_do_not_apply(name: str) -> None:
    source = LogSource(stores=STORE, options={name: "1"})
    with pytest.raises(JobError, match=f"{name} has no effect on stats"):
        statistics(NO_SESSION, source)
    with pytest.raises(JobError, match=f"{name} has no effect on replay"):
        replay(NO_SESSION, source, "h:1")
    for one in (name, "tags", "corruptRecords"):
        with pytest.raises(JobError, match=f"{one} has no effect on lag"):
            lag_history(NO_SESSION, LogSource(stores=STORE, options={one: "1"}))
    with pytest.raises(JobError, match="include is only for `read`"):
        statistics(NO_SESSION, LogSource(stores=STORE, options={"corruptrecords": "Include"}))


@pytest.mark.parametrize("name", ["tags", "assign", "group", "startingTimestamp", "corruptRecords"])
def test_an_account_leaves_nothing_out(name: str) -> None:
    with pytest.raises(JobError, match=f"{name} has no effect on account, only subscribe"):
        account(NO_SESSION, LogSource(stores=STORE, options={name: "1"}), "/nowhere")


def test_what_was_consumed_is_compared_with_consumers() -> None:
    with pytest.raises(JobError, match="give these offsets"):
        account(NO_SESSION, LogSource(stores=STORE), "/nowhere", consumed="/worked")


def test_an_archive_of_some_tags_is_not_accounted_for_and_gaps_are_known(tmp_path: Path) -> None:
    target = ArchiveFiles(OsFiles(), str(tmp_path))
    target.open()

    def commit(group: str, selection: dict[str, str], skipped: tuple[Gap, ...] = ()) -> None:
        batch = Batch(target.next_number, group, "c", selection, {}, {}, (), skipped)
        target.files.mkdir(target.staging(batch.number))
        target.commit(batch, lambda path: 0)

    source = LogSource(archive=str(tmp_path))
    commit("a", {"subscribe": "orders"})
    assert archive_gaps(source) == []
    commit("b", {"tags": "*"}, (("log", 5, 9),))
    assert archive_gaps(source) == ["b"]
    commit("a", {"tags": "A"})
    with pytest.raises(JobError, match="archives only some tags"):
        archive_gaps(source)
    target.close()


def test_what_a_running_node_gets_or_deletes_meanwhile_is_out_of_bounds() -> None:
    queue, other = ("g", "t", 0), ("g", "t", 1)
    before, after = {queue: (0, 10), other: (0, 5)}, {queue: (4, 30), other: (5, 5)}
    assert bounds_of(before, {queue: (6, 12)}, after) == {queue: (4, 12), other: (5, 5)}
    assert bounds_of({}, {queue: (6, 12)}, {other: (0, 3)}) == {queue: (6, 12), other: (0, None)}


def test_a_choice_is_the_same_however_it_is_written() -> None:
    assert selected({"subscribe": "b, a"}) == selected({"subscribe": "a,b,a", "includeSystemTopics": "true"})
    assert selected({"tags": "B||A"}) == selected({"tags": "A || B"}) != selected({"tags": "A"})
    assert selected({"assign": '{"a": [1, 0]}'}) == selected({"assign": '{"a":[0,1]}'})
    assert selected({"tags": "*", "includeSystemTopics": "False"}) == {} != selected({"subscribe": "a"})
    with pytest.raises(JobError, match="is not a tag expression"):
        selected({"tags": "|"})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--option", "tags=A", "--option", "tags=B"], "option tags is given twice"),
        (["--topics", "a", "--option", "subscribe=b"], "given twice .--topics is one"),
        (["--topics", "a", "--option", "topic=b"], "are the same option"),
        (["--topics", ""], "names no topic"),
    ],
)
def test_the_command_line_takes_an_option_once(words: list[str], text: str) -> None:
    arguments = options("spark", "replay", "--archive", "/a", "--to-namesrv", "h:1", *words)
    with pytest.raises(JobError, match=text):
        source_of(arguments)


def test_account_needs_no_file_of_what_was_worked_on() -> None:
    arguments = options("spark", "account", "store", "--acknowledged", "acks.jsonl")
    assert not arguments.consumed


def test_a_topic_that_is_not_there_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    store = write_store(sample_log(60), tmp_path / "n0")
    LogSource(stores=(str(store),), options={"topics": "orders, payments"}).check_topics()
    (tmp_path / "archive" / "topic=%2525RETRY%2525g").mkdir(parents=True)
    (tmp_path / "archive" / "topic=orders").mkdir()
    kept = str(tmp_path / "archive")
    LogSource(archive=kept, options={"topics": "orders,%25RETRY%25g"}).check_topics()
    for source in (
        LogSource(stores=(str(store),), options={"topics": "orders,oders"}),
        LogSource(archive=kept, options={"topics": "oders"}),
    ):
        with pytest.raises(JobError, match=r"there is no topic 'oders': did you mean 'orders'\?"):
            source.check_topics()
        for job in (
            lambda source: statistics(NO_SESSION, source),
            lambda source: replay(NO_SESSION, source, "127.0.0.1:1", to_topic="x"),
            lambda source: read_rows(NO_SESSION, source),
        ):
            with pytest.raises(JobError, match="no topic 'oders'"):
                job(source)
    with pytest.raises(JobError, match="no topic 'oders'"):
        archive(NO_SESSION, OsFiles(), LogSource(stores=(str(store),), options={"topics": "oders"}), kept)
    LogSource(servers="127.0.0.1:1", options={"topics": "oders"}).check_topics()  # brokers say so themselves


def test_a_topic_without_a_message_is_known_from_the_state(tmp_path: Path) -> None:
    (store,), _ = write_big_group(tmp_path, 400_000, nodes=1, segment_size=1 << 18)
    shutil.rmtree(store / "consumequeue" / "topic-1")
    LogSource(stores=(str(store),), options={"topics": "topic-1"}).check_topics()
    with pytest.raises(JobError, match="there is no topic 'topic-x': did you mean"):
        LogSource(stores=(str(store),), options={"topics": "topic-x"}).check_topics()


@pytest.mark.parametrize("option", ["--lag-warning", "--max-age", "--rescan-hours"])
def test_numbers_below_zero_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", option, "-5", "/nowhere"]) == 4
    assert run(["audit", option, "soon", "/nowhere"]) == 4
    told = capsys.readouterr().err
    assert "-5 is not in the range x>=0" in told and "'soon' is not a valid integer" in told


@pytest.mark.parametrize(
    ("buckets", "width_s", "first_ms", "last_ms", "peak"),
    [
        ([(0, 60_000)], 30, 2_000, 6_000, 15_000),  # shorter than a bucket
        ([(0, 100), (10_000, 900), (20_000, 50)], 10, 5_000, 25_000, 90),
        ([(0, 5)], 1, 400, 400, 5),  # one moment counts as a second
        ([(0, 1000), (10_000, 1)], 10, 0, 10_000, 100),
    ],
)
def test_a_peak_is_a_rate_of_the_time_in_which_messages_came(
    buckets: list[tuple[int, int]], width_s: int, first_ms: int, last_ms: int, peak: float
) -> None:
    pytest.importorskip("pyspark")
    from dledger.spark.jobs.statistics import peak_rate, seconds_between

    assert peak_rate(buckets, width_s, first_ms, last_ms) == peak
    average = sum(messages for _, messages in buckets) / seconds_between(first_ms, last_ms)
    assert average <= 1.01 * peak
