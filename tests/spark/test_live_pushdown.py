"""Filters over live brokers: what is not pulled for them, and that no row is missing. No Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from dledger.client import Message, MessageQueue, Producer, TopicNotFound
from dledger.client.bulk.range_puller import RangePuller
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import PullMessageHeader
from dledger.remoting.server import Connection
from dledger.spark.offsets import DataLost
from dledger.spark.option_values import BadOption
from dledger.spark.options import parse
from dledger.spark.pushdown import push
from dledger.spark.source import view_of
from tests.client.fake_cluster import GROUP, STORED_AT_MS, FakeBroker, FakeCluster
from tests.client.test_sync import running
from tests.spark.views_kit import rows_of

TOPICS = {"orders": 3, "payments": 2}
TAGS = ("Aa", "BB", None, " odd|")
"""The first two have the same hash, and the last one cannot be named in an expression."""
MESSAGES = 40
"""Messages of each queue."""
FIRST_MS = STORED_AT_MS
"""Store time of the first message of each queue in the fake; each later one is 1 ms later."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeCluster]:
    with running(FakeCluster(topics=TOPICS)) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for topic, queues in TOPICS.items():
                for number in range(queues * MESSAGES):
                    tag = TAGS[number // queues % len(TAGS)]
                    message = Message(topic, b"%d" % number)
                    message.tags = tag  # as a copy, which has what other clients gave it
                    producer.send(message, MessageQueue(topic, GROUP, number % queues))
        yield cluster


class Spy:
    """What brokers were asked: `pulled` has topic, queue and offset of each message that a pull asked for."""

    def __init__(self, fake: FakeCluster) -> None:
        self.pulled: set[tuple[str, int, int]] = set()
        self.expressions: set[str] = set()
        self.asked: list[int] = []
        fake.script = self._note

    def _note(self, broker: FakeBroker, connection: Connection, request: Request) -> bool:
        self.asked.append(request.code)
        if request.code == RequestCode.PULL_MESSAGE:
            header = request.header(PullMessageHeader)
            first, count = header.queueOffset, header.maxMsgNums
            self.pulled |= {(header.topic, header.queueId, at) for at in range(first, first + count)}
            self.expressions.add(header.subscription)
        return False


def at(millisecond: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=FIRST_MS + millisecond)


def ask(fake: FakeCluster, *filters: Any, **options: str) -> tuple[list[Row], list[Any], Spy]:
    """Rows with filters pushed down, the filters left to Spark, and what was asked."""
    parsed = parse({"servers": fake.namesrv, "subscribe": ",".join(TOPICS), **options}, "batch")
    pushed, rest = push(parsed.view, filters, all_rows=parsed.corrupt_records == "include", live=True)
    spy = Spy(fake)
    view: Any = view_of(parsed)
    found = rows_of(replace(view, pushed=pushed))
    fake.script = None
    return sorted(found, key=place), rest, spy


def place(row: Row) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row.get("offset", 0)


CASES: list[tuple[list[Any], Callable[[Row], bool]]] = [
    ([EqualTo(("topic",), "payments")], lambda row: row["topic"] == "payments"),
    ([In(("topic",), ("payments", "none"))], lambda row: row["topic"] == "payments"),
    ([EqualTo(("topic",), "none")], lambda row: False),
    ([EqualTo(("partition",), 1)], lambda row: row["partition"] == 1),
    ([GreaterThan(("partition",), 1)], lambda row: row["partition"] == 2),
    ([GreaterThanOrEqual(("offset",), 35)], lambda row: row["offset"] >= 35),
    (
        [EqualTo(("topic",), "orders"), LessThan(("partition",), 1), LessThanOrEqual(("offset",), 7)],
        lambda row: row["topic"] == "orders" and row["partition"] == 0 and row["offset"] <= 7,
    ),
    ([EqualTo(("offset",), 900)], lambda row: False),
]


@pytest.mark.parametrize(("filters", "wanted"), CASES)
def test_what_is_excluded_is_not_pulled(
    fake: FakeCluster, filters: list[Any], wanted: Callable[[Row], bool]
) -> None:
    every, _, whole = ask(fake)
    assert len(every) == len(whole.pulled) == MESSAGES * sum(TOPICS.values())
    found, rest, spy = ask(fake, *filters)
    expected = [row for row in every if wanted(row)]
    assert rest == [] and found == expected
    assert spy.pulled == {place(row) for row in expected} < whole.pulled


@pytest.mark.parametrize("view", ["messages", "queues"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group": f"{GROUP}x"}, f"there is no broker group '{GROUP}x': did you mean '{GROUP}'"),
        ({"group": f"{GROUP},other"}, "there is no broker group 'other'"),
        ({"assign": '{"orders": [0, 9]}'}, "topic orders has no queue 9; its queues are 0, 1, 2"),
    ],
)
def test_what_the_brokers_do_not_have_is_not_read_as_nothing(
    fake: FakeCluster, view: str, options: dict[str, str], text: str
) -> None:
    wanted = parse({"servers": fake.namesrv, "view": view, **options}, "batch")
    with pytest.raises(BadOption, match=text):
        rows_of(view_of(wanted))


@pytest.mark.parametrize("options", [{"subscribe": "order"}, {"assign": '{"order": [0]}'}])
def test_a_reader_is_told_which_topics_there_are(
    fake: FakeCluster, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RangePuller, "topics", lambda self: [*TOPICS, "TBW102"])
    wanted = parse({"servers": fake.namesrv, **options}, "batch")
    with pytest.raises(
        TopicNotFound, match="no broker serves the topic 'order': did you mean 'orders'"
    ) as told:
        rows_of(view_of(wanted))
    assert "create" not in str(told.value)


def test_no_broker_is_asked_about_excluded_queues(fake: FakeCluster) -> None:
    for view in ("messages", "queues"):
        every, _, whole = ask(fake, view=view)
        found, rest, spy = ask(fake, EqualTo(("topic",), "payments"), EqualTo(("partition",), 1), view=view)
        assert rest == [] and found == [row for row in every if place(row)[:2] == ("payments", 1)] != []
        ends = (whole.asked.count(RequestCode.GET_MAX_OFFSET), spy.asked.count(RequestCode.GET_MAX_OFFSET))
        assert ends == (sum(TOPICS.values()), 1)


@pytest.mark.parametrize(
    ("tags", "expression"),
    [(("Aa",), "Aa"), (("Aa", "none"), "Aa || none"), ((" odd|", "Aa"), "*"), (("*",), "*")],
)
def test_tags_are_the_brokers_to_choose_and_ours_to_check(
    fake: FakeCluster, tags: tuple[str, ...], expression: str
) -> None:
    every, _, _ = ask(fake)
    found, rest, spy = ask(fake, In(("tags",), tags))
    assert rest == [] and found == [row for row in every if row["tags"] in tags]
    assert spy.expressions == {expression}
    both, _, spy = ask(fake, In(("tags",), tags), tags="Aa||BB")
    assert both == [row for row in every if row["tags"] == "Aa" and "Aa" in tags]
    assert spy.expressions == ({"Aa"} if "Aa" in tags else set())


def test_tags_that_are_there_or_not_are_for_spark_to_tell(fake: FakeCluster) -> None:
    _, rest, spy = ask(fake, IsNotNull(("tags",)))
    assert rest == [IsNotNull(("tags",))] and spy.expressions == {"*"}


def test_messages_of_system_topics_are_not_chosen_by_hash() -> None:
    from dledger.spark.live_queues import _expression

    assert _expression(frozenset("A"), ["orders"]) == "A"
    assert _expression(frozenset("A"), ["orders", "SCHEDULE_TOPIC_XXXX"]) == "*"


TIMES: list[tuple[list[Any], int, int]] = [
    ([GreaterThan(("storeTimestamp",), at(30))], 31, MESSAGES),
    ([LessThan(("storeTimestamp",), at(5))], 0, 5),
    ([GreaterThanOrEqual(("storeTimestamp",), at(10)), LessThanOrEqual(("storeTimestamp",), at(12))], 10, 13),
    ([GreaterThan(("storeTimestamp",), at(500))], MESSAGES, MESSAGES),
]


@pytest.mark.parametrize(("filters", "first", "end"), TIMES)
@pytest.mark.parametrize("ours", [True, False])
def test_times_narrow_what_is_pulled_where_they_never_go_back(
    fake: FakeCluster, filters: list[Any], first: int, end: int, ours: bool
) -> None:
    every, _, whole = ask(fake)
    fake.ours = ours
    found, rest, spy = ask(fake, *filters)
    fake.ours = True
    assert rest == filters, "Spark compares: times of messages are in milliseconds"
    wanted = {place(row) for row in every if first <= row["offset"] < end}
    assert wanted <= {place(row) for row in found}
    if ours:  # bounds in whole milliseconds are a little wide
        assert wanted <= spy.pulled and len(spy.pulled) <= len(wanted) + 4 * sum(TOPICS.values())
        assert {place(row) for row in found} <= spy.pulled
    else:
        assert spy.pulled == whole.pulled


def test_columns_that_brokers_do_not_tell_are_for_spark_to_judge(fake: FakeCluster) -> None:
    filters = [GreaterThan(("logIndex",), 3), IsNotNull(("logIndex",))]
    assert ask(fake, *filters)[1] == filters
    pushed, rest = push("messages", filters, all_rows=False)
    assert rest == [] and pushed.index.low == 4


def test_all_filters_are_sparks_where_rows_may_lack_a_topic(fake: FakeCluster) -> None:
    filters = [EqualTo(("topic",), "payments")]
    found, rest, spy = ask(fake, *filters, corruptRecords="include")
    assert rest == filters and len(found) == len(spy.pulled) == MESSAGES * sum(TOPICS.values())


def test_offsets_by_name_are_checked_although_filters_exclude_them(fake: FakeCluster) -> None:
    start = '{"orders": {"1": 30}, "payments": {"0": 38}}'
    found, _, spy = ask(fake, EqualTo(("topic",), "payments"), startingOffsets=start)
    assert {place(row) for row in found} == spy.pulled
    assert spy.pulled == {
        ("payments", 0, 38),
        ("payments", 0, 39),
        *(("payments", 1, n) for n in range(MESSAGES)),
    }
    with pytest.raises(DataLost, match="orders/1: offset 999 is outside"):
        ask(fake, EqualTo(("topic",), "payments"), startingOffsets='{"orders": {"1": 999}}')
