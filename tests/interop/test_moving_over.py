"""A cluster of Apache's moves here and back: real brokers on both sides, no message lost or renumbered."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dledger.client import Message, Producer, PullConsumer
from dledger.client.errors import ClientError
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from tests.interop.apache import BROKER_NAME, START_LIMIT_S, ApacheGroup
from tests.interop.conftest import rocketmq_libraries
from tests.interop.test_apache_stores import try_to_create

pytestmark = pytest.mark.interop

SEGMENT_SIZE = 16 << 20
TOPIC, GROUP = "orders", "billing"
CONSUMED = 20
"""Offset that is committed in each queue before the move."""


def dledger(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "dledger", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def send(namesrv: str, numbers: Iterable[int], *, delayed: bool = False) -> None:
    with Producer("mover", namesrv) as producer:
        wait_for(partial(try_to_create, producer, TOPIC), START_LIMIT_S, lambda: "no topic could be created")
        for number in numbers:
            body = b"message %d " % number + b"x" * (number % 3000)
            wait_for(partial(sent, producer, Message(TOPIC, body, keys=f"key-{number}")), START_LIMIT_S, str)
        if delayed:
            producer.send(Message(TOPIC, b"soon", delay_level=1))
            producer.send(Message(TOPIC, b"in an hour", delay_level=17))


def sent(producer: Producer, message: Message) -> bool | None:
    try:
        producer.send(message)
    except ClientError:
        return None  # a route that is not there yet; a repeat may store it twice, under the same key
    return True


def read(namesrv: str, group: str, begin: bool = False) -> dict[tuple[int, int], bytes]:
    """Everything from the committed offsets on (or the beginning), by queue and offset."""
    found: dict[tuple[int, int], bytes] = {}
    with PullConsumer(group, namesrv) as consumer:
        queues = wait_for(lambda: queues_of(consumer), START_LIMIT_S, lambda: "no route")
        consumer.assign(queues)
        for queue in queues:
            if begin:
                consumer.seek_to_begin(queue)
        ends = {queue: consumer.highest(queue) for queue in queues}
        quiet = 0

        def all_read() -> bool:
            nonlocal quiet
            messages = consumer.poll(1.0)
            quiet = 0 if messages else quiet + 1
            for message in messages:
                found[message.queue.queue_id, message.queue_offset] = message.body
            return quiet >= 3 and all(consumer.position(queue) >= end for queue, end in ends.items())

        wait_for(all_read, START_LIMIT_S, lambda: f"{len(found)} messages of {ends}")
    return found


def queues_of(consumer: PullConsumer) -> list[Any] | None:
    try:
        return consumer.queues(TOPIC)
    except ClientError:
        return None


def commit(namesrv: str) -> None:
    with PullConsumer(GROUP, namesrv) as consumer:
        queues = consumer.queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, CONSUMED)
        consumer.commit()


def by_key(namesrv: str, number: int) -> list[bytes]:
    with PullConsumer("support", namesrv) as consumer:
        return [message.body.split()[1] for message in consumer.query_by_key(TOPIC, f"key-{number}")]


@pytest.mark.parametrize(("major", "in_dledger_mode"), [(4, True), (5, True), (5, False)])
def test_a_cluster_moves_here_and_back(major: int, in_dledger_mode: bool, tmp_path: Path) -> None:
    libraries = rocketmq_libraries(major)
    old = ApacheGroup(
        tmp_path / "old", libraries, find_base_port(start=24000), SEGMENT_SIZE, dledger=in_dledger_mode
    )
    try:
        old.start()
        send(old.namesrv_addr, range(400), delayed=True)
        commit(old.namesrv_addr)
        wait_for(lambda: soon(old.namesrv_addr), START_LIMIT_S, lambda: "the delayed message did not come")
        before = read(old.namesrv_addr, "reader", begin=True)
    finally:
        old.stop()
    spec = ClusterSpec(base_port=find_base_port(start=23000), group=BROKER_NAME, segment_size=SEGMENT_SIZE)
    ours = LocalCluster.create(tmp_path / "ours", spec)
    source = old.store(old.led)
    others = [word for store in old.stores if store != source for word in ("--replica", store)]
    roots = [ours.store(node) for node in spec.node_ids]
    wanted = ["--group", BROKER_NAME, "--segment-size", SEGMENT_SIZE]
    done = dledger("import", source, *roots, *wanted, *others)
    assert done["audit"]["findings"] == []
    try:
        ours.start()
        assert read(ours.namesrv_addr, "reader", begin=True) == before
        rest = {place: body for place, body in before.items() if place[1] >= CONSUMED}
        assert read(ours.namesrv_addr, GROUP) == rest
        assert by_key(ours.namesrv_addr, 123) == [b"123"]
        send(ours.namesrv_addr, range(400, 500))
        ours.kill_leader()
        ours.wait_leader()
        send(ours.namesrv_addr, range(500, 520))
        after = read(ours.namesrv_addr, "reader", begin=True)
        assert after.items() > before.items()
        for node in ours.down():
            ours.restart_node(node)
        ours.wait_caught_up()
    finally:
        ours.stop()
    print(f"\nRocketMQ {major}: {len(before)} messages moved, {len(after)} moved back: {done['messages']}")
    if not in_dledger_mode:
        return
    back = ApacheGroup(tmp_path / "back", libraries, find_base_port(start=24000), SEGMENT_SIZE)
    dledger("export", roots[0], *back.stores, "--broker-conf", tmp_path / "back" / "n0.conf")
    try:
        back.start()
        assert read(back.namesrv_addr, "reader", begin=True) == after, "nothing delayed came again"
        assert read(back.namesrv_addr, GROUP).items() >= rest.items()
        assert by_key(back.namesrv_addr, 444) == [b"444"]
        send(back.namesrv_addr, range(600, 620))
        last = read(back.namesrv_addr, "reader", begin=True)
        assert last.items() >= after.items()
        assert len(set(last.values()) - set(after.values())) == 20
    finally:
        back.stop()
    shutil.rmtree(tmp_path)


def soon(namesrv: str) -> bool | None:
    return any(body == b"soon" for body in read(namesrv, "reader", begin=True).values()) or None


def test_a_mirror_that_is_killed_copies_all_once(group: LocalCluster, tmp_path: Path) -> None:
    old = ApacheGroup(
        tmp_path / "old", rocketmq_libraries(5), find_base_port(start=24000), SEGMENT_SIZE, dledger=False
    )
    try:
        old.start()
        send(old.namesrv_addr, range(1000))
        commit(old.namesrv_addr)
        command = ["mirror", old.namesrv_addr, group.namesrv_addr, "--topic", TOPIC, "--group", GROUP]
        for _ in range(3):
            kill_after_a_copy([sys.executable, "-m", "dledger", *command, "--every", "0.1"])
        send(old.namesrv_addr, range(1000, 1100))
        group.kill_leader()
        done = dledger(*command, "--once")
        wanted, found = (
            read(old.namesrv_addr, "reader", begin=True),
            read(group.namesrv_addr, "reader", begin=True),
        )
        assert found == wanted, "the same messages at the same offsets, as nobody else wrote"
        assert done["behind"] == 0
        assert 0 < done["copied"] < len(found)
        rest = {place: body for place, body in wanted.items() if place[1] >= CONSUMED}
        assert read(group.namesrv_addr, GROUP) == rest
        again = dledger(*command, "--once")
        assert (again["copied"], again["offsets"]) == (0, {GROUP: 0})
        assert by_key(group.namesrv_addr, 123) == [b"123"]
        print(f"\n{len(found)} messages mirrored, {done['copied']} in the last of four runs")
    finally:
        old.stop()


def kill_after_a_copy(command: list[str]) -> None:
    """Let a mirror run until it says that it copied something, or that nothing is left to copy."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        told = re.search(r"(\d+) copied, (\d+) behind", line)
        if told and (int(told[1]) or not int(told[2])):
            break
    process.kill()
    process.wait()
    process.stderr.close()
