"""Views of a live group through Spark, against those of its directories; and what pushdown saves there."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.audit.findings import Severity
from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.sync_consumers import PullConsumer
from dledger.client.message import Message, MessageQueue
from dledger.client.producing.sync_producer import Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group
from tests.spark.live_kit import live_group

pytestmark = pytest.mark.spark

TOPICS = {"Orders": 4, "Payments": 2}
MESSAGES = 600
TAGS = ("Aa", "BB", None)
"""The first two have the same hash."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=26000), segment_size=16 * MIB)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("live") / "group", spec)
    cluster.start()
    try:
        fill(cluster)
        yield cluster
    finally:
        cluster.stop()


def fill(group: LocalCluster) -> None:
    """Messages in all queues, and a consumer group that has committed offsets."""
    for topic, queues in TOPICS.items():
        group.create_topic(topic, queues)
    with Producer("PG_views", group.namesrv_addr) as producer:
        for number in range(MESSAGES):
            topic = ("Orders", "Payments")[number % 3 == 0]
            queue = MessageQueue(topic, group.spec.group, number % TOPICS[topic])
            producer.send(Message(topic, b"%d" % number, tags=TAGS[number % 5 % 3]), queue)
            if number % 100 == 0:
                time.sleep(0.05)
    with PullConsumer("readers", group.namesrv_addr) as consumer:
        consumer.assign(consumer.queues("Orders")[:2], start=FromWhere.FIRST)
        while not consumer.poll(0.2):
            pass
        consumer.commit()
    group.wait_caught_up()


def read(spark: Any, group: LocalCluster, **options: str) -> Any:
    return spark.read.format("dledger").option("servers", group.namesrv_addr).options(**options).load()


def directories(spark: Any, group: LocalCluster, *nodes: str, **options: str) -> Any:
    paths = json.dumps([str(group.store(node)) for node in nodes or group.spec.node_ids])
    return spark.read.format("dledger").option("path", paths).options(**options).load()


def messages_out(group: LocalCluster) -> int:
    """Messages that all brokers gave out since their start."""
    total = 0
    for node in group.spec.node_ids:
        with urllib.request.urlopen(f"http://127.0.0.1:{group.spec.http_port(node)}/metrics") as answer:
            (line,) = re.findall(r"^\w*messages_out\w* (\d+)", answer.read().decode(), re.M)
            total += int(line)
    return total


WHERE = (
    ("topic = 'Payments'", 200),
    ("topic = 'Orders' and partition = 1 and offset between 10 and 39", 30),
    ("partition = 3", 100),
    ("topic in ('Payments', 'Nothing') and offset < 5", 10),
    ("topic = 'Payments' and logIndex > 5", 200),
    ("logIndex is null and offset >= 90", 60),
    ("tags = 'Aa' and topic = 'Orders'", 320),
    ("tags is null", MESSAGES),
    ("tags <> 'Aa' or partition = 0", MESSAGES),
    ("storeTimestamp < timestamp'1999-01-01'", 0),
    ("storeTimestamp >= timestamp'1999-01-01' and topic = 'Payments'", 200),
)
"""Conditions, and how many messages are pulled for them."""


@pytest.mark.parametrize(("where", "pulled"), WHERE)
def test_pushdown_changes_what_is_pulled_and_no_row(
    spark: Any, group: LocalCluster, where: str, pulled: int
) -> None:
    columns = ["topic", "partition", "offset", "tags", "value", "storeTimestamp", "logIndex"]

    def chosen(pushdown: str) -> tuple[list[Any], int]:
        before = messages_out(group)
        frame = read(spark, group, pushdown=pushdown).where(where).select(*columns)
        return sorted(frame.collect(), key=lambda row: row[:3]), messages_out(group) - before

    rows, without = chosen("false")
    found, with_it = chosen("true")
    assert found == rows
    assert (without, with_it) == (MESSAGES, pulled)


