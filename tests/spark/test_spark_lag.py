"""Consumer lag, from the commits in a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.formats.entry import Kind
from dledger.formats.state import ReplicatedState, offsets_op, pack_op
from tests.audit.store_builder import Log, patch, write_store
from tests.audit.test_audit_reports import read_page

START_MS = 1_700_000_000_000 // 60_000 * 60_000


def make_log() -> tuple[Log, dict[str, Any]]:
    """Ten minutes: a message a second into two queues; two groups commit now and then; one is reset.

    Segments are small: some begin with a commit.
    """
    log = Log(segment_size=1024)
    log.open_term(1)
    model = ReplicatedState()
    sent = {0: 0, 1: 0}
    seen: dict[tuple[int, str, int], tuple[int, int]] = {}
    for second in range(600):
        at = START_MS + second * 1000
        queue = second % 2
        log.message("orders", b"x", queue_id=queue, store_timestamp=at, born_timestamp=at)
        sent[queue] += 1
        model.bounds("orders", queue).next = sent[queue]
        ops = []
        if second % 30 == 20:
            ops.append(offsets_op("fast", [("orders", 0, sent[0]), ("orders", 1, sent[1])]))
        if second % 100 == 50 and second < 400:
            ops.append(offsets_op("slow", [("orders", 0, sent[0] // 2)]))
        if second == 450:
            ops.append(offsets_op("slow", [("orders", 0, 7)], reset=True))
        if second == 470:
            ops.append(offsets_op("slow", [("orders", 0, 3)]))  # too low: does not count
        if second == 480:
            ops.append({"op": "group", "at": second})  # malformed: skipped
        for op in ops:
            log.system(op, at_ms=at)
            model.apply(pack_op(op))
        for consumer in ("fast", "slow"):
            for number in (0, 1):
                offset = model.consumer_offset(consumer, "orders", number)
                if offset is not None:
                    seen[at // 60_000, consumer, number] = (sent[number], offset)
    return log, {"seen": seen, "sent": sent, "model": model}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    log, known = make_log()
    return write_store(log, tmp_path_factory.mktemp("lag") / "n0"), known


@pytest.fixture(scope="module")
def result(spark: Any, built: tuple[Path, dict[str, Any]]) -> Any:
    from dledger.spark.jobs.lag import lag_history
    from dledger.spark.jobs.log_source import LogSource

    return lag_history(spark, LogSource(stores=(str(built[0]),)), bucket_s=60, warn_above=200)


@pytest.mark.spark
def test_history_is_what_the_state_was_at_the_end_of_each_minute(result: Any, built: Any) -> None:
    found = {
        (point.time_ms // 60_000 - 1, point.consumer, point.queue): (point.end, point.consumed)
        for point in result.history
    }
    assert found == built[1]["seen"]
    begins = [entry for entry in make_log()[0].entries if entry.pos % 1024 == 0]
    assert sum(entry.kind == Kind.SYSTEM for entry in begins) > 2, "also commits that begin a segment"
    assert all(point.lag == point.end - point.consumed for point in result.history)


@pytest.mark.spark
def test_a_commit_that_is_rotten_is_not_passed_over(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from dledger.spark.jobs.lag import lag_history
    from dledger.spark.jobs.log_source import LogSource

    log, _ = make_log()
    store = write_store(log, tmp_path / "n0")
    bad = next(entry for entry in log.entries[300:] if entry.kind == Kind.SYSTEM)
    patch(store, bad.pos + bad.size - 3, b"\xff", log.segment_size)
    with pytest.raises(PySparkException, match=f"system entry {bad.index} is damaged"):
        lag_history(spark, LogSource(stores=(str(store),)), bucket_s=60)


@pytest.mark.spark
def test_now_is_the_end_of_the_log(result: Any, built: Any) -> None:
    model, sent = built[1]["model"], built[1]["sent"]
    now = {(one.consumer, one.queue): one for one in result.now}
    assert set(now) == {("fast", 0), ("fast", 1), ("slow", 0)}
    for (consumer, queue), one in now.items():
        assert one.consumed == model.consumer_offset(consumer, "orders", queue)
        assert (one.end, one.lag) == (sent[queue], sent[queue] - one.consumed)
    assert now["slow", 0].lag == 293 and now["slow", 0].behind_ms >= 540_000 - 60_000
    assert result.exit_code == 1 and result.late == [now["slow", 0]]


@pytest.mark.spark
def test_it_is_told_in_every_form(result: Any) -> None:
    text = "\n".join(result.lines())
    assert text.splitlines()[1].startswith("slow") and "1 queues more than 200 behind" in text
    page = read_page(result.page("now"))
    assert "slow on orders" in " ".join(page.shown) and "bars" in page.classes
    columns, rows = result.records()
    assert len(rows) == len(result.now) + len(result.history) and len(rows[0]) == len(columns)


@pytest.mark.spark
def test_a_group_that_never_committed_is_told(spark: Any, built: Any) -> None:
    from dledger.spark.jobs.errors import JobError
    from dledger.spark.jobs.lag import lag_history
    from dledger.spark.jobs.log_source import LogSource

    with pytest.raises(
        JobError, match="no commit of consumer group slwo in the log; groups with commits: fast, slow"
    ):
        lag_history(spark, LogSource(stores=(str(built[0]),)), consumers=("slwo",))


def test_what_is_no_commit_gives_no_event() -> None:
    pytest.importorskip("pyspark")
    from dledger.spark.jobs.offset_events import decode_events

    assert list(decode_events(1, b"")) == []
    from dledger.formats.record import system_record

    for body in (b"", b"\xc1", pack_op({"op": "topic"}), pack_op({"op": "offsets", "offsets": 7})):
        assert list(decode_events(1, system_record(body, 0, 0))) == []
    commit = system_record(pack_op(offsets_op("g", [("t", 1, 5)], reset=True)), 0, 99)
    assert list(decode_events(4, commit)) == [(4, 99, "g", "t", 1, 5, 1)]
