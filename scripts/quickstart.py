"""`scripts/quickstart`: a group of three loses its leader and nothing else; all is consumed and audited.

Run by the shell script of the same name, which makes the virtual environment. The last line of the output is
for machines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orders import OrderEvent, order_events

from dledger.client import (
    ClientError,
    FromWhere,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from dledger.commands.group_actions import Wish, bring_back, bring_up
from dledger.local.cluster import ClusterError, ClusterSpec, LocalCluster, ProcessError, find_base_port

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "quickstart"
QUEUES = 8
WINDOW = 64
"""Messages without an acknowledgement at a time."""
NUMBER = "quickstart_number"
"""Property that numbers the messages, so that every one can be accounted for."""
PATIENT = ProducerOptions(timeout_s=60.0)
"""A send waits for a leader this long: on a machine that stands still an election may take seconds."""
QUIET_S = 1.0
"""The consumer is done when everything arrived and nothing more came for so long."""
CONSUME_LIMIT_S = 60.0
"""Without any new message for so long, what is missing counts as lost."""
AUDIT_LIMIT_S = 300.0
COMMAND = str(Path(sys.executable).with_name("dledger"))
"""As somebody types it who has not activated the environment."""
VERDICTS = {0: "clean", 1: "warnings", 2: "errors", 3: "critical"}


class QuickstartError(Exception):
    """A step failed; the text says which and why."""


@dataclass
class Summary:
    """What the last line and the table say."""

    wanted: int = 0
    produced: int = 0
    failed: int = 0
    consumed: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    failover_ms: int | None = None
    old_leader: str = "-"
    new_leader: str = "-"
    audit: str = "not-run"
    engine: str = "on this machine"
    reason: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def verdict(self) -> str | None:
        """Why this is not ok; None if it is."""
        if self.reason:
            return self.reason
        checks = {
            "not every message was acknowledged": self.produced == self.wanted > 0,
            "messages were lost": self.lost == 0 and self.consumed == self.produced,
            "events of one order changed places": self.reordered == 0,
            "no failover happened": self.failover_ms is not None,
            f"the audit says {self.audit}": self.audit == "clean",
        }
        return next((text for text, good in checks.items() if not good), None)

    def last_line(self) -> str:
        """For machines."""
        reason = self.verdict()
        words = [
            f"produced={self.produced}",
            f"consumed={self.consumed}",
            f"lost={self.lost}",
            f"duplicated={self.duplicated}",
            f"failover_ms={'-' if self.failover_ms is None else self.failover_ms}",
            f"audit={self.audit}",
        ]
        if reason is None:
            return " ".join(["quickstart: ok", *words])
        return " ".join(["quickstart: failed", *words, f"reason={json.dumps(reason)}"])

    def table(self) -> str:
        """For people."""
        rows = [
            ("messages acknowledged (fsynced on a majority)", f"{self.produced} of {self.wanted}"),
            ("messages received", str(self.consumed)),
            ("acknowledged but never received", str(self.lost)),
            ("received more than once", str(self.duplicated)),
            ("events of one order out of order", str(self.reordered)),
            ("leader killed, successor", f"{self.old_leader}, {self.new_leader}"),
            (
                "failover: kill to next acknowledged send",
                f"{self.failover_ms} ms" if self.failover_ms else "-",
            ),
            (f"replicas, compared {self.engine}", self.audit),
            *((f"time: {name}", f"{seconds:.1f} s") for name, seconds in self.seconds.items()),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows)


class Steps:
    """Says what happens, and keeps how long each step took."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._name = ""
        self._began = self._step_began = time.monotonic()

    def begin(self, name: str, text: str) -> None:
        """A new step; the one before has ended."""
        self.end()
        self._name, self._step_began = name, time.monotonic()
        self.say(text)

    def say(self, text: str) -> None:
        """One line with the time since the start."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def end(self) -> None:
        """The current step is over."""
        if self._name:
            self._summary.seconds[self._name] = time.monotonic() - self._step_began
            self._name = ""


class Sending:
    """Sends with a window; callbacks come on the producer's own thread."""

    def __init__(self, producer: Producer) -> None:
        self.acked: dict[int, SendResult] = {}
        self.failures: list[str] = []
        self.killed_at: float | None = None
        self.failover_s: float | None = None
        self._producer = producer
        self._room = threading.Semaphore(WINDOW)

    def send(self, number: int, event: OrderEvent) -> None:
        """Send one message; waits while the window is full."""
        self._room.acquire()
        properties = {NUMBER: str(number)}
        message = Message(
            TOPIC, event.body, tags=event.tag or None, keys=event.key or (), properties=properties
        )
        done = partial(self._done, number, time.monotonic())
        self._producer.send_async(message, done, ordering_key=event.key or None)

    def drain(self) -> None:
        """Until every message is settled."""
        for _ in range(WINDOW):
            self._room.acquire()

    def _done(self, number: int, started_at: float, result: SendResult | ClientError) -> None:
        if isinstance(result, ClientError):
            self.failures.append(str(result))
        else:
            self.acked[number] = result
            if self.killed_at is not None and self.failover_s is None and started_at > self.killed_at:
                self.failover_s = time.monotonic() - self.killed_at
        self._room.release()


