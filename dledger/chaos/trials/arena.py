"""The processes of a trial: a NameServer and the brokers of one group, in a directory of their own.

A watcher asks every node for its state again and again (`/health`). So the trial knows who leads, and how
often the leader changed. The exact times of elections are in the logs of the nodes (`evidence`).
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.timer_history import PRECISION_MS, ROLL_WINDOW_SLOTS
from dledger.chaos.scenarios.transaction_history import CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX
from dledger.chaos.trials.injected import Served
from dledger.chaos.trials.namespaces import NamespaceNetwork, can_make_namespaces
from dledger.chaos.trials.nemeses import FILES, NETWORK, PROXY, needs_of
from dledger.chaos.trials.network import Network, ProxiedNetwork
from dledger.chaos.trials.proxy import ProxyNetwork
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.surroundings import Surroundings
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, LocalCluster, find_base_port
from dledger.local.placement import LOOPBACK, NAMESRV, Placement
from dledger.peers.log_client import DLedgerClient
from dledger.runtime.env import production_env

SEGMENT_SIZE = 16 * MIB
WATCH_EVERY_S = 0.1
"""Pause between two questions to a node, in seconds."""
SETTINGS: Mapping[str, str] = {
    "transactionTimeOut": str(CHECK_AFTER_MS),
    "transactionCheckInterval": str(CHECK_EVERY_MS),
    "transactionCheckMax": str(CHECK_MAX),
    "timerPrecisionMs": str(PRECISION_MS),
    "timerRollWindowSlot": str(ROLL_WINDOW_SLOTS),
    "rebalanceLockMaxLiveTime": "35000",
    "cleanFileForciblyEnable": "false",
    "flightRecorderMb": "16",
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


@dataclass(frozen=True)
class Ended:
    """The process of a broker that ended."""

    node: str
    code: int
    """Its exit code; a signal that ended it as a negative number."""
    at_s: float
    """When this was noticed, in seconds since the beginning of the trial."""


class Arena:
    """The group of a trial. Methods block, except `watch`."""

    def __init__(self, directory: Path, scenario: Scenario) -> None:
        spec = ClusterSpec(
            nodes=scenario.nodes,
            base_port=find_base_port(nodes=scenario.nodes),
            group=BROKER_NAME,
            segment_size=SEGMENT_SIZE,
            flush=scenario.flush,
            broker={**SETTINGS, **scenario.settings},
        )
        self.nodes: tuple[str, ...] = spec.node_ids
        self.records: bool = spec.broker["flightRecorderMb"] != "0"
        """Whether the nodes keep flight recordings."""
        self.notes: list[str] = []
        """What faults report about themselves."""
        self.starting: threading.RLock = threading.RLock()
        """Held while a broker is started. A loss of power holds it, so that nothing starts meanwhile."""
        self._flips = 0
        kinds = [fault.kind for fault in scenario.faults]
        places = {node: directory / "surroundings" / node for node in self.nodes}
        faulty = places if FILES in needs_of(kinds) else {}
        self.network: Network | None = None
        """How the links between the processes can be broken; None if no fault of the scenario needs it."""
        self.proxy: ProxiedNetwork | None = None
        """The network, if it is the proxy."""
        self._make_network(spec, needs_of(kinds))
        if self.network is not None:
            spec = replace(spec, broker={**spec.broker, **self.network.broker_settings})
        self.cluster: LocalCluster = LocalCluster.create(directory, spec, self._placement(faulty))
        self.surroundings: dict[str, Surroundings] = {
            node: Surroundings.create(place, "power-loss" in kinds) for node, place in faulty.items()
        }
        """What can be broken around each node; empty if no fault of the scenario needs it."""
        self.seen: list[Seen] = []
        self.served: dict[tuple[str, int], Served] = {}
        """Maps (node, term) to the first answer of this node in which it leads that term and serves."""
        self.elections: int = 0
        """How many leaders were seen to serve."""
        self.ends: list[Ended] = []
        """The processes of brokers that ended, except those that run until the end."""
        self.closing: bool = False
        """Whether the trial ends, so that no process may be started any more."""
        self._struck: dict[int, float] = {}
        self._began = time.monotonic()
        self.began_wall: float = time.time()
        """Wall time of the beginning of the trial, in seconds since the epoch."""
        self._now: dict[str, Seen] = {}
        self._last_term = -1

    def _make_network(self, spec: ClusterSpec, needs: Collection[str]) -> None:
        if PROXY in needs or (NETWORK in needs and not can_make_namespaces()):
            ports = {NAMESRV: [spec.namesrv_port]}
            ports |= {node: [spec.port(node), spec.raft_port(node)] for node in self.nodes}
            self.network = self.proxy = ProxyNetwork(ports, self._pid)
        elif NETWORK in needs:
            self.network = NamespaceNetwork(self.nodes)

    def _pid(self, host: str) -> int | None:
        return self.cluster.namesrv_pid() if host == NAMESRV else self.cluster.pid(host)

    def _placement(self, faulty: Mapping[str, Path]) -> Placement:
        """How the processes are started. `faulty` maps nodes to the directories of their surroundings."""
        program = ("-m", "dledger.chaos.trials.faulty_broker")
        placement = LOOPBACK if self.network is None else self.network.place()
        return replace(placement, programs={node: (*program, str(place)) for node, place in faulty.items()})

    def close(self) -> None:
        """Remove the network. The group was stopped before. To be called in the thread that made the
        arena."""
        if self.network is not None:
            self.network.close()

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
        if serving and (node, term) not in self.served:
            self.served[node, term] = Served(node, term, int(state["applied_index"]))
        before = self._now.get(node)
        if before is not None and (before.role, before.term, before.serving) == (role, term, serving):
            return
        self._now[node] = now = Seen(self.elapsed_s(), node, role, term, serving)
        self.seen.append(now)
        if serving and term > self._last_term:
            self._last_term = term
            self.elections += 1

    # What faults do

    def start_missing(self, nodes: Sequence[str]) -> None:
        """Start those of these brokers that do not run."""
        for node in nodes:
            with self.starting:
                if self.cluster.pid(node) is None and not self.closing:
                    self._note_end(node)
                    self.cluster.start_node(node)

    def _note_end(self, node: str) -> None:
        code = self.cluster.exit_code(node)
        if code is not None:
            self.ends.append(Ended(node, code, round(self.elapsed_s(), 3)))

    def stop(self) -> None:
        """Stop all processes with SIGTERM, and note how they ended."""
        with self.starting:
            self.closing = True
        for node in self.nodes:
            if self.cluster.pid(node) is None:
                self._note_end(node)
        outcome = self.cluster.stop()
        for node in self.nodes:
            if outcome[f"broker-{node}"] != "not running":
                self._note_end(node)

    def kill(self) -> None:
        """End all processes at once, because the trial was interrupted. No process is started after this."""
        with self.starting:
            self.closing = True
        for node in self.nodes:
            if self.cluster.pid(node) is not None:
                self.cluster.kill(node)
        self.cluster.stop()

    def strikes(self) -> None:
        """Note that this thread is about to send its first signal."""
        self._struck.pop(threading.get_ident(), None)

    def has_struck(self) -> None:
        """Note that this thread has sent a signal. Only the first one since `strikes` counts."""
        self._struck.setdefault(threading.get_ident(), self.elapsed_s())

    def struck_s(self) -> float | None:
        """When this thread sent its first signal since `strikes`, in seconds since the beginning of the
        trial; None if it sent none."""
        return self._struck.get(threading.get_ident())

    def note(self, text: str) -> None:
        """Keep what a fault reports about itself."""
        self.notes.append(f"{self.elapsed_s():.1f} s  {text}")

    def next_flip(self) -> int:
        """Number of the next bit that is flipped, from 0 on. It chooses the kind of file."""
        self._flips += 1
        return self._flips - 1

    def transfer(self, target: str, timeout_s: float) -> None:
        """Ask the group to hand leadership to this node. Raises RequestFailed if it refuses, and ClusterError
        if another node leads afterwards."""
        env = production_env("trial")

        async def ask() -> str:
            peers = {node: self.cluster.raft_addr(node) for node in self.nodes}
            async with DLedgerClient(env, peers, timeout_s) as client:
                return await client.transfer(target)

        try:
            leader = asyncio.run(ask())
        finally:
            env.workers.close()
        if leader != target:
            raise ClusterError(f"leadership was to go to {target}, and {leader} leads")

    def kill_namesrv(self) -> None:
        """Kill the NameServer with SIGKILL."""
        self.cluster.kill_namesrv()

    def start_namesrv(self) -> None:
        """Start the NameServer again, if it does not run."""
        with self.starting:
            if self.cluster.namesrv_pid() is None and not self.closing:
                self.cluster.start_namesrv()

    def heal(self) -> None:
        """Join all links, and start every process that does not run."""
        if self.network is not None:
            self.network.heal()
        for node in self.nodes:
            if self.cluster.pid(node) is not None:  # a fault that could not be undone may have stopped it
                self.cluster.signal(node, signal.SIGCONT)
        self.start_namesrv()
        self.start_missing(self.nodes)
