"""Drivers and executors that are killed while they write: with `exactlyOnce` each row is stored once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.client import Message, MessageQueue, Producer
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import RangeOptions
from dledger.client.encoding import received_all
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port, wait_for
from dledger.spark.sink_rows import DEDUP_ID
from tests.spark.writing_driver import COPIED, FROM, STREAMED, WRITTEN

if TYPE_CHECKING:
    from dledger.client.message import ReceivedMessage
    from tests.spark.standalone import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("writing_driver.py")
TARGETS = (COPIED, STREAMED, WRITTEN)
ROWS = 1500
"""How many rows are written for each kill."""
QUEUES = 2
LIMIT_S = 600.0
NOT_CONNECTED = "Python worker failed to connect back"
MOST_GIVEN_UP = 20
ROUNDS_FOR_ONE = 3
"""A kill counts if rows were sent again after it. How many rounds there are at most for each that counts."""


@dataclass
class Trial:
    """A running group, a Spark cluster, and a driver that writes to the topics `TARGETS`."""

    group: LocalCluster
    cluster: Cluster
    directory: Path
    puller: RangePuller
    fed: dict[str, list[bytes]] = field(default_factory=lambda: {topic: [] for topic in TARGETS})
    """The rows that are to be written to each topic."""
    driver: subprocess.Popen[bytes] | None = None
    given_up: int = 0
    """How often a driver ended because a process of Spark's did not connect in time."""

    def start_driver(self) -> None:
        """Start the driver, in a process group of its own with its Java."""
        environ = {**self.cluster.environ, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, str(DRIVER), self.cluster.master, self.group.namesrv_addr]
        with (self.directory / "driver.log").open("wb") as log:
            self.driver = subprocess.Popen(
                [*words, str(self.directory)],
                env=environ,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def keep_running(self) -> None:
        """Start the driver again if it ended because a Python process did not connect to Java within Spark's
        10 s, as on a busy machine. Any other end is a failure."""
        assert self.driver is not None
        if self.driver.poll() is None:
            return
        why = self.said()
        self.given_up += 1
        assert NOT_CONNECTED in why[-3000:] and self.given_up <= MOST_GIVEN_UP, why
        self.start_driver()

    def feed(self, topic: str, number: int) -> None:
        """Hand the rows of one round over to the driver."""
        rows = [b"%d-%05d of %s" % (number, row, topic.encode()) for row in range(ROWS)]
        self.fed[topic] += rows
        if topic == COPIED:
            with Producer("PG_killed", self.group.namesrv_addr) as producer:
                for queue in range(QUEUES):
                    to = MessageQueue(FROM, self.group.spec.group, queue)
                    producer.send_batch([Message(FROM, row) for row in rows[queue::QUEUES]], to)
            return
        to = self.directory / ("stream" if topic == STREAMED else "batch") / f"{number:04d}.txt"
        part = self.directory / "part"
        part.write_bytes(b"\n".join(rows) + b"\n")
        part.rename(to)

    def stored(self, topic: str) -> int:
        """How many messages the topic has."""
        bounds = self.puller.bounds(self.puller.queues(topic))
        return sum(end - start for start, end in bounds.values())

    def wait_stored(self, topic: str, least: int) -> int:
        """Wait until the topic has so many messages, and return how many it has."""

        def enough() -> int | None:
            self.keep_running()
            found = self.stored(topic)
            return found if found >= least else None

        return wait_for(enough, LIMIT_S, lambda: f"{topic}: {self.stored(topic)} of {least}; {self.said()}")

    def ended(self, topic: str) -> bool:
        """Whether everything that was begun has ended: of a stream each batch that is planned is committed,
        and a batch write is done."""
        if topic == WRITTEN:
            return not list((self.directory / "batch").glob("*.txt"))
        check = self.directory / f"check-{topic}"
        planned, committed = (
            {path.name for path in (check / part).iterdir() if path.name.isdecimal()}
            for part in ("offsets", "commits")
        )
        return planned <= committed

    def recognised(self) -> int:
        """How many repeated messages the brokers have recognised."""
        total = 0
        for node in self.group.spec.node_ids:
            url = f"http://127.0.0.1:{self.group.spec.http_port(node)}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                found = re.search(rb"^\S*resends_recognized\S* (\d+)", answer.read(), re.MULTILINE)
                assert found is not None
                total += int(found[1])
        return total

    def kill_driver(self) -> None:
        """Kill Python and Java of the driver, and start both again."""
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.start_driver()

    def kill_executor(self, number: int) -> None:
        """Kill the Java of one of the executors."""
        executors = self.cluster.executors()
        assert executors, self.said()
        os.kill(executors[number % len(executors)], signal.SIGKILL)

    def round(self, number: int, victim: str) -> bool:
        """Let the driver write some rows and kill something meanwhile. Return whether rows were sent
        again."""
        topic = TARGETS[number % len(TARGETS)]
        began = time.monotonic()
        before, known = self.stored(topic), self.recognised()
        self.feed(topic, number)
        self.wait_stored(topic, before + 1)
        if victim == "driver":
            self.kill_driver()
        else:
            self.kill_executor(number)
        seen = self.stored(topic) - before
        self.wait_stored(topic, before + ROWS)  # also by tasks that outlive their driver for a moment

        def ended() -> bool:
            self.keep_running()
            return self.ended(topic)

        wait_for(ended, LIMIT_S, lambda: f"{topic} is still written; {self.said()}")
        again = self.recognised() - known
        took = time.monotonic() - began
        print(
            f"round {number}: {victim} killed with {seen} of {ROWS} rows in {topic}, {again} recognised "
            f"when sent again, {took:.0f} s",
            flush=True,
        )
        return again > 0

    def end(self) -> None:
        """End the driver when it has written everything."""
        (self.directory / "stop").touch()
        assert self.driver is not None and self.driver.wait(LIMIT_S) == 0, self.said()
        print(f"{self.given_up} drivers ended because Python did not connect in time")

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """All messages of a topic."""
        bounds = self.puller.bounds(self.puller.queues(topic))
        found: list[ReceivedMessage] = []
        for queue, records in self.puller.pull([(queue, *ends) for queue, ends in bounds.items()]):
            found += received_all(records, queue.broker_name)
        return found

    def said(self) -> str:
        """The end of what the driver said."""
        return (self.directory / "driver.log").read_text(errors="replace")[-3000:]


@contextmanager
def trial(directory: Path, flush: str) -> Iterator[Trial]:
    from tests.spark.standalone import cluster

    for name in ("cluster", "driver", "driver/stream", "driver/batch"):
        (directory / name).mkdir()
    spec = ClusterSpec(base_port=find_base_port(start=26000), segment_size=16 * MIB, flush=flush)
    group = LocalCluster.create(directory / "group", spec)
    group.start()
    try:
        for topic in (FROM, *TARGETS):
            group.create_topic(topic, QUEUES)
        puller = RangePuller(group.namesrv_addr, RangeOptions("CG_killed"))
        with cluster(directory / "cluster") as spark_cluster, puller:
            made = Trial(group, spark_cluster, directory / "driver", puller)
            made.start_driver()
            try:
                yield made
            finally:
                if made.driver is not None and made.driver.poll() is None:
                    os.killpg(made.driver.pid, signal.SIGKILL)
                    made.driver.wait()
    finally:
        group.stop()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(7000)])])