class Receiving:
    """Counts what arrives; the listener runs in several threads."""

    def __init__(self) -> None:
        self.copies: dict[int, int] = {}
        self.places: list[tuple[int, int, str, int]] = []
        self.last_at = time.monotonic()
        self._lock = threading.Lock()

    def receive(self, message: ReceivedMessage) -> None:
        """The listener."""
        number = int(message.properties[NUMBER])
        key = message.keys[0] if message.keys else ""
        with self._lock:
            self.copies[number] = self.copies.get(number, 0) + 1
            self.places.append((message.queue.queue_id, message.queue_offset, key, number))
            self.last_at = time.monotonic()

    def wait(self, wanted: set[int]) -> None:
        """Until all wanted ones arrived and it is quiet, or nothing came for too long."""
        self.last_at = time.monotonic()
        while True:
            with self._lock:
                complete = wanted <= self.copies.keys()
                silent = time.monotonic() - self.last_at
            if silent > (QUIET_S if complete else CONSUME_LIMIT_S):
                return
            time.sleep(0.05)

    def reordered(self) -> int:
        """Events of one order that lie behind a later one in the log (copies of earlier ones apart)."""
        count = 0
        seen: dict[int, bool] = {}
        latest: dict[str, int] = {}
        for _, _, key, number in sorted(self.places):
            if key and number not in seen:
                count += number < latest.get(key, -1)
                latest[key] = max(number, latest.get(key, -1))
            seen[number] = True
        return count


def lines_of(path: Path) -> Iterator[OrderEvent]:
    """One message a line; empty lines are left out."""
    with path.open("rb") as file:
        for line in file:
            if body := line.rstrip(b"\r\n"):
                yield OrderEvent("", "", body)


def load_events(arguments: argparse.Namespace) -> list[OrderEvent]:
    if arguments.input is None:
        return list(itertools.islice(order_events(arguments.seed), arguments.messages or 10_000))
    events = list(itertools.islice(lines_of(arguments.input), arguments.messages))
    if not events:
        raise QuickstartError(f"{arguments.input} has no lines")
    return events


def make_cluster(arguments: argparse.Namespace) -> LocalCluster:
    """A fresh group; the directory of an earlier run is replaced, one of somebody else is not touched."""
    directory: Path = arguments.dir
    if LocalCluster.known(directory):
        if LocalCluster.open(directory).running():
            raise QuickstartError(f"a group still runs: {COMMAND} down --dir {directory}")
        shutil.rmtree(directory)
    base = arguments.base_port or find_base_port()
    return LocalCluster.create(directory, ClusterSpec(base_port=base))


def produce(cluster: LocalCluster, events: list[OrderEvent], steps: Steps, summary: Summary) -> Sending:
    """Send everything, and kill the leader half way."""
    with Producer("PG_quickstart", cluster.namesrv_addr, PATIENT) as producer:
        producer.create_topic(TOPIC, QUEUES)
        sending = Sending(producer)
        half = len(events) // 2
        for number, event in enumerate(events):
            if number == half:
                killed = cluster.kill_leader()
                sending.killed_at = killed.at
                summary.old_leader = killed.node
                steps.say(
                    f"dledger kill-leader: SIGKILL to {killed.node} (pid {killed.pid}) after {half} sends"
                )
            sending.send(number, event)
        sending.drain()
    summary.produced, summary.failed = len(sending.acked), len(sending.failures)
    if sending.failover_s is not None:
        summary.failover_ms = max(1, round(sending.failover_s * 1000))
    if sending.failures:
        steps.say(f"{len(sending.failures)} sends failed, the first one: {sending.failures[0]}")
    return sending


