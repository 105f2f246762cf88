"""A push consumer of Apache's Java client gets its first message soon after its start, each time, while the
brokers are busy with others: its pull may come before the heartbeat that tells what it subscribes to.

DLEDGER_CONSUMER_STARTS: how many starts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from dledger.local.cluster import LocalCluster
from tests.interop.conftest import Driver, java_client

pytestmark = pytest.mark.interop

STARTS = int(os.environ.get("DLEDGER_CONSUMER_STARTS", "3"))
SOON_S = 10.0
"""Longer than the median start: it was 21 s when a consumer pulled before it was known."""


def test_each_start_gets_its_first_message_soon(group: LocalCluster, drive: Callable[..., Driver]) -> None:
    kind = java_client(5)
    group.create_topic("Starts")
    group.create_topic("Load")
    producer = drive(kind, "produce", group.namesrv_addr, "Starts", "PG_Starts")
    producer.wait(lambda events: any(item["event"] == "acked" for item in events), 60)
    arguments = ["--namesrv", group.namesrv_addr, "--topic", "Load", "--window", "64", "--seconds", "100000"]
    load = subprocess.Popen(
        [sys.executable, "-m", "dledger", "bench", "produce", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    waits: list[float] = []
    try:
        for number in range(STARTS):
            began = time.time()
            consumer = Driver(kind, "consume", group.namesrv_addr, "Starts", f"CG_Starts{number}")
            consumer.wait(lambda events: any(item["event"] == "received" for item in events), 60)
            waits.append(consumer.named("received")[0]["ms"] / 1000 - began)
            print(f"{waits[-1]:.1f}", end=" ", flush=True)
            consumer.close()
    finally:
        load.kill()
        load.wait()
    shown = [f"{wait:.1f}" for wait in sorted(waits)[-5:]]
    print(f"\n{STARTS} starts: median {statistics.median(waits):.2f} s, longest {', '.join(shown)}")
    assert max(waits) < statistics.median(waits) + SOON_S
