"""View `state` from the leader of a group: whose words the rows are, what is not taken. No Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.client import Message, MessageQueue, Producer
from dledger.client.errors import BrokerRefused, ClientError, NoBroker
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.spark.options import parse
from dledger.spark.source import view_of
from tests.client.fake_cluster import GROUP, FakeBroker, FakeCluster
from tests.client.test_sync import running
from tests.spark.views_kit import rows_of


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with running(FakeCluster(topics={"orders": 2, "none": 1})) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for _ in range(3):
                producer.send(Message("orders", b"x"), MessageQueue("orders", GROUP, 1))
        cluster.groups = ["billing", "idle"]
        cluster.offsets["billing", "orders", 1] = 2
        cluster.offsets["billing", "none", 0] = 0
        yield cluster


def ask(fake: FakeCluster, **options: str) -> list[tuple[Any, ...]]:
    rows = rows_of(view_of(parse({"servers": fake.namesrv, "view": "state", **options}, "batch")))
    return [tuple(row.values()) for row in rows]


def test_topics_groups_offsets_and_ends_come_from_the_leader(fake: FakeCluster) -> None:
    fake.lead(1, registered=False)  # NameServers do not know it yet: a follower's hint does
    head = (GROUP, "n1", None)
    rows = ask(fake)
    assert [row[:-1] for row in rows] == [
        (*head, "topic", "none", "none", None, None),
        (*head, "topic", "orders", "orders", None, None),
        (*head, "group", "billing", None, None, None),
        (*head, "group", "idle", None, None, None),
        (*head, "offset", "billing", "none", 0, 0),
        (*head, "offset", "billing", "orders", 1, 2),
        (*head, "queue", "orders", "orders", 1, 3),
    ]
    topic, group = (json.loads(row[-1]) for row in rows[1:3])
    assert (topic["read"], topic["write"], topic["perm"]) == (2, 2, 6)
    assert (group["name"], group["retry_max"]) == ("billing", 5)
    assert [row[-1] for row in rows[4:]] == [None, None, None]
    asked = [broker.requests.count(RequestCode.GET_ALL_TOPIC_CONFIG) for broker in fake.brokers]
    assert asked == [0, 1, 0]


def test_a_broker_that_does_not_say_its_node_is_told_by_its_address(fake: FakeCluster) -> None:
    fake.ours = False
    assert {row[1] for row in ask(fake)} == {fake.brokers[0].address}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (RequestCode.QUERY_CONSUMER_OFFSET, 3),
        (RequestCode.GET_MAX_OFFSET, 3),
        (RequestCode.GET_MAX_OFFSET, 6),
    ],
)
def test_rows_are_one_brokers_although_leadership_moves(
    fake: FakeCluster, moment: RequestCode, number: int
) -> None:
    """Up to the last request, which asks whether it still leads: what the old one had said counts no more."""
    asked: list[int] = []

    def move(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        asked.append(request.code)
        if broker.number == 0 and asked.count(moment) == number:
            fake.lead(2)
            fake.offsets["billing", "orders", 1] = 3
        return False

    fake.script = move
    rows = ask(fake)
    assert {row[1] for row in rows} == {"n2"}
    assert [row[7] for row in rows if row[3] == "offset" and row[5] == "orders"] == [3]


def test_nobody_leads(fake: FakeCluster) -> None:
    fake.lead(-1)
    with pytest.raises(NoBroker, match=f"no leader of {GROUP} answers"):
        ask(fake, pullTimeoutMs="300")


def test_part_of_a_table_is_not_taken_for_all(fake: FakeCluster) -> None:
    fake.kept_back = 1
    with pytest.raises(BrokerRefused, match="totalTopicNum is 3, but 2 were received"):
        ask(fake)


def test_a_group_that_is_not_there(fake: FakeCluster) -> None:
    with pytest.raises(ClientError, match=f"no broker group 'other' is registered; registered are {GROUP}"):
        ask(fake, group="other")
