"""Loss of processes under load: nothing acknowledged is lost, order is kept, the group goes on."""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger import PopConsumer, Producer, PushConsumer
from dledger.chaos.stores import first_difference
from dledger.chaos.workload import Load, Report, check_log
from dledger.client.errors import NoBroker, OutcomeUnknown
from dledger.client.message import Message
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.local.cluster import MIB, STOP_LIMIT_S, LocalCluster, wait_for

TOPIC = "Load"
QUEUES = 4
KILLS = 10
FAILOVER_LIMIT_S = 0.5
"""Limit of the median of all failovers, on a machine that does much else: the goal is 0.1 s. One of ten may
meet a pause of the machine, so the single ones are not limited; `wait_failover` waits until each of them
ends."""

Faults = Callable[[LocalCluster, Load], Awaitable[None]]


def run_load(group: LocalCluster, faults: Faults, **settings: Any) -> tuple[Load, Report]:
    """Send while `faults` does its work, then compare history and log."""
    group.create_topic(TOPIC, QUEUES)
    load = Load(group.namesrv_addr, TOPIC, **settings)

    async def session() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            try:
                await faults(group, load)
            finally:
                load.stop()

    asyncio.run(session())
    report = check_log(load.history, group.addr(group.wait_leader()), TOPIC, QUEUES)
    print(f"\n{report}")
    return load, report


def replicas_are_equal(group: LocalCluster) -> None:
    """Once all have caught up, the log files hold the same bytes up to the committed index."""
    group.wait_caught_up()
    committed = min(node["committed_index"] for node in group.status()["groups"][0]["nodes"])
    for node in group.spec.node_ids[1:]:
        assert first_difference(group.store("n0"), group.store(node), committed) is None


def test_leader_killed_ten_times_in_a_row(new_group: Callable[..., LocalCluster]) -> None:
    group = new_group()
    failovers: list[float] = []

    async def kill_and_restart(group: LocalCluster, load: Load) -> None:
        await load.wait_acked(200)
        for _ in range(KILLS):
            killed = await asyncio.to_thread(group.kill_leader)
            failovers.append(await load.wait_failover(killed.at))
            assert await asyncio.to_thread(group.wait_leader) != killed.node
            await load.wait_acked(200)
            await asyncio.to_thread(group.start_node, killed.node)
            await asyncio.to_thread(group.wait_caught_up)
            await load.wait_acked(200)

    _, report = run_load(group, kill_and_restart)
    assert report.clean, report
    assert report.unknown == 0, "our client carries every message through a failover"
    replicas_are_equal(group)
    times = sorted(round(seconds * 1000) for seconds in failovers)
    print(
        f"failover under load, {KILLS} kills: median {statistics.median(times):.0f} ms, "
        f"p99 {times[-1]} ms (of {KILLS}), max {times[-1]} ms; all {times}"
    )
    assert statistics.median(times) < FAILOVER_LIMIT_S * 1000


def test_failover_of_an_idle_group(new_group: Callable[..., LocalCluster]) -> None:
    """Only the probe sends: what the budget calls idle."""
    group = new_group()
    failovers: list[float] = []

    async def kill_and_restart(group: LocalCluster, load: Load) -> None:
        await load.wait_acked(20)
        for _ in range(KILLS):
            killed = await asyncio.to_thread(group.kill_leader)
            failovers.append(await load.wait_failover(killed.at))
            await asyncio.to_thread(group.start_node, killed.node)
            await asyncio.to_thread(group.wait_caught_up)

    _, report = run_load(group, kill_and_restart, window=0, steady=False)
    assert report.clean, report
    times = sorted(round(seconds * 1000) for seconds in failovers)
    median = statistics.median(times)
    print(f"failover idle, {KILLS} kills: median {median:.0f} ms, max {times[-1]} ms; all {times}")
    assert median < FAILOVER_LIMIT_S * 1000


