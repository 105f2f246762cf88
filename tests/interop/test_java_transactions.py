"""Transactions of unmodified Java clients of both versions, with a leader kill in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port
from tests.interop.conftest import Driver, java_client

pytestmark = pytest.mark.interop

READY_S = 60
SENT = 40
"""Transactions before the kill, and after it."""
SETTLED_S = 15
"""After the last one every producer was asked twice, at intervals of 2 s."""


@pytest.fixture
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A group whose brokers ask soon."""
    times = {"transactionTimeOut": "1000", "transactionCheckInterval": "2000"}
    settings = {**times, "transactionCheckMax": "100"}  # on a busy machine, too, nothing is given up
    spec = ClusterSpec(base_port=find_base_port(start=23000), broker=settings)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("transactions") / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()


def test_java_s_transactions_end_as_they_are_meant_to_over_a_leader_kill(
    impatient: LocalCluster, drive: Callable[..., Driver]
) -> None:
    """There are four kinds of transactions: committed, rolled back, and each of these only when the producer
    is asked for the second time (see the driver)."""
    producers: dict[int, Driver] = {}
    consumers: dict[int, Driver] = {}
    for major in (4, 5):
        topic = f"Tx{major}"
        impatient.create_topic(topic)
        producers[major] = drive(
            java_client(major, 1000), "transact", impatient.namesrv_addr, topic, f"PG_{topic}"
        )
        consumers[major] = drive(
            java_client(9 - major, 1000), "consume", impatient.namesrv_addr, topic, f"CG_{topic}"
        )
    for producer in producers.values():
        producer.wait(lambda events: len(acked(events)) >= SENT, READY_S)
    before = {major: max(acked(producer.drained())) for major, producer in producers.items()}
    node = impatient.kill_leader().node
    after = {major: max(acked(producer.drained())) for major, producer in producers.items()}
    for producer in producers.values():
        goal = len(acked(producer.drained())) + SENT
        producer.wait(lambda events, goal=goal: len(acked(events)) >= goal, READY_S)
    for producer in producers.values():
        late = max(seq for seq in acked(producer.drained()) if seq % 4 == 2)
        producer.wait(lambda events, late=late: late in decided(events), READY_S)
    impatient.restart_node(node)
    for major, producer in producers.items():
        last = max(acked(producer.drained()))
        wanted = {seq for seq in acked(producer.events) if seq % 2 == 0}
        consumer = consumers[major]
        consumer.wait(lambda events, wanted=wanted: wanted <= set(received(events)), SETTLED_S + READY_S)
        found = received(consumer.drained())
        assert not [seq for seq in found if seq % 2], "rolled back is delivered never"
        # A send that the kill left without an answer is repeated by the client: that is another transaction.
        twice = [seq for seq, places in found.items() if len(places) > 1]
        assert set(twice) <= set(range(before[major] + 1, after[major] + 4)), twice
        assert {item["topic"] for item in producer.named("checked")} == {f"Tx{major}"}
        print(
            f"\nJava {major}: {last} transactions, {len(wanted)} committed and received "
            f"({len(twice)} twice), {len(producer.named('checked'))} times asked, leader {node} killed"
        )


def acked(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "acked"}


def received(events: list[dict[str, Any]]) -> dict[int, set[tuple[int, int]]]:
    """Where each was found."""
    found: dict[int, set[tuple[int, int]]] = {}
    for item in events:
        if item["event"] == "received":
            found.setdefault(item["seq"], set()).add((item["queue"], item["offset"]))
    return found


def decided(events: list[dict[str, Any]]) -> set[int]:
    """Those that were asked for twice."""
    return {item["seq"] for item in events if item["event"] == "checked" and item["times"] >= 2}
