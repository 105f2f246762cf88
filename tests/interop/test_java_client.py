"""Apache RocketMQ's Java client, 4.9 and 5, unmodified, on a real three-node group.

All JVMs of a test run side by side: most of the time they wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster
from tests.interop.conftest import java_client, judge_order

pytestmark = pytest.mark.interop

VERSIONS = (4, 5)
READY_S = 60
DELIVERY_LIMIT_S = 90
BEFORE = 20
AFTER = 20
FAST_POLL_MS = 1000
SENT = range(120)
"""What the driver's mode `kinds` sends, twenty of each kind; the last twenty one way."""
CHOSEN = range(80, 100)
"""Of them those for which a MessageQueueSelector chose queue 0 or 1."""
COMMITTED_S = 8
"""A push consumer stores its offsets every five seconds."""


def test_every_way_of_sending_and_consuming(
    group: LocalCluster, drive: Callable[..., Any], topics: Callable[[str], str]
) -> None:
    named = {major: topics(f"JavaKinds{major}") for major in VERSIONS}
    kinds = {major: java_client(major) for major in VERSIONS}
    producers = {
        major: drive(kinds[major], "kinds", group.namesrv_addr, topic, f"PG_kinds{major}")
        for major, topic in named.items()
    }
    places: dict[int, dict[int, tuple[int, int]]] = {}
    for major, producer in producers.items():
        producer.wait(lambda events: any(item["event"] in ("done", "fatal") for item in events), READY_S)
        assert not producer.named("failed") and not producer.named("fatal"), producer.summary()
        places[major] = {item["seq"]: (item["queue"], item["offset"]) for item in producer.named("acked")}
        assert sorted(places[major]) == list(SENT)[:-20]
        assert {place[0] for seq, place in places[major].items() if seq in CHOSEN} == {0, 1}
    consumers = {
        (major, mode): drive(kinds[major], mode, group.namesrv_addr, topic, f"CG_{mode}{major}")
        for major, topic in named.items()
        for mode in ("consume", "pull")
    }
    for (major, _), consumer in consumers.items():
        consumer.wait(lambda events: received(events).issuperset(SENT), DELIVERY_LIMIT_S)
        for item in consumer.named("received"):
            seq = item["seq"]
            assert (item["keys"], item["tag"], item["times"]) == (f"key-{seq}", "TagA", 0)
            queue, offset = places[major].get(seq, (item["queue"], item["offset"]))
            assert item["queue"] == queue
            if not 40 <= seq < 60:  # the acknowledgement of a batch is one for all
                assert item["offset"] == offset
    for acked_at in places.values():
        for queue in (0, 1):
            offsets = [acked_at[seq][1] for seq in CHOSEN if seq % 2 == queue]
            assert offsets == sorted(set(offsets))


def test_consumers_go_on_where_they_ended(
    group: LocalCluster, drive: Callable[..., Any], topics: Callable[[str], str]
) -> None:
    topic = topics("JavaOffsets")
    kind = java_client(5)
    producer = drive(kind, "produce", group.namesrv_addr, topic, "PG_offsets")
    first = drive(kind, "consume", group.namesrv_addr, topic, "CG_offsets")
    first.wait(lambda events: len(received(events)) >= BEFORE, DELIVERY_LIMIT_S)
    time.sleep(COMMITTED_S)
    first.close()
    second = drive(kind, "consume", group.namesrv_addr, topic, "CG_offsets")
    goal = len(acked(producer.events)) + AFTER
    producer.wait(lambda events: len(acked(events)) >= goal, READY_S)
    second.wait(lambda events: (received(first.events) | received(events)).issuperset(range(goal)), READY_S)
    again = received(second.events) & set(range(BEFORE))
    assert not again


def test_a_leader_kill(group: LocalCluster, drive: Callable[..., Any], topics: Callable[[str], str]) -> None:
    """The time to the next acknowledgement, with the default poll for routes and with a short one."""
    running = {}
    for major in VERSIONS:
        for poll_ms in (0, FAST_POLL_MS):
            topic = topics(f"JavaKill{major}_{poll_ms}")
            kind = java_client(major, poll_ms)
            running[kind.name] = (
                drive(kind, "produce", group.namesrv_addr, topic, f"PG_{topic}"),
                drive(kind, "consume", group.namesrv_addr, topic, f"CG_{topic}"),
            )
    for producer, consumer in running.values():
        producer.wait(lambda events: len(acked(events)) >= BEFORE, READY_S)
        consumer.wait(lambda events: received(events).issuperset(range(BEFORE)), DELIVERY_LIMIT_S)

    node = group.kill_leader().node
    killed_at_ms = time.time() * 1000
    for name, (producer, _) in running.items():
        seconds = (producer.next_ack_ms(killed_at_ms, READY_S) - killed_at_ms) / 1000
        print(f"\n{name}: leader {node} killed, next successful send after {seconds:.1f} s")
        assert seconds < (15 if "poll" in name else 45)
    for name, (producer, consumer) in running.items():
        goal = len(acked(producer.events)) + AFTER
        producer.wait(lambda events, goal=goal: len(acked(events)) >= goal, READY_S)
        sent = acked(producer.events)
        consumer.wait(lambda events, sent=sent: received(events).issuperset(sent), DELIVERY_LIMIT_S)
        repeated = len(consumer.named("received")) - len(received(consumer.events))
        print(f"{name}: {len(sent)} acknowledged, all received, {repeated} more than once")
    group.restart_node(node)


