"""`dledger bench scale`: how much more a broker group costs with many queues and groups than with few.

Starts a group of real processes on loopback in a temporary directory, and measures it with `FEW_QUEUES`
queues. Then it creates topics with `QUEUES` queues each, until the wanted number of queues exists, and
sends a message to each queue. It also creates consumer groups; each has an offset in every queue of one
topic. Then it measures again: latencies of sends, memory, the longest delay of the event loops, and the
time of a start after a clean stop and after a kill.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dledger.admin import AsyncAdminClient
from dledger.client import AsyncProducer, Message, MessageQueue
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.remoting.bodies import ListedTopic, SubscriptionGroupConfig
from dledger.remoting.bodies import MessageQueue as WireQueue

FEW_QUEUES = 8
QUEUES = 8
"""Number of queues of each topic."""
TOGETHER = 100
"""Number of topics, or of groups, that one request creates."""
IN_FLIGHT = 256
WINDOW = 16
"""Number of sends in flight while latencies are measured. It is far below what the machine can do."""
QUIET_S = 15.0
"""Pause before the second measurement, in seconds. For each `QUEUES_A_SECOND` queues it is a second
longer. After the pause, the snapshots and registrations that the new queues cause are complete."""
QUEUES_A_SECOND = 1_000


def scale(queues: int, groups: int, seconds: float) -> dict[str, object]:
    """Run the whole measurement; return the figures by name."""
    with tempfile.TemporaryDirectory(prefix="scale-") as directory:
        spec = ClusterSpec(base_port=find_base_port(3), segment_size=64 * MIB)
        group = LocalCluster.create(Path(directory) / "group", spec)
        group.start()
        try:
            group.create_topic("few", FEW_QUEUES)
            result: dict[str, object] = {"queues": queues, "groups": groups}
            result |= measured(group, "few queues: ", seconds)
            began = time.monotonic()
            asyncio.run(_fill(group, queues, groups))
            result["seconds to make them"] = round(time.monotonic() - began, 1)
            time.sleep(QUIET_S + queues / QUEUES_A_SECOND)
            result |= measured(group, "many: ", seconds)
            result |= _starts(group)
        finally:
            group.stop()
    return result


def measured(group: LocalCluster, name: str, seconds: float) -> dict[str, object]:
    """Send to the topic that has few queues; return the figures."""
    command = [sys.executable, "-m", "dledger.bench", "produce", "--json", "--topic", "few"]
    for option, value in (("namesrv", group.namesrv_addr), ("seconds", seconds), ("window", WINDOW)):
        command += [f"--{option}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    leader = group.wait_leader()
    state = group.state(leader)
    return {
        f"{name}sends a second": found["rate"],
        f"{name}latency of a send, ms": found["latency_ms"],
        f"{name}longest delay of the leader's loop so far, ms": state.get("loop_lag_ms_max"),
        f"{name}memory of the brokers (RssAnon), MB": _memory_mb(group),
        f"{name}open files of the brokers": [
            len(list(Path(f"/proc/{group.pid(node)}/fd").iterdir())) for node in group.spec.node_ids
        ],
    }


def _memory_mb(group: LocalCluster) -> list[int]:
    found = []
    for node in group.spec.node_ids:
        status = Path(f"/proc/{group.pid(node)}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
        found.append(int(kib) // 1024)
    return found


def _starts(group: LocalCluster) -> dict[str, object]:
    """Stop all nodes and start them again; kill all nodes and start them again; kill the leader and start
    it again. Return the seconds that each step takes."""
    began = time.monotonic()
    group.stop()
    stopped = time.monotonic()
    group.start()
    result: dict[str, object] = {
        "clean stop of all, s": round(stopped - began, 2),
        "start of all after it, s": round(time.monotonic() - stopped, 2),
    }
    for node in group.spec.node_ids:
        group.kill(node)
    began = time.monotonic()
    for node in group.spec.node_ids:
        group.start_node(node)
    group.wait_ready()
    group.wait_caught_up()
    result["start of all after a kill of all, s"] = round(time.monotonic() - began, 2)
    killed = group.kill_leader()
    _, took_s = group.time_to_leader(killed)
    result["next leader after a kill, s"] = round(took_s, 3)
    began = time.monotonic()
    group.restart_node(killed.node)
    group.wait_caught_up()
    result["start of the killed node, s"] = round(time.monotonic() - began, 2)
    return result


async def _fill(group: LocalCluster, queues: int, groups: int) -> None:
    address = group.addr(group.wait_leader())
    topics = [f"orders-eu-{number:05}" for number in range(queues // QUEUES)]
    names = [f"consumers-{number:05}" for number in range(groups)]
    async with AsyncAdminClient(group.namesrv_addr) as admin:
        for part in _parts(topics):
            await admin.topics.put_all(address, [_listed(topic) for topic in part])
        for part in _parts(names):
            await admin.groups.put_all(address, [SubscriptionGroupConfig(name) for name in part])
        await _send_to_each(group, topics)
        name = group.spec.group
        for part in _parts(names):  # each answer waits until the leader has written offsets, once a second
            async with asyncio.TaskGroup() as tasks:
                for number, consumers in enumerate(part):
                    for queue in range(QUEUES):
                        place = WireQueue(topics[number % len(topics)], name, queue)
                        commit = admin.offsets.commit(address, consumers, place, 1)
                        tasks.create_task(commit, name=f"{consumers} {queue}")


def _parts(names: list[str]) -> Iterable[list[str]]:
    return (names[at : at + TOGETHER] for at in range(0, len(names), TOGETHER))


def _listed(topic: str) -> ListedTopic:
    return ListedTopic(topicName=topic, readQueueNums=QUEUES, writeQueueNums=QUEUES)


async def _send_to_each(group: LocalCluster, topics: list[str]) -> None:
    room = asyncio.Semaphore(IN_FLIGHT)

    async with AsyncProducer("bench_scale", group.namesrv_addr) as producer, asyncio.TaskGroup() as tasks:

        async def send(topic: str) -> None:
            async with room:
                for queue in range(QUEUES):
                    place = MessageQueue(topic, group.spec.group, queue)
                    await producer.send(Message(topic, b"first"), queue=place)

        for topic in topics:
            tasks.create_task(send(topic), name=topic)
