"""Statistics of topics, against the same worked out by hand."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.audit.store_builder import Log, write_store
from tests.audit.test_audit_reports import read_page

pytestmark = pytest.mark.spark
START_MS = 1_700_000_000_000


class Sent:
    """A log whose messages are known."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.open_term(1)
        self.sent: list[tuple[str, int, int, int, int, str]] = []
        for number in range(500):
            topic = ("orders", "clicks")[number % 5 == 0]
            queue, size, latency = (
                number % 3,
                1 + number % 250,
                number % 40 - (50 if number % 100 == 7 else 0),
            )
            tag = "ABCC"[number % 4] if topic == "orders" else ""
            stored = START_MS + number * 200
            properties = f"KEYS\x01k{number % 50}\x02" if number % 2 else ""
            properties += f"TAGS\x01{tag}\x02" if tag else ""
            self.log.message(
                topic,
                bytes(size),
                queue_id=queue,
                properties=properties,
                store_timestamp=stored,
                born_timestamp=stored - latency,
            )
            self.sent.append((topic, queue, size, latency, stored, tag))


@pytest.fixture(scope="module")
def sent() -> Sent:
    return Sent()


@pytest.fixture(scope="module")
def result(spark: Any, sent: Sent, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.statistics import statistics

    store = write_store(sent.log, tmp_path_factory.mktemp("stats") / "n0")
    return statistics(spark, LogSource(stores=(str(store),)))


@pytest.mark.parametrize("topic", ["clicks", "orders"])
def test_numbers_are_those_of_the_messages(result: Any, sent: Sent, topic: str) -> None:
    (one,) = (one for one in result.topics if one.topic == topic)
    mine = [message for message in sent.sent if message[0] == topic]
    sizes, latencies = sorted(m[2] for m in mine), sorted(m[3] for m in mine)
    assert (one.messages, one.bytes, one.queues) == (len(mine), sum(sizes), 3)
    assert (one.size_min, one.size_avg, one.size_max) == (sizes[0], round(mean(sizes), 1), sizes[-1])
    assert abs(one.size_p50 - sizes[(len(sizes) - 1) // 2]) <= 1
    assert abs(one.latency_p99_ms - latencies[int(len(latencies) * 0.99) - 1]) <= 1
    assert one.latency_max_ms == latencies[-1]
    assert one.latency_negative == sum(latency < 0 for latency in latencies)
    assert (one.first_stored_ms, one.last_stored_ms) == (mine[0][4], mine[-1][4])
    assert one.with_tag == sum(bool(m[5]) for m in mine)
    counts = [sum(m[1] == queue for m in mine) for queue in range(3)]
    assert one.queue_skew == round(max(counts) / mean(counts), 2)
    span = (mine[-1][4] - mine[0][4]) / 1000
    assert one.messages_per_s == round(len(mine) / span, 3)


def test_tags_come_the_most_frequent_first(result: Any, sent: Sent) -> None:
    (orders,) = (one for one in result.topics if one.topic == "orders")
    counts = {tag: sum(m[5] == tag and m[0] == "orders" for m in sent.sent) for tag in "ABC"}
    assert dict(orders.tags) == counts and orders.tags[0][0] == "C"


def test_keys_are_counted(result: Any) -> None:
    orders = next(one for one in result.topics if one.topic == "orders")
    assert orders.with_key == 200 and 19 <= orders.distinct_keys <= 21


def test_there_are_no_more_keys_than_messages_with_one(spark: Any, tmp_path: Path) -> None:
    """The estimate of these is 2,019."""
    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.statistics import statistics

    log = Log()
    log.open_term(1)
    for number in range(1, 6000, 3):
        log.message("payments", b"x", properties=f"KEYS\x01k{number}\x02")
    (one,) = statistics(spark, LogSource(stores=(str(write_store(log, tmp_path / "n0")),))).topics
    assert one.with_key == 2000
    assert 1900 <= one.distinct_keys <= 2000


def test_the_series_adds_up(result: Any, sent: Sent) -> None:
    assert result.bucket_s == 1
    for topic in ("orders", "clicks"):
        series = [row for row in result.series if row[0] == topic]
        assert sum(row[2] for row in series) == sum(m[0] == topic for m in sent.sent)
        assert sum(row[3] for row in series) == sum(m[2] for m in sent.sent if m[0] == topic)
        assert all(row[1] % 1000 == 0 for row in series)
    orders = next(one for one in result.topics if one.topic == "orders")
    assert max(row[2] for row in result.series if row[0] == "orders") == 4
    assert orders.messages_per_s <= orders.peak_messages_per_s == pytest.approx(4, abs=0.05)


def test_it_is_told_in_every_form(result: Any) -> None:
    text = "\n".join(result.lines())
    assert "orders" in text and "compare the clocks" in text
    shown = " ".join(read_page(result.page("now")).shown)
    assert "latency" in shown and "clicks" in shown
    columns, rows = result.records()
    assert [row[0] for row in rows] == ["clicks", "orders"] and len(columns) == len(rows[0])
    assert result.as_json()["topics"][1]["tags"]["C"] == 200


def test_no_messages_are_no_error(spark: Any, tmp_path: Path) -> None:
    from dledger.spark.jobs.log_source import LogSource
    from dledger.spark.jobs.statistics import statistics

    log = Log()
    log.open_term(1)
    none = statistics(spark, LogSource(stores=(str(write_store(log, tmp_path / "n0")),)))
    assert list(none.lines()) == ["no messages"] and none.topics == []
    read_page(none.page("now"))
