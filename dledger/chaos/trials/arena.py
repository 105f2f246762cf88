"""The processes of a trial: a NameServer and the brokers of one group, in a directory of their own.

A watcher asks every node for its state again and again (`/health`). So the trial knows who leads, and how
often the leader changed. The exact times of elections are in the logs of the nodes (`evidence`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.timer_history import PRECISION_MS, ROLL_WINDOW_SLOTS
from dledger.chaos.scenarios.transaction_history import CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX
from dledger.chaos.trials.scenario import Scenario
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.local.ports import HOST
from dledger.peers.log_client import DLedgerClient
from dledger.runtime.env import production_env

SEGMENT_SIZE = 16 * MIB
WATCH_EVERY_S = 0.05
"""Pause between two questions to a node, in seconds."""
SETTINGS: Mapping[str, str] = {
    "transactionTimeOut": str(CHECK_AFTER_MS),
    "transactionCheckInterval": str(CHECK_EVERY_MS),
    "transactionCheckMax": str(CHECK_MAX),
    "timerPrecisionMs": str(PRECISION_MS),
    "timerRollWindowSlot": str(ROLL_WINDOW_SLOTS),
    "rebalanceLockMaxLiveTime": "35000",
}
"""Properties of the brokers of every trial. The client programs and the judges rely on these times."""


@dataclass(frozen=True)
class Seen:
    """What a node said about itself, noted when it changed. `role` is `SILENT` if the node did not answer."""

    at_s: float
    """Seconds since the beginning of the trial."""
    node: str
    role: str
    term: int
    serving: bool


class Arena:
    """The group of a trial. Methods block, except `watch`."""

    def __init__(self, directory: Path, scenario: Scenario, python: str = "") -> None:
        spec = ClusterSpec(
            nodes=scenario.nodes,
            base_port=find_base_port(nodes=scenario.nodes),
            group=BROKER_NAME,
            segment_size=SEGMENT_SIZE,
            flush=scenario.flush,
            broker={**SETTINGS, **scenario.settings},
        )
        self.cluster: LocalCluster = LocalCluster.create(directory, spec)
        self.nodes: tuple[str, ...] = spec.node_ids
        self.seen: list[Seen] = []
        self.elections: int = 0
        """How many leaders were seen to serve."""
        self.struck_s: float = 0.0
        """When the last signal was sent to a node, in seconds since the beginning of the trial."""
        self._began = time.monotonic()
        self.began_wall: float = time.time()
        """Wall time of the beginning of the trial, in seconds since the epoch."""
        self._now: dict[str, Seen] = {}
        self._last_term = -1

    # What happens

    def begin(self) -> None:
        """Begin the time of the trial."""
        self._began, self.began_wall = time.monotonic(), time.time()

    def elapsed_s(self) -> float:
        """Seconds since the beginning of the trial."""
        return time.monotonic() - self._began

    def leader(self) -> str | None:
        """The node that leads and serves, as far as the watcher knows. Of two, the one with the higher
        term."""
        leaders = [one for one in self._now.values() if one.role == "LEADER" and one.serving]
        return max(leaders, key=lambda one: one.term).node if leaders else None

    def leader_term(self) -> int:
        """The term of the serving leader. -1 while no leader serves."""
        return max((one.term for one in self._now.values() if one.serving), default=-1)

    async def watch(self, node: str) -> None:
        """Follow the state of one node, until cancelled."""
        while True:
            state = await asyncio.to_thread(self.cluster.state, node)
            self._note(node, state)
            await asyncio.sleep(WATCH_EVERY_S)

    def _note(self, node: str, state: Mapping[str, Any]) -> None:
        role, term = str(state.get("role", "SILENT")), int(state.get("term") or -1)
        serving = bool(state.get("serving")) and role == "LEADER"
        before = self._now.get(node)
        if before is not None and (before.role, before.term, before.serving) == (role, term, serving):
            return
        self._now[node] = now = Seen(self.elapsed_s(), node, role, term, serving)
        self.seen.append(now)
        if serving and term > self._last_term:
            self._last_term = term
            self.elections += 1

    # What faults do

    def transfer(self, target: str, timeout_s: float) -> None:
        """Ask the group to hand leadership to this node. Raises RequestFailed if it does not."""
        env = production_env("trial")

        async def ask() -> None:
            peers = {node: f"{HOST}:{self.cluster.spec.raft_port(node)}" for node in self.nodes}
            async with DLedgerClient(env, peers, timeout_s) as client:
                await client.transfer(target)

        try:
            asyncio.run(ask())
        finally:
            env.workers.close()

    def kill_namesrv(self) -> None:
        """Kill the NameServer with SIGKILL."""
        self.cluster.kill_namesrv()

    def start_namesrv(self) -> None:
        """Start the NameServer again, if it does not run."""
        if self.cluster.namesrv_pid() is None:
            self.cluster.start_namesrv()

    def heal(self) -> None:
        """Start every process that does not run."""
        self.start_namesrv()
        for node in self.cluster.down():
            self.cluster.start_node(node)
