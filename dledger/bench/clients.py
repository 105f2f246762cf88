"""`dledger bench clients`: how much idle connected clients cost a broker group.

Starts a group of real processes on loopback in a temporary directory and measures sends with few clients.
Then the wanted number of consumers, spread over `--groups` consumer groups, connects to the leader. They
send heartbeats as RocketMQ's clients do, and are notified when other members of their group join and leave
(request 40 NOTIFY_CONSUMER_IDS_CHANGED). Then the same figures are measured again: latencies of sends,
memory, and the processor time of the brokers while nothing is sent.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from dledger.bench.compare.system import cpu_s
from dledger.bench.scale import FEW_QUEUES, measured
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.remoting.bodies import ConsumerData, Heartbeat, Subscription
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.limits import ClientLimits
from dledger.runtime.env import Env, production_env
from dledger.runtime.workers import Lane

HEARTBEAT_S = 30.0
"""Pause between two heartbeats of a client, in seconds; the pause of RocketMQ's clients is the same."""
TOGETHER = 50
"""Largest number of clients that connect at the same time."""
QUIET_S = 10.0
"""How long, in seconds, nothing is sent while the processor time is counted."""


def clients(count: int, groups: int, seconds: float) -> dict[str, object]:
    """Measure with few clients, and again with `count` clients; return the figures by name."""
    with tempfile.TemporaryDirectory(prefix="clients-") as directory:
        spec = ClusterSpec(
            base_port=find_base_port(3),
            segment_size=64 * MIB,
            broker={"maxConnections": str(2 * count + 1000)},
        )
        group = LocalCluster.create(Path(directory) / "group", spec)
        group.start()
        try:
            group.create_topic("few", FEW_QUEUES)
            result: dict[str, object] = {"clients": count, "groups": groups}
            result |= measured(group, "few clients: ", seconds) | _idle(group, "few clients: ")
            result |= asyncio.run(_with_clients(group, count, groups, seconds))
        finally:
            group.stop()
    return result


def _idle(group: LocalCluster, name: str) -> dict[str, object]:
    pids = [pid for pid in map(group.pid, group.spec.node_ids) if pid is not None]
    before, began = cpu_s(pids), time.monotonic()
    time.sleep(QUIET_S)
    used = (cpu_s(pids) - before) / (time.monotonic() - began)
    return {f"{name}processor of all brokers while nothing is sent, percent of one": round(100 * used, 1)}


async def _with_clients(group: LocalCluster, count: int, groups: int, seconds: float) -> dict[str, object]:
    env = production_env("bench")
    address = group.addr(group.wait_leader())
    room = asyncio.Semaphore(TOGETHER)
    there = asyncio.Semaphore(0)
    result: dict[str, object] = {}
    async with asyncio.TaskGroup() as tasks:
        began = time.monotonic()
        running = [
            tasks.create_task(_client(env, address, number, groups, room, there), name=f"client {number}")
            for number in range(count)
        ]
        for _ in range(count):
            await there.acquire()
        result["seconds until all are there"] = round(time.monotonic() - began, 1)
        result |= await env.workers.run(Lane.DISK, measured, group, "many: ", seconds)
        result |= await env.workers.run(Lane.DISK, _idle, group, "many: ")
        for task in running:
            task.cancel()
    return result


async def _client(
    env: Env, address: str, number: int, groups: int, room: asyncio.Semaphore, there: asyncio.Semaphore
) -> None:
    """Run one idle client, which only sends heartbeats, until it is cancelled."""
    remoting = RemotingClient(env, limits=ClientLimits())
    subscription = Subscription(topic="few", subString="*", subVersion=number)
    consumer = ConsumerData(groupName=f"idle-{number % groups}", subscriptionDataSet=[subscription])
    body = Heartbeat(clientID=f"127.0.0.1@{number}", consumerDataSet=[consumer]).encode()
    async with asyncio.TaskGroup() as own:
        own.create_task(remoting.run(), name=f"dialler {number}")
        async with room:
            await remoting.invoke(address, RequestCode.HEART_BEAT, None, body, timeout_s=30.0)
        there.release()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await remoting.invoke(address, RequestCode.HEART_BEAT, None, body, timeout_s=30.0)
