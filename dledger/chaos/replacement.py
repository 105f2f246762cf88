"""`dledger chaos replace`: members of a group of real processes are replaced during writes.

There are three ways. For each, the longest time without an acknowledgement is measured by a probe in another
process:

* *wiped follower*: it is killed (kill -9), its store is deleted, and it is started again under its old name;
  it is a learner until it has all entries;
* *wiped leader*: the leader is killed, wiped and started again in the same way, so a failover is part of it;
* *exchanged*: a fourth node is added (`dledger member add`), then an old one is removed and stopped.

Before the first replacement the log is filled, so that catching up is real work.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from dledger.chaos.failover_clock import TOPIC
from dledger.chaos.line_process import LineProcess
from dledger.chaos.pressure import LOAD_TOPIC
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, LocalCluster, find_base_port, wait_for
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import production_env
from dledger.runtime.options import Options

T = TypeVar("T")

LIMIT_S = 120.0
"""Longest time until a new member has caught up and votes, in seconds."""
TAIL_S = 1.0
"""How long the probe continues after a replacement, in seconds."""
BUDGET_MS = 1000
"""Longest pause of writes that is promised, in milliseconds."""


@dataclass
class Replacement:
    """One replacement: how long it took until the group was complete again, and the longest pause of writes
    meanwhile."""

    way: str
    took_s: float
    pause_ms: float


def run(args: Options) -> int:
    """Run the command. Exit code 0: all replacements are done. Exit code 1: a replacement failed, a message
    was lost, or (with --check) writes paused too long."""
    with tempfile.TemporaryDirectory(prefix="replace-") as directory:
        measure = Replacements(Path(directory) / "group", args)
        try:
            measure.run()
        except (ClusterError, TimeoutError, RequestFailed, subprocess.SubprocessError) as error:
            print(f"replace: {error}", file=sys.stderr)
            return 1
    for done in measure.done:
        print(f"{done.way:16} whole again after {done.took_s:6.2f} s, longest pause {done.pause_ms:6.0f} ms")
    print(f"lost {measure.lost}")
    worst = max(done.pause_ms for done in measure.done)
    if args.json:
        rows = [asdict(done) for done in measure.done]
        print(json.dumps({"replacements": rows, "pause_ms_max": worst, "lost": measure.lost}))
    return 1 if measure.lost or (args.check and worst > BUDGET_MS) else 0


class Replacements:
    """Performs the three replacements on one group."""

    def __init__(self, directory: Path, args: Options) -> None:
        self._args = args
        self._base_port = find_base_port(nodes=4)
        self._directory = directory
        self.done: list[Replacement] = []
        self.lost: Any = 0

    def run(self) -> None:
        """Run all three replacements."""
        spec = ClusterSpec(base_port=self._base_port, segment_size=16 * MIB)
        group = LocalCluster.create(self._directory, spec)
        # The fourth node has its files beside those of the others, which learn of it only when it is added.
        wider = LocalCluster(
            self._directory, ClusterSpec(nodes=4, base_port=self._base_port, segment_size=16 * MIB)
        )
        group.start()
        with ExitStack() as stack:
            stack.callback(wider.stop)
            group.create_topic(TOPIC, 1)
            group.create_topic(LOAD_TOPIC, 4)
            addresses = [wider.addr(node) for node in wider.spec.node_ids]
            probe = stack.enter_context(LineProcess("dledger.chaos.failover_clock", TOPIC, *addresses))
            load = stack.enter_context(LineProcess("dledger.chaos.pressure", group.namesrv_addr, LOAD_TOPIC))
            self._fill(load)
            if self._args.load:
                load.ask("on")
            leader = group.wait_leader()
            follower = next(node for node in spec.node_ids if node != leader)
            self._measure("wiped follower", probe, lambda: self._wipe(group, follower))
            self._measure("wiped leader", probe, lambda: self._wipe(group, leader))
            self._measure("exchanged", probe, lambda: self._exchange(wider))
            if self._args.load:
                load.ask("off")
            counts = probe.ask("count")
            self.lost = counts["acked"] - counts["places"] + load.ask("check")["lost"]

    def _fill(self, load: LineProcess) -> None:
        wanted = self._args.mib * 1024
        load.ask("on")
        while load.ask("count")["acked"] < wanted:
            time.sleep(0.1)
        load.ask("off")

    def _measure(self, way: str, probe: LineProcess, replace: Callable[[], None]) -> None:
        began = time.monotonic()
        replace()
        took = time.monotonic() - began
        time.sleep(TAIL_S)
        gap = probe.ask(f"gap {began}")["gap"]
        self.done.append(Replacement(way, round(took, 2), round(gap * 1000, 1)))

    def _wipe(self, group: LocalCluster, node: str) -> None:
        group.signal(node, signal.SIGKILL)
        wait_for(lambda: group.pid(node) is None or None, LIMIT_S, lambda: f"{node} does not die")
        shutil.rmtree(group.store(node))
        group.start_node(node)
        self._wait_member(group, node, voter=True)

    def _exchange(self, wider: LocalCluster) -> None:
        new = wider.spec.node_ids[-1]
        wider.write_node(new)
        wider.start_node(new)
        ask(wider, lambda client: client.add_member(new, wider.raft_addr(new), stays=False))
        self._wait_member(wider, new, voter=True)
        leader = wider.wait_leader()
        old = next(node for node in wider.spec.node_ids if node not in (leader, new))
        ask(wider, lambda client: client.remove_member(old, force=False))
        self._wait_member(wider, old, voter=False)
        wider.terminate(old)

    def _wait_member(self, group: LocalCluster, node: str, *, voter: bool) -> None:
        """Wait until the node is a voter that runs as a follower and has caught up (fewer than 1000 entries
        behind). If `voter` is false, wait until the node is no longer a member."""

        def there() -> bool | None:
            rows = {row["id"]: row for row in ask(group, lambda client: client.members())["members"]}
            row = rows.get(node)
            if not voter:
                return row is None or None
            state = group.state(node)
            return (
                row is not None
                and row["role"] == "voter"
                and state.get("role") == "FOLLOWER"
                and row["lag_entries"] < 1000
            ) or None

        wait_for(there, LIMIT_S, lambda: f"{node} is not {'a voter' if voter else 'gone'}")


def ask(group: LocalCluster, question: Callable[[DLedgerClient], Awaitable[T]], timeout_s: float = 10.0) -> T:
    """Call `question` with a client that is connected to the group over the DLedger client protocol. Each
    request has this time limit. Returns the result of `question`. Raises RequestFailed."""
    env = production_env("operator")

    async def session() -> T:
        peers = {node: group.raft_addr(node) for node in group.members}
        async with DLedgerClient(env, peers, timeout_s) as client:
            return await question(client)

    try:
        return asyncio.run(session())
    finally:
        env.workers.close()
