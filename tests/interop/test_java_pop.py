"""Apache's Java push consumer 5 in pop mode, unmodified, on a real three-node group."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster, wait_for
from tests.interop.conftest import java_client
from tests.interop.test_java_client import DELIVERY_LIMIT_S, FAST_POLL_MS, READY_S, SENT
from tests.interop.test_mqadmin import mqadmin

pytestmark = pytest.mark.interop

AGAIN_S = 10
"""The first of popDelayLevel."""


def test_a_push_consumer_pops_before_and_after_a_leader_kill(
    group: LocalCluster, drive: Callable[..., Any]
) -> None:
    """Every message fails once, and comes again; the leader is killed while they wait for that."""
    topic, name = "JavaPop", "CG_JavaPop"
    group.create_topic(topic)
    leader = wait_for(group.leader, READY_S, lambda: "no leader")
    broker = group.addr(leader)
    for arguments in (
        f"updateSubGroup -b {broker} -g {name}",
        f"setConsumeMode -b {broker} -t {topic} -g {name} -m POP -q 0",
    ):
        printed, _ = mqadmin(5, group, arguments).communicate(timeout=60)
        assert "success" in printed, printed
    kind = java_client(5, FAST_POLL_MS)
    consumer = drive(kind, "pop", group.namesrv_addr, topic, name)
    producer = drive(kind, "kinds", group.namesrv_addr, topic, f"PG_{topic}")
    producer.wait(lambda events: any(item["event"] == "done" for item in events), READY_S)

    def times(events: list[Any]) -> dict[tuple[int, int], float]:
        seen: dict[tuple[int, int], float] = {}
        for item in events:
            if item["event"] == "received":
                seen.setdefault((item["seq"], item["times"]), item["ms"] / 1000)
        return seen

    consumer.wait(lambda events: sum(key[1] == 0 for key in times(events)) == len(SENT), DELIVERY_LIMIT_S)
    node = group.kill_leader().node
    consumer.wait(lambda events: sum(key[1] == 1 for key in times(events)) == len(SENT), DELIVERY_LIMIT_S)
    time.sleep(5)
    seen = times(consumer.events)
    waits = [seen[seq, 1] - seen[seq, 0] for seq in SENT]
    all_received = len(consumer.named("received"))
    print(
        f"\nJava 5 pop: {all_received} deliveries of {len(SENT)} messages, again after {min(waits):.1f} to "
        f"{max(waits):.1f} s (leader {node} killed)"
    )
    assert min(waits) > AGAIN_S - 0.5
    printed, _ = mqadmin(5, group, "topicList").communicate(timeout=60)
    assert f"%RETRY%{name}_{topic}" in printed  # it popped: who pulls needs no such topic
    group.restart_node(node)
    assert group.leader() is not None
