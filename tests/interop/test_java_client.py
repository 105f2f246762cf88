"""Apache RocketMQ's Java client, 4.9 and 5, unmodified, on a real three-node group.

All JVMs of a test run side by side: most of the time they wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dledger import PullConsumer
from dledger.local.cluster import LocalCluster, wait_for
from tests.interop.conftest import ClientKind, java_client

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
"""Messages of SENT for which a MessageQueueSelector chose queue 0 or 1."""


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
    group: LocalCluster,
    drive: Callable[..., Any],
    topics: Callable[[str], str],
    ali_ons: ClientKind,
    py_rocketmq: ClientKind,
) -> None:
    """All kinds of clients: what comes while there are none is consumed later, and nothing else again."""
    topic = topics("Offsets")
    kinds = {"java4": java_client(4), "java5": java_client(5), "ali": ali_ons, "cpp": py_rocketmq}

    def started() -> dict[str, Any]:
        return {
            name: drive(kind, "consume", group.namesrv_addr, topic, f"CG_offsets_{name}")
            for name, kind in kinds.items()
        }

    producer = drive(kinds["java5"], "produce", group.namesrv_addr, topic, "PG_offsets")
    first = started()
    for consumer in first.values():
        consumer.wait(lambda events: received(events).issuperset(range(BEFORE)), DELIVERY_LIMIT_S)
    last: dict[int, int] = {}
    for item in producer.named("acked"):
        if item["seq"] < BEFORE:
            last[item["queue"]] = max(item["offset"], last.get(item["queue"], -1))

    def committed(name: str) -> bool:
        with PullConsumer(f"CG_offsets_{name}", group.namesrv_addr) as reader:
            places = {queue.queue_id: reader.committed(queue) or 0 for queue in reader.queues(topic)}
        return all(places[queue] > offset for queue, offset in last.items())

    for name in kinds:  # push consumers store their offsets every five seconds
        wait_for(partial(committed, name), READY_S, f"offsets of {name} are not committed")
    for consumer in first.values():
        consumer.close()
    second = started()
    goal = len(acked(producer.drained())) + AFTER
    producer.wait(lambda events: len(acked(events)) >= goal, READY_S)
    for name, consumer in second.items():
        before = received(first[name].events)
        consumer.wait(lambda events, got=before: (got | received(events)).issuperset(range(goal)), READY_S)  # type: ignore[misc]
        assert not received(consumer.events) & set(range(BEFORE)), name


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


def acked(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "acked"}


def received(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "received"}
