"""Timer messages and recalls of unmodified Java clients of both versions, with a leader kill in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster
from tests.interop.conftest import Driver, java_client

pytestmark = pytest.mark.interop

READY_S = 60
SENT = 60
"""Messages before the kill, and after it."""


def test_java_s_timer_messages_come_at_their_time_over_a_leader_kill(
    group: LocalCluster, drive: Callable[..., Driver]
) -> None:
    producers: dict[int, Driver] = {}
    consumers: dict[int, Driver] = {}
    for major in (4, 5):
        topic = f"Timed{major}"
        group.create_topic(topic)
        producers[major] = drive(java_client(major, 1000), "timers", group.namesrv_addr, topic, f"PG_{topic}")
        consumers[major] = drive(
            java_client(9 - major, 1000), "consume", group.namesrv_addr, topic, f"CG_{topic}"
        )
    for producer in producers.values():
        producer.wait(lambda events: len(due(events)) >= SENT, READY_S)
    before = {major: max(due(producer.drained())) for major, producer in producers.items()}
    node = group.kill_leader().node
    after = {major: max(due(producer.drained())) for major, producer in producers.items()}
    for producer in producers.values():
        goal = len(due(producer.drained())) + SENT
        producer.wait(lambda events, goal=goal: len(due(events)) >= goal, READY_S)
    group.restart_node(node)
    for major, producer in producers.items():
        sent = due(producer.drained())
        recalls = {item["seq"]: item["same"] for item in producer.named("recalled")}
        assert all(recalls.values()) and bool(recalls) == (major == 5)
        consumer = consumers[major]
        wanted = sent.keys() - recalls.keys()
        consumer.wait(lambda events, wanted=wanted: wanted <= received(events).keys(), READY_S)
        found = received(consumer.drained())
        early = {seq: times for seq, times in found.items() if seq in sent and min(times) < sent[seq]}
        assert not early, "never early"
        assert not found.keys() & recalls.keys(), "recalled is delivered never"
        # A send that the kill left without an answer is repeated by the client: that is another message.
        twice = [seq for seq, times in found.items() if len(times) > 1]
        assert set(twice) <= set(range(before[major] + 1, after[major] + 4)), twice
        late = sorted(min(found[seq]) - sent[seq] for seq in wanted)
        print(
            f"\nJava {major}: {len(sent)} timer messages, {len(recalls)} recalled, {len(twice)} twice; stored"
            f" {late[len(late) // 2]} ms late (median), {late[-1]} ms (worst); leader {node} killed"
        )


def due(events: list[dict[str, Any]]) -> dict[int, int]:
    """When those that were acknowledged are to come, in ms."""
    return {item["seq"]: item["due"] for item in events if item["event"] == "acked"}


def received(events: list[dict[str, Any]]) -> dict[int, list[int]]:
    """When each came to its topic, by the leader's clock."""
    found: dict[int, list[int]] = {}
    for item in events:
        if item["event"] == "received":
            found.setdefault(item["seq"], []).append(item["stored"])
    return found
