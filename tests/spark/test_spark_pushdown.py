"""Filters: what they leave unread, what they leave out, and that the rows are those of Spark's own filter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dledger.formats.entry import HEADER_SIZE
from dledger.formats.record import STORE_TIMESTAMP_AT
from tests.audit.store_builder import SEGMENT_SIZE, Log, flip, write_store
from tests.spark.views_kit import messages_of, planned, rows_of, view

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGES = 1500


def at(number: int) -> datetime:
    return START + timedelta(seconds=number)


@pytest.fixture(scope="module")
def log() -> Log:
    log = Log()
    log.open_term(1)
    for number in range(MESSAGES):
        at_ms = int(at(number).timestamp() * 1000)
        log.message(
            ("orders", "payments", "returns")[number % 3],
            b"message %05d" % number + bytes(150),
            queue_id=number % 2,
            store_timestamp=at_ms,
            born_timestamp=at_ms - 3,
            properties=f"TAGS\x01{'AB'[number % 2]}\x02" if number % 5 else "",
        )
    return log


@pytest.fixture(scope="module")
def store(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(log, tmp_path_factory.mktemp("store") / "n0", committed=MESSAGES - 20)


def narrowed(view: Any, *filters: Any) -> tuple[Any, list[Any]]:
    """The view with filters pushed down, and those that Spark must still apply."""
    from dledger.spark.pushdown import push

    pushed, rest = push(view.options.view, filters, all_rows=False)
    return replace(view, pushed=pushed), rest


def test_a_range_of_the_log_reads_its_segments_only(log: Log, store: Path) -> None:
    from pyspark.sql.datasource import GreaterThan, LessThanOrEqual

    whole = view(store)
    part, rest = narrowed(whole, GreaterThan(("logIndex",), 700), LessThanOrEqual(("logIndex",), 820))
    assert rest == []
    wanted = {entry.pos // SEGMENT_SIZE * SEGMENT_SIZE for entry in log.entries if 700 < entry.index <= 820}
    assert {piece.task.start for piece in planned(part)} == wanted
    assert len(wanted) < len({piece.task.start for piece in planned(whole)})
    size = sum(entry.size for entry in log.entries if 700 < entry.index <= 820)
    assert size <= sum(piece.bytes for piece in planned(part)) <= size + 1024
    assert rows_of(part) == [row for row in rows_of(whole) if 700 < row["logIndex"] <= 820]
    entries, rest = narrowed(view(store, view="entries"), GreaterThan(("index",), 1400))
    assert rest == [] and [row["index"] for row in rows_of(entries)] == list(range(1401, MESSAGES - 19))


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({"startingTimestamp": 1000}, 1000, MESSAGES),
        ({"endingTimestamp": 300}, 0, 300),
        ({"startingTimestamp": 600, "endingTimestamp": 700}, 600, 700),
        ({"startingTimestamp": 5000}, MESSAGES, MESSAGES),
    ],
)
def test_a_span_of_time_reads_its_segments_only(
    log: Log, store: Path, options: dict[str, int], first: int, end: int
) -> None:
    whole = view(store)
    part = view(store, **{name: str(int(at(number).timestamp() * 1000)) for name, number in options.items()})
    positions = {entry.pos // SEGMENT_SIZE * SEGMENT_SIZE for entry, _ in list(messages_of(log))[first:end]}
    read = {piece.task.start for piece in planned(part)}
    assert positions - {max(log.segments)} <= read and len(read) <= len(positions) + 1
    assert len(read) < len({piece.task.start for piece in planned(whole)})
    assert rows_of(part) == [row for row in rows_of(whole) if at(first) <= row["storeTimestamp"] < at(end)]


def test_a_time_that_no_crc_vouches_for_leaves_nothing_out(log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    cut = str(int(at(1000).timestamp() * 1000))
    expected = rows_of(view(store, endingTimestamp=cut))
    edge = next(entry for entry in log.entries if entry.pos == SEGMENT_SIZE)
    flip(store, edge, HEADER_SIZE + STORE_TIMESTAMP_AT + 1)
    rows = rows_of(view(store, endingTimestamp=cut, corruptRecords="skip"))
    assert rows == [row for row in expected if row["logIndex"] != edge.index]


def test_system_entries_keep_every_segment(store: Path) -> None:
    cut = str(int(at(1400).timestamp() * 1000))
    options = {"startingTimestamp": cut, "includeSystemTopics": "true"}
    assert len(planned(view(store, **options))) == len(planned(view(store)))


def test_what_is_not_wanted_does_not_leave_the_task(store: Path) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

    rows = rows_of(view(store))
    cases: list[tuple[list[Any], Callable[[dict[str, Any]], bool]]] = [
        ([EqualTo(("topic",), "orders")], lambda row: row["topic"] == "orders"),
        ([In(("topic",), ("orders", "none"))], lambda row: row["topic"] == "orders"),
        (
            [EqualTo(("partition",), 1), LessThan(("offset",), 9)],
            lambda row: row["partition"] == 1 > row["offset"] - 8,
        ),
        ([GreaterThanOrEqual(("offset",), 200)], lambda row: row["offset"] >= 200),
        ([EqualTo(("tags",), "A")], lambda row: row["tags"] == "A"),
    ]
    for filters, wanted in cases:
        part, rest = narrowed(view(store), *filters)
        expected = [row for row in rows if wanted(row)]
        assert rest == [] and 0 < len(expected) < len(rows)
        assert rows_of(part) == expected


def test_queues_that_are_not_wanted_are_not_looked_at(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.datasource import EqualTo, In

    from dledger.spark.queues import QueueFiles

    every = rows_of(view(store, view="queues"))
    looked: list[tuple[str, int]] = []
    units = QueueFiles.units

    def noted(files: QueueFiles, topic: str, queue_id: int) -> Any:
        looked.append((topic, queue_id))
        return units(files, topic, queue_id)

    monkeypatch.setattr(QueueFiles, "units", noted)
    part, rest = narrowed(view(store, view="queues"), In(("topic",), ("orders",)), EqualTo(("partition",), 1))
    found = rows_of(part)
    assert rest == [] and found == [row for row in every if (row["topic"], row["partition"]) in looked]
    assert looked == [("orders", 1)] and len(every) == 6


WHERE = (
    "topic = 'orders' and partition = 1 and offset between 10 and 60",
    "logIndex > 700 and logIndex <= 1100 and tags = 'A'",
    "storeTimestamp >= timestamp'2026-01-01 00:10:00' and storeTimestamp < timestamp'2026-01-01 00:10:30.5'",
    "topic in ('orders', 'returns') and tags is null and offset < 30",
    "tags <> 'A' and partition <> 0 and topic like 'ret%'",
    "logIndex = 77 or offset = 3",
)


def test_spark_gets_the_rows_that_it_would_have_chosen(spark: Any, store: Path) -> None:
    columns = ["topic", "partition", "offset", "tags", "value", "storeTimestamp", "logIndex"]

    def chosen(where: str, pushdown: str) -> list[Any]:
        frame = spark.read.format("dledger").option("path", str(store)).option("pushdown", pushdown).load()
        return sorted(frame.where(where).select(*columns).collect(), key=lambda row: row.logIndex)

    for where in WHERE:
        pushed = chosen(where, "true")
        assert pushed and pushed == chosen(where, "false"), where
