"""How long unmodified clients stand still when the leader's process is killed and restarted, as by systemd.

They go on sending to its address until they poll for routes (30 s by default). It is back as a follower long
before that, and forwards to the new leader what only a leader can do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster
from tests.interop.conftest import Driver, java_client

pytestmark = pytest.mark.interop

KILLS = 3
BEFORE = 40
READY_S = 60
DELIVERY_LIMIT_S = 90
SENDS_LIMIT_S = 1.5
"""The median of all kills; on a machine where a broker takes long to start, what that took and a second."""
CONSUMPTION_LIMIT_S = 4.5
"""Limit of the median of all kills: every client pauses for 1 to 3 s after a pull that failed. Java 4, C++
and Go do not notice that the connection of a pull is gone, and are answered by the next leader. After the
last of three kills within half a minute there may be no broker that they have a connection to."""
SEND_TIMEOUT_S = {"rocketmq (C++)": 3.0, "rocketmq-client-go": 3.0}
"""What these clients give a send that is under way when the leader is killed: where that was so at most
kills, the median has it, and the shortest gap, or on a busy machine none, is without."""
BUSY_START_S = 1.0
"""A machine on which a broker takes longer to start is busy."""
QUIET_S = 4.0
"""Between two kills."""


def gap_s(events: list[dict[str, Any]], event: str, killed_at_ms: float) -> float:
    """Longest time without one of these events since a kill."""
    times = [item["ms"] for item in events if item["event"] == event]
    return max(later - one for one, later in pairwise(times) if later >= killed_at_ms) / 1000


def test_clients_go_on_when_the_leader_is_killed_and_restarted(
    group: LocalCluster, drive: Callable[..., Driver], ali_ons: Any, py_rocketmq: Any, go_client: Any
) -> None:
    kinds = [java_client(4), java_client(5), ali_ons, py_rocketmq, *([go_client] if go_client else [])]
    running: dict[str, tuple[Driver, Driver]] = {}
    for number, kind in enumerate(kinds):
        topic = f"Gap{number}"
        group.create_topic(topic)
        producer = drive(kind, "produce", group.namesrv_addr, topic, f"PG_{topic}")
        producer.wait(lambda events: any(item["event"] == "acked" for item in events), READY_S)
        running[kind.name] = producer, drive(kind, "consume", group.namesrv_addr, topic, f"CG_{topic}")
    for _, consumer in running.values():
        consumer.wait(lambda events: _received(events).issuperset(range(BEFORE)), DELIVERY_LIMIT_S)

    gaps: dict[tuple[str, str], list[float]] = {}
    starts: list[float] = []
    for _ in range(KILLS):
        time.sleep(QUIET_S)
        killed = group.kill_leader()
        killed_at_ms = time.time() * 1000
        group.restart_node(killed.node)
        starts.append(time.time() - killed_at_ms / 1000)
        group.wait_caught_up()
        time.sleep(QUIET_S)
        for name, (producer, consumer) in running.items():
            end_ms = time.time() * 1000
            producer.wait(lambda events, end_ms=end_ms: _after(events, "acked", end_ms), READY_S)
            consumer.wait(lambda events, end_ms=end_ms: _after(events, "received", end_ms), READY_S)
            for what, driver, event in (("sends", producer, "acked"), ("consumption", consumer, "received")):
                gap = gap_s(driver.events, event, killed_at_ms)
                gaps.setdefault((name, what), []).append(gap)
    for (name, what), found in gaps.items():
        shown = ", ".join(f"{gap:.2f}" for gap in sorted(found))
        print(f"\n{name}, {what}: median {statistics.median(found):.2f} s of {shown}")
    for name, (producer, consumer) in running.items():
        sent = _acked(producer.events)
        consumer.wait(lambda events, sent=sent: _received(events).issuperset(sent), DELIVERY_LIMIT_S)
        repeated = len(consumer.named("received")) - len(_received(consumer.events))
        print(f"{name}: {len(_acked(producer.events))} acknowledged, all received, {repeated} more than once")
    for (name, what), found in gaps.items():
        limit = max(SENDS_LIMIT_S, statistics.median(starts) + 1)
        if what == "sends" and name in SEND_TIMEOUT_S:
            assert min(found) < limit or statistics.median(starts) > BUSY_START_S, (name, found)
            limit += SEND_TIMEOUT_S[name]
        if what == "consumption":
            limit += CONSUMPTION_LIMIT_S - SENDS_LIMIT_S
        assert statistics.median(found) < limit, (name, what, found)


def _after(events: list[dict[str, Any]], event: str, moment_ms: float) -> bool:
    return any(item["event"] == event and item["ms"] > moment_ms for item in events)


def _acked(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "acked"}


def _received(events: list[dict[str, Any]]) -> set[int]:
    return {item["seq"] for item in events if item["event"] == "received"}


@pytest.mark.soak
def test_native_clients_find_the_next_leader_while_the_machine_stays_away(
    group: LocalCluster, drive: Callable[..., Driver], py_rocketmq: Any, go_client: Any
) -> None:
    """The figures of the C++ and Go clients in docs/explanation/failover.md; those of Java and ali-ons depend
    on their poll of routes alone."""
    kinds = [py_rocketmq, *([go_client] if go_client else [])]
    running: dict[str, Driver] = {}
    for number, kind in enumerate(kinds):
        topic = f"Away{number}"
        group.create_topic(topic)
        running[kind.name] = drive(kind, "produce", group.namesrv_addr, topic, f"PG_{topic}")
        running[kind.name].wait(lambda events: any(item["event"] == "acked" for item in events), READY_S)
    gaps: dict[str, list[float]] = {}
    for _ in range(KILLS):
        time.sleep(QUIET_S)
        killed = group.kill_leader()
        killed_at_ms = time.time() * 1000
        group.wait_leader()
        for name, producer in running.items():
            producer.wait(
                lambda events, at=killed_at_ms + 1000: _after(events, "acked", at), DELIVERY_LIMIT_S
            )
            gaps.setdefault(name, []).append(gap_s(producer.events, "acked", killed_at_ms))
        group.restart_node(killed.node)
        group.wait_caught_up()
    for name, found in gaps.items():
        print(f"\n{name}, the machine stays away: {', '.join(f'{gap:.1f}' for gap in sorted(found))} s")
