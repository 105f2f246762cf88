"""Apache's Go client in what only it does here: batches, delays and transactions over a leader kill.

Consumers of all kinds, retries, dead letters, requests and replies are in `test_client_matrix.py`, its gap at
a kill in `test_gap.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster
from tests.interop.conftest import ClientKind, Driver

pytestmark = pytest.mark.interop

READY_S = 60
BEFORE, AFTER = 80, 80
"""Messages before the kill, and after it."""
DELIVERY_LIMIT_S = 150
"""Its consumer gives up a pull that waited at the killed leader after 30 s, and who left a transaction open
is asked a minute later at the latest."""
DELAY_MS = 5000
"""Delay level 2, which the driver sets."""
EARLY_MS = 10
"""What two readings of the same clock may be rounded by."""
MOST_AGAIN = 40


def seqs(events: list[dict[str, Any]], event: str) -> Counter[int]:
    return Counter(item["seq"] for item in events if item["event"] == event)


def test_batches_delays_and_transactions_over_a_leader_kill(
    go_client: ClientKind | None, group: LocalCluster, drive: Callable[..., Driver]
) -> None:
    if go_client is None:
        pytest.skip("no Go to build the client with")
    modes = ("batch", "timed", "transactions")
    producers: dict[str, Driver] = {}
    consumers: dict[str, Driver] = {}
    for mode in modes:
        topic = f"Go_{mode}"
        group.create_topic(topic)
        consumers[mode] = drive(go_client, "consume", group.namesrv_addr, topic, f"CG_{topic}")
        producers[mode] = drive(go_client, mode, group.namesrv_addr, topic, f"PG_{topic}")
    for producer in producers.values():
        producer.wait(lambda events: len(seqs(events, "acked")) >= BEFORE, READY_S)
    for consumer in consumers.values():
        consumer.wait(lambda events: bool(seqs(events, "received")), READY_S)
    killed = group.kill_leader()
    group.restart_node(killed.node)
    for producer in producers.values():
        goal = len(seqs(producer.drained(), "acked")) + AFTER
        producer.wait(lambda events, goal=goal: len(seqs(events, "acked")) >= goal, READY_S)
    for mode, consumer in consumers.items():
        sent = set(seqs(producers[mode].drained(), "acked"))
        wanted = {seq for seq in sent if seq % 3} if mode == "transactions" else sent
        consumer.wait(lambda events, wanted=wanted: wanted <= set(seqs(events, "received")), DELIVERY_LIMIT_S)
        came = seqs(consumer.drained(), "received")
        again = sum(came.values()) - len(came)
        assert again <= MOST_AGAIN, (mode, again)
        if mode == "transactions":
            assert not [seq for seq in came if seq % 3 == 0], "rolled back is delivered never"
            asked = set(seqs(producers[mode].drained(), "checked"))
            assert asked and not [seq for seq in asked if seq % 2 == 0], "what is decided is not asked for"
        if mode == "timed":
            # From before its first try: how long an answer takes says nothing of the delay.
            began_ms = {item["seq"]: item["began"] for item in producers[mode].named("acked")}
            early = {
                item["seq"]: item["ms"] - began_ms[item["seq"]]
                for item in consumer.named("received")
                if item["seq"] in began_ms and item["ms"] < began_ms[item["seq"]] + DELAY_MS - EARLY_MS
            }
            assert not early, early
        print(f"\nGo, {mode}: {len(sent)} sent, {len(wanted)} wanted, all received, {again} more than once")
