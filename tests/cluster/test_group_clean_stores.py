"""Stores that a group of real brokers leaves behind are clean, however they came to be: running, killed,
stopped, copied by `dledger backup`, with deleted topics, and after retention.

Every file of a store is compared with the log, so each kind of replicated state is in them: consumer offsets,
delayed and timer messages, batches, keys, transactions, deleted topics.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Semaphore

from dledger.audit.findings import Severity
from dledger.client import Message, Producer, PullConsumer
from dledger.client.errors import ClientError
from dledger.formats.snapshot import BEGINS_FILE
from dledger.local.cluster import LocalCluster, wait_for
from tests.audit.engine import audit

SEGMENT = 9 * 1024 * 1024
TOPICS = ("orders", "payments", "gone")
IN_FLIGHT = 200
SIZES = range(2000, 4000)
"""Sizes of messages in bytes. Three thousand messages fill a segment; larger ones would be compressed."""


class Sender:
    """Sends messages of all kinds; `number` counts them."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.number = 0

    def send(self, count: int, *, waits: bool = True, long_waits: bool = False) -> None:
        """Send so many messages, and wait for all answers. Refused messages do not matter here. With `waits`
        some of them wait for a time."""
        free = Semaphore(IN_FLIGHT)
        for _ in range(count):
            free.acquire()
            self._producer.send_async(self._message(waits, long_waits), lambda answer: free.release())
            if self.number % 500 == 7:
                batch = [Message("payments", b"%d" % at, keys=f"batch{self.number}") for at in range(16)]
                with suppress(ClientError):  # there may be no leader now
                    self._producer.send_batch(batch)
        for _ in range(IN_FLIGHT):
            free.acquire()

    def _message(self, waits: bool, long_waits: bool) -> Message:
        number = self.number
        self.number += 1
        if waits and number % 100 == 50:
            return Message("orders", b"delayed", delay_level=18 if long_waits else 1 + number // 100 % 2)
        if waits and number % 100 == 90:
            wait = timedelta(hours=3) if long_waits else timedelta(seconds=number // 100 % 5)
            return Message("orders", b"at a time", delay=wait)
        return Message(
            TOPICS[number % 3],
            b"%d " % number + bytes([number % 251]) * SIZES[number * 37 % len(SIZES)],
            tags=f"tag{number % 4}" if number % 3 else None,
            keys=[f"k{number}", f"s{number % 7}"] if number % 2 else None,
        )


def backup(group: LocalCluster, to: Path) -> list[Path]:
    """`dledger backup` of every running node."""
    copies = []
    for node in group.spec.node_ids:
        target = to / node
        target.mkdir(parents=True)
        command = [sys.executable, "-m", "dledger", "backup", "--store", str(group.store(node))]
        done = subprocess.run([*command, "--to", str(target)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        copies.append(target)
    return copies


def copied(group: LocalCluster, to: Path) -> list[Path]:
    """Plain copies of the stores of all nodes, which must not run."""
    to.mkdir()
    for node in group.spec.node_ids:
        subprocess.run(["cp", "-r", "--sparse=always", group.store(node), to / node], check=True)
    return [to / node for node in group.spec.node_ids]


def check_clean(what: str, stores: list[Path], *, same_time: bool) -> None:
    """Audit stores together and each alone."""
    for given in (stores, *([store] for store in stores)):
        report = audit(given, same_time=same_time)
        worse = [found for found in report.findings if found.severity > Severity.INFO]
        assert not worse, (what, [store.name for store in given], worse)


def test_stores_are_clean_however_they_came_to_be(
    new_group: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    group = new_group(
        segment_size=SEGMENT,
        pool_segments=1,
        broker={"snapshotIntervalMs": "2000", "maxHashSlotNum": "1000", "maxIndexNum": "20000"},
    )
    with Producer("clean", group.namesrv_addr) as producer:
        for topic in TOPICS:
            producer.create_topic(topic, queues=4)
        sender = Sender(producer)
        sender.send(8000, waits=False)  # messages that wait would keep the segments before them
        retire_old_segments(group)
        check_clean("backup after retention", backup(group, tmp_path / "retained"), same_time=True)
        sender.send(2000)
        with PullConsumer("readers", group.namesrv_addr) as consumer:
            consumer.assign(consumer.queues("orders"))
            assert consumer.poll(10.0)
            consumer.commit()
        producer.delete_topic("gone")
        producer.create_topic("gone", queues=4)
        sender.send(2000)
        check_clean("backup", backup(group, tmp_path / "backup"), same_time=True)

        killed = group.kill_leader()
        group.wait_leader()
        sender.send(1500)
        group.start_node(killed.node)
        group.wait_caught_up()
        sender.send(1500, long_waits=True)
        for node in group.spec.node_ids:
            group.kill(node)
    check_clean("killed", copied(group, tmp_path / "killed"), same_time=True)
    group.start()
    group.wait_ready()
    group.wait_caught_up()
    group.stop()
    stopped = copied(group, tmp_path / "stopped")
    check_clean("stopped", stopped, same_time=True)
    for store in stopped:  # as an older program left them
        for name in ("members", "lock"):
            next(store.glob("dledger-*")).joinpath(name).unlink()
        shutil.rmtree(store / "state")
    check_clean("without files that a node makes again", stopped, same_time=True)


def retire_old_segments(group: LocalCluster) -> None:
    """Have every node remove its first segments."""
    peers = group.broker_properties("n0")["dLegerPeers"]

    def retired() -> bool | None:
        most = group.committed_index(group.wait_leader()) * 3 // 4
        command = [sys.executable, "-m", "dledger", "delete-before", str(most), "--peers", peers]
        subprocess.run(command, capture_output=True, check=True)
        nodes = [group.store(node) / f"dledger-{node}" for node in group.spec.node_ids]
        return all((node / BEGINS_FILE).exists() for node in nodes) or None

    wait_for(retired, 60, lambda: "no segment was removed")
