"""`dledger chaos failover`: measures how long a group of real processes is without a leader, over many
rounds.

The group has three brokers and a NameServer on loopback. In one round the leader is killed (SIGKILL). A probe
in another process (`dledger.chaos.failover_clock`) then waits for the acknowledgement of a message that it
first sent after the kill. Then the node is started again, and the round ends when it has caught up. With
`--load` another process keeps a window of messages in flight around each kill. With `--stop` the leader is
stopped (SIGSTOP) instead and continued after 10 s; the report counts the changes of leader and the terms that
the stop caused.

Without `--stop` the delays of the nodes' event loops are judged, too (`chaos.lateness`).

For the slowest rounds the report shows the log lines of the other nodes, in milliseconds since the kill. It
also shows when the kernel had ended the killed process. This matters because the kernel closes no connection
of a process before the last thread of the process has ended, and a thread that waits for an fsync cannot end.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dledger.chaos.failover_clock import TOPIC
from dledger.chaos.lateness import Lateness
from dledger.chaos.line_process import LineProcess
from dledger.chaos.pressure import LOAD_TOPIC
from dledger.chaos.trials.node_logs import parse_line
from dledger.chaos.trials.result import percentile
from dledger.local.cluster import (
    MIB,
    ClusterError,
    ClusterSpec,
    LocalCluster,
    find_base_port,
    wait_for,
)
from dledger.runtime.options import Options

LIMIT_S = 30.0
"""Longest time of one failover, in seconds. A longer failover ends the run."""
STOPPED_S = 10.0
"""How long a stopped leader stays stopped, in seconds."""
SETTLE_S = 2.0
"""How long to wait after a stopped leader was continued, before terms are compared, in seconds."""
LOAD_LEAD_S = 1.0
"""How long the load runs before the kill, in seconds."""
LOAD_TAIL_S = 0.2
MAX_STORE_BYTES = 6 * 1024 * MIB
"""Limit, in bytes, of all stores together. Above it a new group is made with empty stores."""
MAX_TERMS = 3
"""Largest number of terms that one stopped leader may cause. A split vote is allowed; more terms count as an
election storm."""
SLOWEST = 5
"""Number of the slowest rounds for which the report shows log lines."""
BUDGET_MS = {"idle": (100, 300), "load": (100, 1000), "stop": (1000, 1000)}
"""Maps each mode to the promised median and the promised p99 in milliseconds."""
_BUCKETS_MS = (10, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 400, 600, 800, 1000, 2000, 30_000)


@dataclass
class Round:
    """The result of one round, which is one failover. Times are in milliseconds since the kill."""

    number: int
    node: str
    ms: float
    sent_ms: float
    """When the message was first sent whose acknowledgement ended the failover."""
    tries: int
    ended_ms: float | None = None
    """When the kernel had ended the killed process. None if the process was only stopped, or outside
    Linux."""
    timeline: list[str] = field(default_factory=list)
    leader_changes: int = 0
    terms: int = 0


def run(args: Options) -> int:
    """Run the command. Exit code 0: all rounds are done. Exit code 1: a failover failed, a message was lost
    or is stored twice, or (with --check) a failover was too slow."""
    with ExitStack() as stack:
        directory = Path(args.dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-")))
        measure = Measurement(args, directory / "group")
        try:
            measure.run()
        except (ClusterError, TimeoutError, subprocess.SubprocessError) as error:
            print(f"failover: {error}", file=sys.stderr)
            return 1
        report = measure.report()
    for line in describe(report, measure.rounds):
        print(line)
    if args.json:
        print(json.dumps(report))
    if report["lost"] or report["load_lost"] or report["load_stored_twice"]:
        return 1
    return 1 if args.check and not report["within_budget"] else 0


class Measurement:
    """Runs the rounds on one group. A new group is made when the stores grow too large."""

    def __init__(self, args: Options, directory: Path) -> None:
        self._args = args
        self._directory = directory
        self._chance = random.Random(args.seed)
        self.rounds: list[Round] = []
        self._acked = 0
        self._places = 0
        self._load_acked = 0
        self._load_lost = 0
        self._load_resent = 0
        self._load_twice = 0
        self.lateness: Lateness = Lateness()
        self._gc_ms = 0.0

    @property
    def mode(self) -> str:
        """The kind of the measurement: `idle`, `load` or `stop`."""
        if self._args.stop:
            return "stop"
        return "load" if self._args.load else "idle"

    def run(self) -> None:
        """Run all rounds."""
        while len(self.rounds) < self._args.kills:
            with self._group() as group, ExitStack() as stack:
                addresses = [group.addr(node) for node in group.spec.node_ids]
                probe = stack.enter_context(LineProcess("dledger.chaos.failover_clock", TOPIC, *addresses))
                load: LineProcess | None = None
                if self._args.load:
                    window = ["--window", str(self._args.window)]
                    load = stack.enter_context(
                        LineProcess("dledger.chaos.pressure", group.namesrv_addr, LOAD_TOPIC, *window)
                    )
                probe.say(f"since {time.monotonic()}")
                probe.answer()
                self._rounds(group, probe, load)
                self._note_pauses(group)
                for node in group.spec.node_ids:
                    self.lateness.read_log(log_path(group, node).read_text(errors="replace"))
                counts = probe.ask("count")
                if load is not None:
                    checked = load.ask("check")
                    self._load_acked += checked["acked"]
                    self._load_lost += checked["lost"]
                    self._load_resent += checked["resent"]
                    # A send that failed may be stored or not.
                    self._load_twice += max(0, checked["stored"] - checked["acked"] - checked["failed"])
                self._acked += counts["acked"]
                self._places += counts["places"]

    @contextmanager
    def _group(self) -> Iterator[LocalCluster]:
        shutil.rmtree(self._directory, ignore_errors=True)
        spec = ClusterSpec(base_port=find_base_port(), segment_size=64 * MIB)
        group = LocalCluster.create(self._directory, spec)
        group.start()
        try:
            group.create_topic(TOPIC, 1)
            group.create_topic(LOAD_TOPIC, 4)
            yield group
        finally:
            group.stop()

    def _rounds(self, group: LocalCluster, probe: LineProcess, load: LineProcess | None) -> None:
        while len(self.rounds) < self._args.kills:
            if _size(group.directory / "store") > MAX_STORE_BYTES:
                return
            if load is not None:
                load.ask("on")
                time.sleep(LOAD_LEAD_S)
            time.sleep(self._chance.uniform(0.1, 0.4))
            self._note_pauses(group)
            done = self._round(group, probe, load)
            self.rounds.append(done)
            if sys.stderr.isatty():
                print(f"\r{len(self.rounds)}/{self._args.kills}: {done.ms:.0f} ms  ", end="", file=sys.stderr)

    def _round(self, group: LocalCluster, probe: LineProcess, load: LineProcess | None) -> Round:
        node = group.wait_leader()
        states = {other: group.state(other) for other in group.spec.node_ids}
        logs = {other: _Tail(group, other) for other in group.spec.node_ids if other != node}
        own = _Tail(group, node)
        end = None if self._args.stop else End(group.pid(node))
        wall, at = time.time(), time.monotonic()
        group.signal(node, signal.SIGSTOP if self._args.stop else signal.SIGKILL)
        probe.say(f"since {at}")
        answer = probe.answer()
        ended_at = None if end is None else end.wait()
        if load is not None:
            time.sleep(LOAD_TAIL_S)
            load.ask("off")
        result = Round(
            number=len(self.rounds),
            node=node,
            ms=round((answer["acked_at"] - at) * 1000, 1),
            sent_ms=round((answer["sent_at"] - at) * 1000, 1),
            tries=answer["tries"],
            ended_ms=None if ended_at is None else round((ended_at - at) * 1000, 1),
        )
        time.sleep(0.05)
        result.timeline = timeline(logs.values(), wall, result.ms + 50)
        if self._args.stop:
            time.sleep(max(0.0, at + STOPPED_S - time.monotonic()))
            group.signal(node, signal.SIGCONT)
            time.sleep(SETTLE_S)
            before = max(int(state.get("term", 0)) for state in states.values())
            after = [int(group.state(other).get("term", 0)) for other in group.spec.node_ids]
            result.terms = max(after) - before
            result.leader_changes = sum(log.count("role role=LEADER") for log in (*logs.values(), own))
        else:
            wait_for(lambda: group.pid(node) is None or None, LIMIT_S, lambda: f"{node} does not die")
            group.start_node(node)
        group.wait_caught_up()
        return result

    def _note_pauses(self, group: LocalCluster) -> None:
        for node in group.spec.node_ids:
            state = group.state(node)
            self.lateness.look(state)
            self._gc_ms = max(self._gc_ms, float(state.get("gc_ms_max", 0)))

    def report(self) -> dict[str, Any]:
        """The figures of all rounds, for the report."""
        times = sorted(done.ms for done in self.rounds)
        median, p99 = percentile(times, 0.5), percentile(times, 0.99)
        most_median, most_p99 = BUDGET_MS[self.mode]
        slowest = sorted(self.rounds, key=lambda done: -done.ms)[:SLOWEST]
        report: dict[str, Any] = {
            "mode": self.mode,
            "rounds": len(times),
            "seed": self._args.seed,
            "p50_ms": median,
            "p90_ms": percentile(times, 0.9),
            "p99_ms": p99,
            "max_ms": times[-1],
            **_ends(self.rounds),
            "within_budget": median < most_median and p99 < most_p99,
            "histogram_ms": histogram(times),
            "acknowledged": self._acked,
            "lost": self._acked - self._places,
            "load_acknowledged": self._load_acked,
            "load_lost": self._load_lost,
            "load_resent": self._load_resent,
            "load_stored_twice": self._load_twice,
            **self.lateness.report(),
            "gc_ms_max": self._gc_ms,
            "slowest": [asdict(done) for done in slowest],
        }
        if self._args.stop:
            report["leader_changes_max"] = max(done.leader_changes for done in self.rounds)
            report["terms_max"] = max(done.terms for done in self.rounds)
            report["within_budget"] &= report["leader_changes_max"] <= 1 and report["terms_max"] <= MAX_TERMS
        else:
            report["within_budget"] &= self.lateness.within
        return report


def log_path(group: LocalCluster, node: str) -> Path:
    """Path of the log that the program of a node writes (`broker.log`)."""
    return group.directory / "logs" / f"broker-{node}" / "broker.log"


class _Tail:
    """The lines that a node writes to its log after this object was made."""

    def __init__(self, group: LocalCluster, node: str) -> None:
        self.node = node
        self._path = log_path(group, node)
        self._start = self._path.stat().st_size

    def lines(self) -> list[str]:
        """All lines written since this object was made."""
        with self._path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace").splitlines()

    def count(self, text: str) -> int:
        """How many of the lines contain this text."""
        return sum(1 for line in self.lines() if text in line)


class End:
    """Watches a process from before its kill, and notes when the kernel has ended it."""

    def __init__(self, pid: int | None) -> None:
        self._at: float | None = None
        self._thread: threading.Thread | None = None
        if pid is not None and sys.platform == "linux":
            self._thread = threading.Thread(target=self._run, args=(os.pidfd_open(pid),), daemon=True)
            self._thread.start()

    def _run(self, pidfd: int) -> None:
        try:
            if select.select([pidfd], [], [], LIMIT_S)[0]:
                self._at = time.monotonic()
        finally:
            os.close(pidfd)

    def wait(self) -> float | None:
        """Wait for the end of the process. Returns the time on the monotonic clock when it ended, or None if
        the process did not end or its end cannot be observed."""
        if self._thread is not None:
            self._thread.join()
        return self._at


def _ends(rounds: Sequence[Round]) -> dict[str, float]:
    """Figures of how long the kernel took to end the killed processes, and of how long the failovers took
    after that."""
    ended = sorted(done.ended_ms for done in rounds if done.ended_ms is not None)
    after = sorted(done.ms - done.ended_ms for done in rounds if done.ended_ms is not None)
    if not ended:
        return {}
    return {
        "ended_p50_ms": percentile(ended, 0.5),
        "ended_p99_ms": percentile(ended, 0.99),
        "ended_max_ms": ended[-1],
        "after_end_p50_ms": round(percentile(after, 0.5), 1),
        "after_end_p99_ms": round(percentile(after, 0.99), 1),
        "after_end_max_ms": round(after[-1], 1),
    }


def timeline(logs: Iterator[_Tail] | Sequence[_Tail] | Any, wall: float, until_ms: float) -> list[str]:
    """Log lines of several nodes, sorted by time. Each line begins with its time in ms since `wall`."""
    found: list[tuple[float, str]] = []
    for log in logs:
        for line in log.lines():
            parsed = parse_line(line)
            if parsed is None:
                continue
            ms = (parsed[0] - wall) * 1000
            if -5 <= ms <= until_ms:
                found.append((ms, f"{ms:7.0f} ms {log.node} {parsed[1]}"))
    return [text for _, text in sorted(found)]


def histogram(times: Sequence[float]) -> dict[str, int]:
    """Count the times (in milliseconds) in each bucket. A bucket has an upper bound; it holds the times up to
    this bound that are above the bound of the bucket before it."""
    counts: dict[str, int] = {}
    low = 0.0
    for high in _BUCKETS_MS:
        count = sum(1 for ms in times if low < ms <= high)
        if count:
            counts[f"<={high}"] = count
        low = high
    return counts


def describe(report: dict[str, Any], rounds: Sequence[Round]) -> Iterator[str]:
    """Yield the lines of the report for people."""
    yield (
        f"{report['rounds']} failovers ({report['mode']}): p50 {report['p50_ms']:.0f} ms, "
        f"p90 {report['p90_ms']:.0f} ms, p99 {report['p99_ms']:.0f} ms, max {report['max_ms']:.0f} ms; "
        f"{'within' if report['within_budget'] else 'OUTSIDE'} the budget"
    )
    if "ended_p50_ms" in report:
        yield (
            f"the kernel ended the killed process after p50 {report['ended_p50_ms']:.0f} ms, "
            f"p99 {report['ended_p99_ms']:.0f} ms, max {report['ended_max_ms']:.0f} ms; "
            f"from there p50 {report['after_end_p50_ms']:.0f} ms, p99 {report['after_end_p99_ms']:.0f} ms, "
            f"max {report['after_end_max_ms']:.0f} ms"
        )
    lag, collection = report["loop_lag_ms_max"], report["gc_ms_max"]
    waited = report["loop_lag_ms_max_waited"]
    judged = ""
    if report["mode"] != "stop":
        within = "within" if report["loop_lag_within"] else "ABOVE"
        excused = ", longer ones excused" if report["loop_lag_excused"] else ""
        judged = f", {within} the limit of {report['loop_lag_limit_ms']:g} ms{excused}"
    yield (
        f"worst event-loop lag {lag:.1f} ms ({waited:.1f} ms waiting for a core){judged}; "
        f"worst collection {collection:.1f} ms"
    )
    yield (
        f"acknowledged to the probe {report['acknowledged']}, lost {report['lost']}; "
        f"acknowledged to the load {report['load_acknowledged']}, lost {report['load_lost']}, "
        f"sent again {report['load_resent']}, stored twice {report['load_stored_twice']}"
    )
    if "terms_max" in report:
        changes, terms = report["leader_changes_max"], report["terms_max"]
        yield f"changes of leader: at most {changes}, terms: at most {terms}"
    for bucket, count in report["histogram_ms"].items():
        yield f"{bucket:>8} ms {count:5} {'#' * max(1, round(60 * count / len(rounds)))}"
    for slow in report["slowest"]:
        yield f"round {slow['number']}: {slow['ms']:.0f} ms, {slow['tries']} tries, {slow['node']} was lost"
        if slow["ended_ms"] is not None:
            yield f"    {slow['ended_ms']:7.0f} ms {slow['node']} has ended, the kernel says"
        for line in slow["timeline"]:
            yield f"    {line}"


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