def consume(cluster: LocalCluster, sending: Sending, summary: Summary) -> None:
    receiving = Receiving()
    consumer = PushConsumer(
        "CG_quickstart", cluster.namesrv_addr, receiving.receive, topic=TOPIC, from_where=FromWhere.FIRST
    )
    with consumer:
        receiving.wait(set(sending.acked))
    summary.consumed = len(receiving.copies)
    summary.lost = len(sending.acked.keys() - receiving.copies.keys())
    summary.duplicated = sum(copies - 1 for copies in receiving.copies.values())
    summary.reordered = receiving.reordered()


def audit(cluster: LocalCluster, *, on_spark: bool) -> str:
    """Compare the replicas. `clean`, or what is wrong."""
    stores = [str(cluster.store(node)) for node in cluster.spec.node_ids]
    command = ("dledger.spark", "audit") if on_spark else ("dledger.audit", "compare")
    report = cluster.directory / "audit.json"
    with report.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", *command, *stores, "--same-time", "--json"],
            stdout=output,
            cwd=ROOT,
            timeout=AUDIT_LIMIT_S,
            check=False,
        )
    return VERDICTS.get(done.returncode, f"not-run({done.returncode})")


def run(arguments: argparse.Namespace, summary: Summary) -> None:
    steps = Steps(summary)
    events = load_events(arguments)
    summary.wanted = len(events)
    cluster = make_cluster(arguments)
    last_port = max(cluster.spec.ports())
    try:
        steps.begin("start", f"dledger up: a NameServer and three brokers in {cluster.directory}")
        bring_up(cluster.directory, Wish(), environment=False)
        steps.say(f"leader {cluster.wait_leader()} serves; ports {cluster.spec.base_port} to {last_port}")
        steps.begin("produce", f"producing {len(events)} messages to topic {TOPIC} with {QUEUES} queues")
        sending = produce(cluster, events, steps, summary)
        summary.new_leader = cluster.wait_leader()
        steps.say(f"{summary.produced} acknowledged; {summary.new_leader} leads now")
        steps.begin("rejoin", f"dledger restart: {summary.old_leader} again, until it has caught up")
        bring_back(cluster, None)
        steps.begin("consume", "consuming everything")
        consume(cluster, sending, summary)
        summary.engine = "on Spark" if arguments.spark else "on this machine"
        steps.begin("audit", f"comparing the three replicas {summary.engine}")
        summary.audit = audit(cluster, on_spark=arguments.spark)
    finally:
        steps.end()
        if arguments.keep and cluster.running():
            steps.say(f"the group keeps running: NameServer {cluster.namesrv_addr}")
            steps.say(f"  look: {COMMAND} status --dir {arguments.dir}")
            steps.say(f"  stop: {COMMAND} down --dir {arguments.dir}")
        else:
            steps.say("dledger down")
            cluster.stop()


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, metavar="FILE", help="messages: the lines of this file")
    parser.add_argument(
        "--messages", type=positive, metavar="N", help="how many (default 10000, or all lines)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order events (default 1)")
    parser.add_argument(
        "--spark",
        action="store_true",
        help="compare the replicas on Spark, which is installed for it (1 GiB); default: without",
    )
    parser.add_argument("--keep", action="store_true", help="leave the group running")
    parser.add_argument(
        "--dir", type=Path, default=ROOT / "run" / "quickstart", help="default run/quickstart"
    )
    parser.add_argument("--base-port", type=int, help="first port (default: 9876, or the next free range)")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us, the group is stopped
    summary = Summary()
    began = time.monotonic()
    try:
        run(arguments, summary)
    except KeyboardInterrupt:
        summary.reason = "interrupted"
    except (QuickstartError, ClusterError, ProcessError, ClientError, OSError) as error:
        summary.reason = str(error)
    except subprocess.TimeoutExpired as error:
        summary.reason = f"no answer within {error.timeout:g} s: {' '.join(map(str, error.cmd[:4]))}"
    summary.seconds["all"] = time.monotonic() - began
    print(f"\n{summary.table()}\n")
    print(summary.last_line())
    return 0 if summary.verdict() is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
