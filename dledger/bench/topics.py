"""`dledger bench topics`: how long a change of one topic takes, in milliseconds, if there are very many
topics.

A registrar (the part of a broker that registers it) reports the topics to two NameServers, which are
separate processes. On the same event loop runs a task that does nothing but wake up again and again. The
longest time between two turns of this task is how long the event loop was blocked. It is given as elapsed
time, and as CPU time of the thread, which does not include waiting for a core.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import cast

from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.broker.ports import Node
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.registration.registrar import Registrar
from dledger.broker.topic.topic_names import system_topics
from dledger.broker.topic.topic_table import TopicTable
from dledger.formats.state import TOPICS, ReplicatedState, TopicConfig
from dledger.namesrv.routes import BrokerIdentity, Routes
from dledger.remoting.client import RemotingClient
from dledger.remoting.limits import ClientLimits
from dledger.remoting.registration import DataVersion, KnownTopics, registration_body, registration_in_pieces
from dledger.runtime.env import production_env
from dledger.runtime.live_settings import LiveSettings

CHANGES = 20
POLL_S = 0.005
TURN_S = 0.0002
"""Pause between two turns of the task that does nothing, in seconds. The measured times include it."""


class _Serving:
    """A stand-in for a node, with the attributes that a registrar uses."""

    serving = True
    removed = False


class _Turns:
    """Measures the longest time between two turns of the event loop, in seconds: as elapsed time (`clock`)
    and as CPU time (`cpu`)."""

    def __init__(self) -> None:
        self.clock = self.cpu = 0.0

    async def run(self) -> None:
        clock, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(TURN_S)
            now, used = time.perf_counter(), time.thread_time()
            self.clock, self.cpu = max(self.clock, now - clock), max(self.cpu, used - cpu)
            clock, cpu = now, used


def topics(count: int) -> dict[str, float]:
    """Measure with `count` topics; return milliseconds by the name of the figure."""
    with tempfile.TemporaryDirectory(prefix="topics-") as directory, ExitStack() as stack:
        addresses = tuple(_namesrv(Path(directory), number, stack) for number in range(2))
        result = asyncio.run(_broker(count, addresses))
    return result | _nameserver(count)


def _namesrv(directory: Path, number: int, stack: ExitStack) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    config = directory / f"{number}.conf"
    config.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={directory}/{number}.json\n")
    command = [sys.executable, "-m", "dledger.namesrv", "-c", str(config)]
    process = stack.enter_context(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    )
    stack.callback(process.terminate)
    assert process.stdout is not None
    process.stdout.readline()  # it says when it is ready
    return f"127.0.0.1:{port}"


def _filled(count: int) -> ReplicatedState:
    rng = random.Random(count)
    state = ReplicatedState()
    for number in range(count):
        _put(state, f"orders-eu-{rng.randrange(10**9)}-topic-{number:05}")
    return state


def _put(state: ReplicatedState, name: str) -> None:
    state[TOPICS].put(TopicConfig(name, 8, 8, 6))


async def _broker(count: int, addresses: tuple[str, ...]) -> dict[str, float]:
    env = production_env("bench")
    config = BrokerConfig(
        store_root="", peers={"n0": "127.0.0.1:1"}, namesrv_addr=addresses, register_timeout_s=30.0
    )
    state = _filled(count)
    client = RemotingClient(env, limits=ClientLimits(), on_connection_lost=lambda address: None)
    table = TopicTable(lambda: state, system_topics(config))
    settings = LiveSettings(env, SETTINGS, config)
    servers = NameServers(env, settings)
    registrar = Registrar(env, settings, cast(Node, _Serving()), table, client, servers)
    gc.collect()
    gc.freeze()
    turns = _Turns()
    clocks, cpus = [], []
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(work, name=name)
            for name, work in (
                ("client", client.run()),
                ("turns", turns.run()),
                ("registrar", registrar.keep_informed()),
            )
        ]
        while not all(registrar.registered.values()):  # noqa: ASYNC110 - looks at what the registrar does
            await asyncio.sleep(POLL_S)
        first = turns.clock * 1e3
        for number in range(CHANGES):
            turns.clock = turns.cpu = 0.0
            _put(state, f"new-{number}")
            told = asyncio.Event()
            registrar.announce(told.set)
            await told.wait()
            clocks.append(turns.clock * 1e3)
            cpus.append(turns.cpu * 1e3)
        for task in tasks:
            task.cancel()
    await client.close()
    env.workers.close()
    return {
        "broker: first registration, longest": first,
        "broker: one change, median of the longest": median(clocks),
        "broker: one change, worst of the longest": max(clocks),
        "broker: one change, median of the longest, CPU time": median(cpus),
        "broker: one change, worst of the longest, CPU time": max(cpus),
    }


def _nameserver(count: int) -> dict[str, float]:
    """Return how long the longest step takes with which a NameServer handles a registration, in
    milliseconds. Reading the frame is not included."""
    state = _filled(count)
    table = TopicTable(lambda: state, {})
    routes, known = Routes(), KnownTopics()

    def take(broker_id: int) -> float:
        body = registration_body(table.entries(), DataVersion(1, state.topics_version, 1), [])
        identity = BrokerIdentity("c", "b", broker_id, f"10.0.0.{broker_id}:1")

        def change() -> Iterator[None]:
            registration = yield from registration_in_pieces(body, known=known)
            yield from routes.register(0.0, identity, registration, channel=1)

        longest_s = 0.0
        pieces, over = change(), False
        while not over:
            began = time.thread_time()
            over = next(pieces, pieces) is pieces
            longest_s = max(longest_s, time.thread_time() - began)
        return longest_s * 1e3

    first = take(0)
    leader, follower = [], []
    for number in range(CHANGES):
        _put(state, f"new-{number}")
        leader.append(take(0))
        follower.append(take(1))
    return {
        "NameServer: first registration": first,
        "NameServer: one change, from the leader": median(leader),
        "NameServer: one change, then from a follower": median(follower),
    }
