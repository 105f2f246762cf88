"""Unmodified clients of other projects on a real three-node group, before and after the leader is killed.

What an unmodified client sees at a kill depends on its route poll (30 s by default for both): the time to its
next successful send is measured and printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster

pytestmark = pytest.mark.interop

BEFORE = 40
AFTER = 40
READY_S = 30
ROUTE_POLL_S = 30
RECOVERY_LIMIT_S = ROUTE_POLL_S + 15
DELIVERY_LIMIT_S = 90
"""A consumer needs a route poll, a rebalance and a long poll that ends."""


@pytest.mark.parametrize("client", ["ali_ons", "py_rocketmq"])
def test_produce_and_consume_before_and_after_a_leader_kill(
    client: str, request: pytest.FixtureRequest, group: LocalCluster, drive: Callable[..., Any]
) -> None:
    kind = request.getfixturevalue(client)
    topic = f"Interop_{client}"
    group.create_topic(topic)
    producer = drive(kind, "produce", group.namesrv_addr, topic, f"PG_{client}")
    producer.wait(lambda events: acked(events) >= BEFORE, READY_S)
    consumer = drive(kind, "consume", group.namesrv_addr, topic, f"CG_{client}")
    consumer.wait(lambda events: received(events, BEFORE), DELIVERY_LIMIT_S)

    node = group.kill_leader().node
    killed_at_ms = time.time() * 1000
    first_ms = producer.next_ack_ms(killed_at_ms, RECOVERY_LIMIT_S)
    total = acked(producer.events) + AFTER
    producer.wait(lambda events: acked(events) >= total, READY_S)
    seconds = (first_ms - killed_at_ms) / 1000
    print(f"\n{kind.name}: leader {node} killed, next successful send after {seconds:.1f} s")

    consumer.wait(lambda events: received(events, total), DELIVERY_LIMIT_S)
    keys = {item["seq"]: item["keys"] for item in consumer.named("received")}
    assert all(keys[seq] == f"key-{seq}" for seq in range(total))
    assert {item["tag"] for item in consumer.named("received")} == {"TagA"}
    print(f"{kind.name}: {total} sent, {len(consumer.named('received')) - len(keys)} received more than once")

    group.restart_node(node)


def acked(events: list[dict[str, Any]]) -> int:
    return sum(item["event"] == "acked" for item in events)


def received(events: list[dict[str, Any]], total: int) -> bool:
    """Whether each of the first `total` messages arrived at least once."""
    got = {item["seq"] for item in events if item["event"] == "received"}
    return got.issuperset(range(total))
