"""Unmodified producers repeat sends when the leader is killed; with duplicateCheckTopics each is stored once.

A repetition has the unique id of the first send. The C++ client gives each attempt an id of its own: nobody
can tell its repetitions from new messages.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dledger.client import FromWhere, PullConsumer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from tests.interop.conftest import ClientKind, Driver, java_client

pytestmark = pytest.mark.interop

KILLS = int(os.environ.get("DLEDGER_REPEATED_KILLS", "4"))
CHECKED = os.environ.get("DLEDGER_REPEATED_CHECKED", "*")
"""Empty: to see how many are stored twice without the check."""
READY_S = 60
BETWEEN_S = 1.0


@pytest.fixture
def checking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A group that looks for every send."""
    settings = {"duplicateCheckTopics": CHECKED} if CHECKED else {}
    spec = ClusterSpec(base_port=find_base_port(start=24000), broker=settings)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("repeated") / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()


def stored_ids(group: LocalCluster, topic: str) -> Counter[str]:
    """How often each unique id is in a topic."""
    found: Counter[str] = Counter()
    with PullConsumer(f"CG_{topic}", group.namesrv_addr) as consumer:
        queues = consumer.queues(topic)
        ends = {queue: consumer.highest(queue) for queue in queues}
        consumer.assign(queues, start=FromWhere.FIRST)

        def read() -> bool:
            found.update(message.message_id for message in consumer.poll(timeout_s=1.0))
            return all(consumer.position(queue) >= end for queue, end in ends.items())

        wait_for(read, READY_S, lambda: f"{sum(found.values())} messages of {ends}")
    return found


def test_each_message_is_stored_once(
    checking: LocalCluster, drive: Callable[..., Driver], ali_ons: ClientKind
) -> None:
    kinds = [java_client(4), java_client(5), ali_ons]
    running: dict[str, tuple[Driver, str]] = {}
    for number, kind in enumerate(kinds):
        topic = f"Repeated{number}"
        checking.create_topic(topic)
        running[kind.name] = drive(kind, "rush", checking.namesrv_addr, topic, f"PG_{topic}"), topic
    for driver, _ in running.values():
        driver.wait(_acked_some, READY_S)
    for _ in range(KILLS):
        time.sleep(BETWEEN_S)
        killed = checking.kill_leader()
        checking.restart_node(killed.node)
        checking.wait_caught_up()
    time.sleep(BETWEEN_S)
    for driver, _ in running.values():
        driver.close()
    twice = {}
    for name, (driver, topic) in running.items():
        counts = driver.named("rushed")[-1]
        found = stored_ids(checking, topic)
        twice[name] = sum(found.values()) - len(found)
        print(
            f"\n{name}: {counts['acked']} acknowledged, {counts['failed']} failed, {len(found)} stored, "
            f"{twice[name]} of them twice"
        )
        assert len(found) >= counts["acked"]
    if CHECKED:
        assert not any(twice.values()), twice


def _acked_some(events: list[dict[str, Any]]) -> bool:
    return any(item["event"] == "rushed" and item["acked"] > 0 for item in events)