def test_each_row_is_stored_once_whatever_is_killed(tmp_path: Path, flush: str, kills: int) -> None:
    with trial(tmp_path, flush) as made:
        number = 0
        for victim in ("executor", "driver"):
            counted = 0
            for _ in range(ROUNDS_FOR_ONE * kills):
                counted += made.round(number, victim)
                number += 1
                if counted == kills:
                    break
            assert counted == kills, f"after {counted} kills of {victim}s only, rows were sent again"
        made.end()
        origin = {(one.queue.queue_id, one.queue_offset): one.body for one in made.messages(FROM)}
        for topic in TARGETS:
            found = made.messages(topic)
            ids = [message.properties[DEDUP_ID] for message in found]
            for ident, message in zip(ids, found, strict=True):
                if topic == COPIED:
                    _, queue, _, offset = ident.split(":")
                    assert origin[int(queue), int(offset)] == message.body
                else:
                    assert message.body.split()[0] == ident.encode()
            several = [one for one, count in Counter(ids).items() if count > 1]
            assert not several, f"{topic}: {len(several)} ids are stored more than once, as {several[:3]}"
            assert sorted(message.body for message in found) == sorted(made.fed[topic]), topic
            print(f"{topic}: {len(found)} rows, each once")
        print(f"{flush}: {number} kills, {kills} drivers and {kills} executors counted")
