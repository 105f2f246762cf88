"""Request and reply between unmodified Java clients of both versions, with a leader kill in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dledger.local.cluster import LocalCluster
from tests.interop.conftest import Driver, java_client

pytestmark = pytest.mark.interop

READY_S = 60
REPLIES = 40


def test_java_asks_and_java_answers(
    group: LocalCluster, drive: Callable[..., Driver], topics: Callable[[str], str]
) -> None:
    asking: dict[int, Driver] = {}
    for asks, answers in ((4, 5), (5, 4)):
        topic = topics(f"Ask{asks}")
        drive(java_client(answers, 1000), "answer", group.namesrv_addr, topic, f"CG_{topic}")
        asking[asks] = drive(java_client(asks, 1000), "ask", group.namesrv_addr, topic, f"PG_{topic}")

    def replied(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [item for item in events if item["event"] == "replied"]

    for driver in asking.values():
        driver.wait(lambda events: len(replied(events)) >= REPLIES, READY_S)
    node = group.kill_leader().node
    for driver in asking.values():
        goal = len(replied(driver.events)) + REPLIES
        driver.wait(lambda events, goal=goal: len(replied(events)) >= goal, READY_S)
    group.restart_node(node)
    for version, driver in asking.items():
        goal = len(replied(driver.events)) + REPLIES
        driver.wait(lambda events, goal=goal: len(replied(events)) >= goal, READY_S)
        assert all(item["text"] == f"re: {item['seq']}" for item in replied(driver.events))
        replies, failed = len(replied(driver.events)), len(driver.named("failed"))
        print(f"\nJava {version} asks: {replies} replies, {failed} without (leader {node} killed)")
