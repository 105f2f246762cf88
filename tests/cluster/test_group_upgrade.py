"""A rolling upgrade with real processes: to a program with one more kind of state, back, and forward for
good."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dledger.client import Message, Producer, ProducerOptions, PullConsumer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port
from dledger.local.processes import ManagedProcess
from tests.audit.engine import audit

NEWER = Path(__file__).with_name("newer_broker.py")
MIB = 1 << 20


def process(group: LocalCluster, node: str) -> ManagedProcess:
    return group._brokers[node]


def roll(group: LocalCluster, node: str, newer: bool) -> None:
    """Stop a broker, start it with the other program, wait until it has caught up."""
    group.terminate(node)
    start(group, node, newer)
    group.wait_caught_up(nodes=[node])


def start(group: LocalCluster, node: str, newer: bool) -> None:
    one = process(group, node)
    options = one._command[one._command.index("-c") :]
    one._command = [sys.executable, *([str(NEWER)] if newer else ["-m", "dledger.broker"]), *options]
    group.start_node(node)


def said(group: LocalCluster, node: str) -> str:
    return (group.directory / "logs" / f"broker-{node}.out").read_text()


def wait_until_said(group: LocalCluster, text: str) -> None:
    deadline = time.monotonic() + 20
    while not any(text in said(group, node) for node in group.spec.node_ids):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


@pytest.mark.slow
def test_newer_operations_wait_for_the_last_broker_and_end_one_that_goes_back(tmp_path: Path) -> None:
    spec = ClusterSpec(base_port=find_base_port(), segment_size=9 * MIB, pool_segments=1)
    group = LocalCluster.create(tmp_path, spec)
    group.start()
    sent = 0

    def produce(count: int, size: int = 10) -> None:
        nonlocal sent
        with Producer("PG", group.namesrv_addr, ProducerOptions(compress_over=0)) as producer:
            for _ in range(count):
                producer.send(Message("T", b"%d " % sent + b"x" * size))
                sent += 1

    try:
        produce(10)
        *first, last = group.followers_first()
        for node in first:
            roll(group, node, newer=True)
            produce(5)
        group.terminate(last)  # a newer one leads now, and the last voter that it heard of is the old one
        start(group, last, newer=False)
        group.wait_caught_up(nodes=[last])
        wait_until_said(group, "note waits: note needs state version")
        roll(group, first[0], newer=False)  # and back again: nothing was written that it does not know
        produce(5)
        assert not any("note written" in said(group, node) for node in spec.node_ids)

        for node in group.followers_first():
            roll(group, node, newer=True)
        wait_until_said(group, "note written")
        produce(40, MIB)  # several segments: the log is to begin behind the note
        group.wait_caught_up()
        peers = ";".join(f"{node}-127.0.0.1:{spec.raft_port(node)}" for node in spec.node_ids)
        before = str(group.committed_index(spec.node_ids[0]) - 10)
        command = [sys.executable, "-m", "dledger", "delete-before", before, "--peers", peers]
        subprocess.run(command, check=True, capture_output=True)

        back = group.followers_first()[0]
        roll(group, back, newer=False)  # it carries the part that it does not know
        leader = group.wait_leader()
        roll(group, leader, newer=True)  # who leads then has written a note of its own already
        group.wait_caught_up()
        produce(5)
        with PullConsumer("CG", group.namesrv_addr) as consumer:
            assert sum(consumer.highest(queue) for queue in consumer.queues("T")) == sent
    finally:
        group.stop()
    report = audit([tmp_path / "store" / node for node in spec.node_ids])
    assert report.exit_code <= 1, report.lines()


@pytest.mark.slow
def test_a_broker_that_meets_a_newer_operation_ends_with_what_to_do(tmp_path: Path) -> None:
    spec = ClusterSpec(base_port=find_base_port(), segment_size=9 * MIB, pool_segments=1)
    group = LocalCluster.create(tmp_path, spec)
    for node in spec.node_ids:
        one = process(group, node)
        one._command = [sys.executable, str(NEWER), *one._command[one._command.index("-c") :]]
    group.start()
    try:
        wait_until_said(group, "note written")
        group.wait_caught_up()
        back = group.followers_first()[0]
        group.kill(back)  # without a snapshot of its own behind the note
        start(group, back, newer=False)
        assert process(group, back).wait_gone(20)
        assert process(group, back).exit_code() == 78
        assert "does not know the operation 'note'" in process(group, back).tail()
        assert "start this node with the version that the other members run" in said(group, back)
        start(group, back, newer=True)
        group.wait_caught_up()
    finally:
        group.stop()
    report = audit([tmp_path / "store" / node for node in spec.node_ids])
    codes = {found.code for found in report.findings}
    assert "STATE_TOO_NEW" in codes and "STATE_DIFFERS" not in codes
