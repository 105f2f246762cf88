"""Two broker groups behind one NameServer: audited in one run, read as one source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client.consuming.sync_consumers import PullConsumer
from dledger.local.cluster import LocalCluster, wait_for
from tests.audit.report_kit import report_of
from tests.spark.groups_kit import QUEUES, plant_rot, running_group, send

TOPIC = "Orders"
MESSAGES = 40
A, B = "broker-a", "broker-b"

Sent = dict[tuple[str, int, int], bytes]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """The second one is registered at the first one's NameServer, too, which all tests ask."""
    directory = tmp_path_factory.mktemp("two")
    with (
        running_group(directory / "a", group=A) as one,
        running_group(directory / "b", group=B, registered_at=one) as two,
    ):
        yield one, two


@pytest.fixture(scope="module")
def sent(both: tuple[LocalCluster, LocalCluster]) -> Sent:
    """(group, queue, offset) -> body of the one topic that both groups serve."""
    found: Sent = {}
    for group in both:
        group.create_topic(TOPIC, QUEUES)
    wait_for(lambda: len(serving(both[0])) == 2 or None, 30, lambda: f"{serving(both[0])} serve {TOPIC}")
    for group in both:
        name = group.spec.group
        found |= send(group, TOPIC, [f"{name} says {number}".encode() for number in range(MESSAGES)])
    return found


def serving(group: LocalCluster) -> list[str]:
    """Groups that serve the topic, as the NameServer of this group says."""
    with PullConsumer("CG_groups", group.namesrv_addr) as consumer:
        return sorted({queue.broker_name for queue in consumer.queues(TOPIC)})


@pytest.fixture(scope="module")
def rotten(both: tuple[LocalCluster, LocalCluster], sent: Sent) -> str:
    """A follower of the second group on whose disk a body has rotted; the leader serves what is read."""
    node = both[1].followers_first()[0]
    plant_rot(both[1], node, sent[B, 1, 3])
    return node


@pytest.mark.parametrize(
    "engine", [pytest.param("local", marks=pytest.mark.slow), pytest.param("spark", marks=pytest.mark.spark)]
)
def test_one_audit_tells_which_group_is_damaged(
    both: tuple[LocalCluster, LocalCluster], rotten: str, engine: str
) -> None:
    namesrv = both[0].namesrv_addr
    code, report = report_of("spark", "audit", "--engine", engine, "--namesrv", namesrv)
    assert code == 2, report
    # Queues are written once a second: what is not there yet is told as information.
    assert faults(report) == [("BIT_ROT", f"{B}/{rotten}")]
    names = [f"{group}/n{number}" for group in (A, B) for number in range(3)]
    assert [replica["replica"] for replica in report["replicas"]] == names
    assert report["members"] == 6
    if engine == "local":
        code, report = report_of("spark", "audit", "--engine", engine, "--namesrv", namesrv, "--group", A)
        assert (code, faults(report), len(report["replicas"])) == (0, [], 3)
        code, report = report_of("spark", "audit", "--engine", engine, "--namesrv", namesrv, "--group", B)
        assert (code, faults(report)) == (2, [("BIT_ROT", rotten)])


def faults(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Code and replica of each finding that is more than information."""
    told = [found for found in report["findings"] if found["severity"] != "info"]
    return [(found["code"], found["replica"]) for found in told]


def read(spark: Any, both: tuple[LocalCluster, LocalCluster], **options: str) -> Any:
    options = {"servers": both[0].namesrv_addr, "subscribe": TOPIC, "includeGroup": "true", **options}
    return spark.read.format("dledger").options(**options).load()


def places(rows: list[Any]) -> Sent:
    found = {(row.group, row.partition, row.offset): bytes(row.value) for row in rows}
    assert len(found) == len(rows), "a message came twice"
    return found


@pytest.mark.spark
def test_a_topic_of_both_groups_is_read_as_one(
    spark: Any, both: tuple[LocalCluster, LocalCluster], sent: Sent
) -> None:
    assert places(read(spark, both).collect()) == sent
    queues = spark.read.format("dledger").options(servers=both[0].namesrv_addr, view="queues").load()
    ends = {(row.group, row.partition): row.maxOffset for row in queues.collect() if row.topic == TOPIC}
    assert ends == {(group, queue): MESSAGES // QUEUES for group in (A, B) for queue in range(QUEUES)}


@pytest.mark.spark
def test_queues_of_one_group_are_named_with_it(
    spark: Any, both: tuple[LocalCluster, LocalCluster], sent: Sent
) -> None:
    starting = json.dumps({f"{TOPIC}@{B}": {"1": 7}})
    ending = json.dumps({f"{TOPIC}@{A}": {"0": 2}})
    found = places(read(spark, both, startingOffsets=starting, endingOffsets=ending).collect())
    left_out = {(B, 1, offset) for offset in range(7)} | {(A, 0, offset) for offset in range(2, 10)}
    assert found == {place: body for place, body in sent.items() if place not in left_out}


@pytest.mark.spark
def test_a_stream_of_both_groups_keeps_their_queues_apart(
    spark: Any, both: tuple[LocalCluster, LocalCluster], sent: Sent, tmp_path: Path
) -> None:
    stream = spark.readStream.format("dledger").options(
        servers=both[0].namesrv_addr, subscribe=TOPIC, includeGroup="true", maxOffsetsPerTrigger="30"
    )
    writer = stream.option("startingOffsets", "earliest").load().writeStream.format("memory")
    writer = writer.queryName("both_groups").option("checkpointLocation", str(tmp_path / "check"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert places(spark.table("both_groups").collect()) == sent
    names = [f"{TOPIC}@{group}/{queue}" for group in (A, B) for queue in range(QUEUES)]
    last = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    lives = {name: last.pop(name) for name in (f"{TOPIC}@{A}", f"{TOPIC}@{B}")}
    assert last == dict.fromkeys(names, MESSAGES // QUEUES)
    assert len(set(lives.values())) == 2, "the two groups have logs of their own"