def test_times_narrow_what_is_pulled(spark: Any, group: LocalCluster) -> None:
    times = sorted(row.storeTimestamp for row in read(spark, group).select("storeTimestamp").collect())
    middle = times[MESSAGES // 2]
    expected = [sum(when < middle for when in times), sum(when >= middle for when in times)]
    found = []
    for sign, wanted in (("<", expected[0]), (">=", expected[1])):
        before = messages_out(group)
        rows = read(spark, group).where(f"storeTimestamp {sign} timestamp'{middle}'").collect()
        found.append(len(rows))
        near = sum(abs((when - middle).total_seconds()) < 0.003 for when in times)
        assert wanted <= messages_out(group) - before <= wanted + near
    assert found == expected and 0 < found[0] < MESSAGES


def test_queues_of_some_topics_and_numbers(spark: Any, group: LocalCluster) -> None:
    where = "topic = 'Orders' and partition in (1, 2)"
    for frame in (read(spark, group, view="queues"), directories(spark, group, view="queues")):
        every = sorted(frame.collect(), key=lambda row: (row.replica or "", row.topic, row.partition))
        found = sorted(frame.where(where).collect(), key=lambda row: (row.replica or "", row.partition))
        assert found == [row for row in every if row.topic == "Orders" and row.partition in (1, 2)] != []


def test_entries_of_all_replicas(spark: Any, group: LocalCluster) -> None:
    order = ["replica", "index"]
    live = read(spark, group, view="entries", isolation="all").orderBy(order).collect()
    assert live == directories(spark, group, view="entries", isolation="all").orderBy(order).collect()
    assert {row.replica for row in live} == set(group.spec.node_ids) and len(live) > 3 * MESSAGES
    part = read(spark, group, view="entries").where("index > 20 and index <= 50").orderBy(order).collect()
    assert part == [row for row in live if 20 < row["index"] <= 50]


def test_scan_finds_nothing_in_sound_replicas(spark: Any, group: LocalCluster) -> None:
    rows = read(spark, group, view="scan").collect()
    assert not [row for row in rows if row.kind == "finding" and row.severity > Severity.INFO]
    blocks = sorted(row for row in rows if row.kind == "block")
    there = directories(spark, group, view="scan").where("kind = 'block'").collect()
    assert blocks == sorted(there) and {row.replica for row in blocks} == set(group.spec.node_ids)


def test_scan_and_entries_of_damaged_replicas(spark: Any, tmp_path: Path) -> None:
    log = sample_log(900)
    stores = write_group(log, tmp_path)
    for fault in by_names("flipped body byte", "deleted segment"):
        fault.inject(stores, log)
    paths = json.dumps([str(store) for store in stores])
    with live_group(stores) as live:

        def both(view: str, where: str) -> list[list[Any]]:
            options = {"servers": live.namesrv, "path": paths}
            frames = [
                spark.read.format("dledger").option("view", view).option(name, value).load()
                for name, value in options.items()
            ]
            return [sorted(map(str, frame.where(where).collect())) for frame in frames]

        of_live, of_paths = both("scan", "kind <> 'replica'")
        assert of_live == of_paths and "BIT_ROT" in str(of_live)
        of_live, of_paths = both("entries", "true")
        assert of_live == of_paths != []
        live.stop(1)
        down, _ = both("scan", "code = 'UNREACHABLE'")
    assert len(down) == 1 and "'n1'" in down[0]


def test_index_units_are_those_of_the_directories(spark: Any, group: LocalCluster) -> None:
    group.wait_caught_up()
    for where in ("true", "number between 100 and 140"):
        found = read(spark, group, view="index").where(where).collect()
        assert {row.replica for row in found} == set(group.spec.node_ids)
        for node in group.spec.node_ids:
            stored = directories(spark, group, node, view="index").where(where).collect()
            assert sorted(row for row in found if row.replica == node) == sorted(stored) != []


def test_state_is_that_of_the_leaders_store(spark: Any, group: LocalCluster) -> None:
    """The last test: it stops the group, so that its store says what was the last committed entry."""
    rows = read(spark, group, view="state").collect()
    leader = group.wait_leader()
    assert {row.replica for row in rows} == {leader}
    group.stop()
    stored = directories(spark, group, leader, view="state").collect()

    def known(rows: list[Any]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        return {
            (row.group, row.replica, row.kind, row.name, row.topic, row.partition): (row.offset, row.data)
            for row in rows
        }

    live, of_store = known(rows), known(stored)
    assert len(live) == len(rows) and {row.appliedIndex for row in rows} == {None}
    own = {key[3] for key in live if key not in of_store}
    spec = group.spec
    assert own == {
        *("SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "TBW102", "SCHEDULE_TOPIC_XXXX"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer"),
        *(spec.cluster, spec.group, f"{spec.cluster}_REPLY_TOPIC"),
    }, "topics of the configuration, not of the log"
    assert {key: value for key, value in live.items() if key in of_store} == of_store
    kinds = [key[2] for key in of_store]
    assert [kinds.count(kind) for kind in ("offset", "queue")] == [2, sum(TOPICS.values())]
    assert {"readers", "TOOLS_CONSUMER"} <= {key[3] for key in of_store if key[2] == "group"}