def test_consumers_by_sql_get_what_matches_and_go_on_at_the_next_leader(
    group: LocalCluster, drive: Callable[..., Any], topics: Callable[[str], str]
) -> None:
    """The driver's condition wants even numbers from 10 on. Whose is wrong does not start."""
    running = {}
    for major in VERSIONS:
        topic = topics(f"JavaSql{major}")
        kind = java_client(major, FAST_POLL_MS)
        running[major] = (
            drive(kind, "produce", group.namesrv_addr, topic, f"PG_{topic}"),
            drive(kind, "sql", group.namesrv_addr, topic, f"CG_{topic}"),
        )

    def delivered(count: int) -> None:
        for producer, consumer in running.values():
            goal = len(acked(producer.events)) + count
            producer.wait(lambda events, goal=goal: len(acked(events)) >= goal, READY_S)
            wanted = {seq for seq in acked(producer.events) if seq >= 10 and seq % 2 == 0}
            consumer.wait(lambda events, wanted=wanted: received(events).issuperset(wanted), DELIVERY_LIMIT_S)

    delivered(2 * BEFORE)
    node = group.kill_leader().node
    delivered(2 * AFTER)
    for _, consumer in running.values():
        seen = received(consumer.events)
        assert all(seq >= 10 and seq % 2 == 0 for seq in seen) and len(seen) > BEFORE
    group.restart_node(node)


def test_failed_messages_come_again_after_their_delays_and_nothing_else_does(
    group: LocalCluster, drive: Callable[..., Any], topics: Callable[[str], str]
) -> None:
    """After 10 s, and after 30 s; the leader is killed while they wait for the second time."""
    consumers = {}
    for major in VERSIONS:
        topic = topics(f"JavaRetry{major}")
        kind = java_client(major, FAST_POLL_MS)
        consumers[major] = drive(kind, "fails", group.namesrv_addr, topic, f"CG_{topic}")
        drive(kind, "kinds", group.namesrv_addr, topic, f"PG_{topic}")

    def times(events: list[Any]) -> dict[tuple[int, int], float]:
        """When each attempt came first: what the killed leader had given out may come once more."""
        found: dict[tuple[int, int], float] = {}
        for item in events:
            if item["event"] == "received":
                found.setdefault((item["seq"], item["times"]), item["ms"] / 1000)
        return found

    for consumer in consumers.values():
        consumer.wait(lambda events: len(times(events)) >= 2 * len(SENT), DELIVERY_LIMIT_S)
    time.sleep(2)  # they are given back: what Java could not give back it consumes again itself after 5 s
    node = group.kill_leader().node
    for consumer in consumers.values():
        consumer.wait(lambda events: len(times(events)) >= 3 * len(SENT), DELIVERY_LIMIT_S)
    time.sleep(5)
    for major, consumer in consumers.items():
        seen = times(consumer.events)
        assert sorted(seen) == [(seq, count) for seq in SENT for count in range(3)]
        waits = [[seen[seq, count + 1] - seen[seq, count] for seq in SENT] for count in range(2)]
        print(
            f"\nJava {major}: after {min(waits[0]):.1f} to {max(waits[0]):.1f} s, then "
            f"{min(waits[1]):.1f} to {max(waits[1]):.1f} s (leader {node} killed)"
        )
        assert min(waits[0]) > 9.9 and min(waits[1]) > 29.9
        # A new group's consumer divides the queues of the retry topic with its next rebalance, after 20 s.
        assert max(waits[0]) < 30 and max(waits[1]) < 50
    group.restart_node(node)


def test_orderly_consumers_keep_each_queues_order_over_a_leader_kill(
    group: LocalCluster, drive: Callable[..., Any], topics: Callable[[str], str]
) -> None:
    """Two consumers of a group, the second one comes later; then the leader is killed."""
    running = {}
    for major in VERSIONS:
        topic = topics(f"JavaOrderly{major}")
        kind = java_client(major, FAST_POLL_MS)
        producer = drive(kind, "produce", group.namesrv_addr, topic, f"PG_{topic}")
        first = drive(kind, "orderly", group.namesrv_addr, topic, f"CG_{topic}")
        running[major] = (kind, topic, producer, first)
    for _, _, _, first in running.values():
        first.wait(lambda events: received(events).issuperset(range(BEFORE)), DELIVERY_LIMIT_S)
    pairs = {
        major: (producer, (first, drive(kind, "orderly", group.namesrv_addr, topic, f"CG_{topic}")))
        for major, (kind, topic, producer, first) in running.items()
    }
    for _, (_, second) in pairs.values():
        second.wait(lambda events: bool(received(events)), DELIVERY_LIMIT_S)
    node = group.kill_leader().node
    killed_at_ms = time.time() * 1000
    for major, (producer, consumers) in pairs.items():
        producer.next_ack_ms(killed_at_ms, READY_S)
        goal = len(acked(producer.events)) + AFTER
        producer.wait(lambda events, goal=goal: len(acked(events)) >= goal, READY_S)
        sent = acked(producer.events)
        deadline = time.monotonic() + DELIVERY_LIMIT_S
        while not sent <= received([event for one in consumers for event in one.drained()]):
            time.sleep(0.2)
            assert time.monotonic() < deadline, [one.summary() for one in consumers]
        events = [item for one in consumers for item in one.named("received")]
        repeated = judge_order(sorted(events, key=lambda item: item["ms"]))
        print(f"\nJava {major}: {len(sent)} in order (leader {node} killed), {repeated} more than once")
    group.restart_node(node)


def acked(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "acked"}


def received(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "received"}