def test_all_killed_at_once_and_restarted(new_group: Callable[..., LocalCluster]) -> None:
    group = new_group()

    async def kill_all(group: LocalCluster, load: Load) -> None:
        await load.wait_acked(1000)
        for node in group.spec.node_ids:
            group.signal(node, signal.SIGKILL)
        await asyncio.sleep(0.5)
        for node in group.down():
            await asyncio.to_thread(group.start_node, node)
        await asyncio.to_thread(group.wait_leader)
        await load.wait_acked(200)

    _, report = run_load(group, kill_all)
    assert report.clean, report
    replicas_are_equal(group)


def test_a_follower_that_missed_50_mb_catches_up(new_group: Callable[..., LocalCluster]) -> None:
    group = new_group()
    body = 32 * 1024

    async def write_without_one(group: LocalCluster, load: Load) -> None:
        await load.wait_acked(20)
        follower = next(node for node in group.spec.node_ids if node != group.leader())
        assert await asyncio.to_thread(group.terminate, follower) == "stopped"
        before = load.acked
        while (load.acked - before) * body < 50 * MIB:
            await load.wait_acked(50)
        await asyncio.to_thread(group.start_node, follower)
        await asyncio.to_thread(group.wait_caught_up, 60.0, [follower])

    _, report = run_load(group, write_without_one, body_size=body, window=32)
    assert report.clean, report
    replicas_are_equal(group)


def test_consumers_leave_a_leader_that_is_stopped(new_group: Callable[..., LocalCluster]) -> None:
    """Their pulls and pops wait there, and its machine acknowledges in its place."""
    group = new_group()
    group.create_topic(TOPIC, QUEUES)
    pulled: set[bytes] = set()
    popped: set[bytes] = set()
    consumer = PushConsumer("CG", group.namesrv_addr, lambda message: pulled.add(message.body))
    consumer.subscribe(TOPIC)
    pops = PopConsumer("POP", group.namesrv_addr, topic=TOPIC, from_where="first")

    def wait_for_all(count: int, limit_s: float) -> None:
        def both() -> bool:
            for message in pops.pop(0.05):
                popped.add(message.body)
                pops.ack(message)
            return len(pulled) == len(popped) == count

        wait_for(both, limit_s, lambda: f"pulled {pulled}, popped {popped}")

    with consumer, pops, Producer("PG", group.namesrv_addr) as producer:
        wait_for(lambda: len(consumer.queues) > QUEUES or None, 20, lambda: "no queues")
        producer.send(Message(TOPIC, b"before"))
        wait_for_all(1, 20)
        leader = group.wait_leader()
        group.signal(leader, signal.SIGSTOP)
        try:
            for number in range(2 * QUEUES):
                producer.send(Message(TOPIC, b"%d" % number))
            wait_for_all(1 + 2 * QUEUES, 16)  # some 2 s; their own time-outs are 30 s
        finally:
            group.signal(leader, signal.SIGCONT)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
def test_a_minority_never_acknowledges(how: signal.Signals, new_group: Callable[..., LocalCluster]) -> None:
    group = new_group()
    group.create_topic(TOPIC, QUEUES)
    leader = group.wait_leader()
    others = [node for node in group.spec.node_ids if node != leader]

    async def session() -> None:
        options = ProducerOptions(timeout_s=3)
        async with AsyncProducer("PG_minority", group.namesrv_addr, options) as producer:
            await producer.send(Message(TOPIC, b"with all"))
            for node in others:
                group.signal(node, how)
            if how != signal.SIGSTOP:
                assert await asyncio.to_thread(group.wait_down, others, STOP_LIMIT_S), "they did not stop"
            for attempt in range(3):
                with pytest.raises((NoBroker, OutcomeUnknown)):
                    await producer.send(Message(TOPIC, f"without majority {attempt}".encode()))
            assert group.pid(leader) is not None, "a node without majority waits, it does not end"
            for node in others:
                if how == signal.SIGSTOP:
                    group.signal(node, signal.SIGCONT)
                else:
                    group.start_node(node)
            await asyncio.to_thread(group.wait_ready)
            await producer.send(Message(TOPIC, b"with all again"))

    asyncio.run(session())
    replicas_are_equal(group)
