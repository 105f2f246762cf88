"""Audits of a group that runs, under load, while leaders are killed and started again: no false alarm.

An audit asks the brokers (`--namesrv`) or reads the directories of the running nodes. A broker that was
killed, or has just been started again, may be UNREACHABLE, and nothing else may be worse than information.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dledger.client import Producer
from dledger.local.cluster import LocalCluster
from tests.cluster.test_group_clean_stores import TOPICS, Sender

SEGMENT = 9 * 1024 * 1024
LIMIT_S = 300
"""Longest time that an audit, or the return of a node, may take."""
PAUSE_S = 1.0
"""Between two hundred messages, so that the log grows slowly, and audits of it end."""
EARLIEST_KILL_S, LATEST_KILL_S = 0.5, 4.0
"""When the leader is killed, after the command of the audit was started."""
HARMLESS = ("info",)


@contextmanager
def load(group: LocalCluster) -> Iterator[Sender]:
    """Messages of all kinds, without a break."""
    ended = threading.Event()
    with Producer("live-audits", group.namesrv_addr) as producer:
        for topic in TOPICS:
            producer.create_topic(topic, queues=4)
        sender = Sender(producer)

        def send() -> None:
            while not ended.wait(PAUSE_S):
                sender.send(200)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield sender
        finally:
            ended.set()
            thread.join()


def command(group: LocalCluster, *, live: bool) -> list[str]:
    """An audit by the brokers, or of their directories."""
    if live:
        given = ["spark", "audit", "--engine", "local", "--namesrv", group.namesrv_addr]
    else:
        given = ["audit", "compare", *(str(group.store(node)) for node in group.spec.node_ids)]
    return [sys.executable, "-m", "dledger", *given, "--json"]


def judge(report: dict[str, object], killed: set[str]) -> list[dict[str, object]]:
    """The findings that are false alarms. `killed`: nodes that may not answer."""
    found = report["findings"]
    assert isinstance(found, list)
    return [
        one
        for one in found
        if one["severity"] not in HARMLESS
        and not (one["code"] == "UNREACHABLE" and one.get("replica") in killed)
    ]


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_audits_of_a_group_under_load_with_leader_kills(
    rounds: int, new_group: Callable[..., LocalCluster]
) -> None:
    chance = random.Random(rounds)
    group = new_group(segment_size=SEGMENT, pool_segments=1, broker={"snapshotIntervalMs": "2000"})
    verdicts: Counter[str] = Counter()
    entries = 0
    starting: set[str] = set()
    with load(group) as sender:
        for number in range(rounds):
            live = number % 4 != 3
            done = subprocess.Popen(command(group, live=live), stdout=subprocess.PIPE, text=True)
            time.sleep(chance.uniform(EARLIEST_KILL_S, LATEST_KILL_S))
            killed = group.kill_leader().node
            starting.add(killed)
            output, _ = done.communicate(timeout=LIMIT_S)
            report = json.loads(output)
            assert judge(report, starting) == [], (number, live, starting, report["findings"])
            assert report["replicas"]
            verdicts[f"{'brokers' if live else 'directories'}: {report['verdict']}"] += 1
            entries += report["entries"]
            print(f"audit {number + 1} of {rounds}: {report['verdict']}, {killed} killed", flush=True)
            group.wait_leader(LIMIT_S)
            group.start_node(killed)
            group.wait_ready(LIMIT_S)
            if number % 2:  # otherwise the next audit finds it catching up
                group.wait_caught_up(LIMIT_S)
                group.wait_registered(LIMIT_S)
                starting.clear()
    said = ", ".join(f"{count} {what}" for what, count in sorted(verdicts.items()))
    print(
        f"\nlive audits: {rounds}, leaders killed: {rounds}, false alarms: 0 ({said}); "
        f"{entries} entries read, {sender.number} messages sent"
    )
