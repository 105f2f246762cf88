"""The processes of a trial: a NameServer and the brokers of one group, in a directory of their own.

A watcher asks every node for its state again and again (`/health`). So the trial knows who leads, and how
often the leader changed. The exact times of elections are in the logs of the nodes (`node_logs`).
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dledger.chaos.flight_replay import replay_path
from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.scenarios.timer_history import PRECISION_MS, ROLL_WINDOW_SLOTS
from dledger.chaos.scenarios.transaction_history import CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX
from dledger.chaos.trials.evidence import Evidence, read_entries
from dledger.chaos.trials.injected import Flight, Injected
from dledger.chaos.trials.namespaces import NamespaceNetwork, can_make_namespaces
from dledger.chaos.trials.nemeses import FILES, NEMESES, NETWORK, PROXY, needs_of
from dledger.chaos.trials.node_logs import Line, read_lines
from dledger.chaos.trials.proxy import ProxyNetwork
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.surroundings import Surroundings
from dledger.chaos.trials.system import SystemUnderTest, Undo
from dledger.files.offline import InstallUnfinished, StoreUnreadable, node_directory
from dledger.flight.reading import UnusableRecording
from dledger.formats.entry import EntryHeader
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, LocalCluster, find_base_port
from dledger.local.placement import LOOPBACK, NAMESRV, Placement
from dledger.peers.log_client import DLedgerClient
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from dledger.runtime.signals import TERMINATED

SEGMENT_SIZE = 16 * MIB
AUDIT_LIMIT_S = 600.0
"""Longest time of the comparison of all stores, in seconds."""
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
class Ended:
    """The process of a broker that ended."""

    node: str
    code: int
    """Its exit code; a signal that ended it as a negative number."""
    at_s: float
    """When this was noticed, in seconds since the beginning of the trial."""


class Arena(SystemUnderTest):
    """A group of the trial's own. Methods block, except `watch`."""

    broker_name = BROKER_NAME

    def __init__(self, directory: Path, scenario: Scenario) -> None:
        spec = ClusterSpec(
            nodes=scenario.nodes,
            base_port=find_base_port(nodes=scenario.nodes),
            group=BROKER_NAME,
            segment_size=SEGMENT_SIZE,
            flush=scenario.flush,
            broker={**SETTINGS, **scenario.settings},
        )
        super().__init__(spec.node_ids)
        self.flush: str = scenario.flush
        self.records: bool = spec.broker["flightRecorderMb"] != "0"
        """Whether the nodes keep flight recordings."""
        self.starting: threading.RLock = threading.RLock()
        """Held while a broker is started. A loss of power holds it, so that nothing starts meanwhile."""
        self._flips = 0
        kinds = [fault.kind for fault in scenario.faults]
        places = {node: directory / "surroundings" / node for node in self.nodes}
        faulty = places if FILES in needs_of(kinds) else {}
        self._make_network(spec, needs_of(kinds))
        if self.network is not None:
            spec = replace(spec, broker={**spec.broker, **self.network.broker_settings})
        self.cluster: LocalCluster = LocalCluster.create(directory, spec, self._placement(faulty))
        self.surroundings: dict[str, Surroundings] = {
            node: Surroundings.create(place, "power-loss" in kinds) for node, place in faulty.items()
        }
        """What can be broken around each node; empty if no fault of the scenario needs it."""
        self.where: str = f"a group of {scenario.nodes} brokers in {directory}"
        self.ends: list[Ended] = []
        """The processes of brokers that ended, except those that run until the end."""

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

    # What the conductor asks for

    @property
    def namesrv_addr(self) -> str:
        return self.cluster.namesrv_addr

    def start(self, topics: Mapping[str, int]) -> None:
        """Start all processes, and create these topics."""
        with self.starting:
            if self.closing:
                return
            self.cluster.start()
        for topic, queues in topics.items():
            self.cluster.create_topic(topic, queues)

    def state(self, node: str) -> Mapping[str, Any]:
        return self.cluster.state(node)

    def not_whole(self, limit_s: float) -> str:
        try:
            self.cluster.wait_caught_up(limit_s)
        except ClusterError as error:
            return str(error)
        return ""

    def strike(self, nodes: Sequence[str], fault: Fault) -> Undo | None:
        return NEMESES[fault.kind].strike(self, nodes, fault)

    def read_committed(self, evidence: Evidence) -> str:
        leader = self.leader()
        if leader is None:
            return "no node leads"
        committed = self.cluster.committed_index(leader)
        if committed < 0:
            return f"{leader} leads, and does not answer"
        store = str(self.cluster.store(leader))
        read_entries(store, SEGMENT_SIZE, committed, evidence.replay.apply)
        return ""

    def interrupt(self) -> None:
        """End all processes."""
        self.kill()

    def clear(self) -> None:
        """End all processes that a fault has started meanwhile."""
        self.kill()

    def collect(self, evidence: Evidence, injected: Sequence[Injected], ended_s: float) -> None:
        """Read the log of the node whose log reaches furthest, audit all stores, and replay the flight
        recordings."""
        stores = [str(self.cluster.store(node)) for node in self.nodes]
        try:
            ends = {store: read_entries(store, SEGMENT_SIZE, None, _ignore) for store in stores}
            longest = max(stores, key=lambda store: ends[store])
            read_entries(longest, SEGMENT_SIZE, None, evidence.apply)
        except (StoreUnreadable, InstallUnfinished, OSError) as error:
            evidence.broken["log"] = f"the log cannot be read: {error}"
        command = [sys.executable, "-m", "dledger", "audit", "compare", *stores, "--same-time"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_LIMIT_S, check=False)
            evidence.replicas = (done.returncode, done.stdout[-4000:] + done.stderr[-2000:])
        except subprocess.TimeoutExpired:
            evidence.replicas = (-1, f"the audit did not end within {AUDIT_LIMIT_S:g} s")
        evidence.flights = self._flights()
        evidence.ends = self._unexpected_ends(injected, ended_s)

    def _flights(self) -> list[Flight]:
        """Replay the flight recordings of all nodes. A recording that cannot be read is left out, and noted:
        a fault may have taken its disk."""
        found = []
        for node in self.nodes if self.records else ():
            try:
                directory = node_directory(OsFiles(), str(self.cluster.store(node)))
                done = replay_path(directory, keep=1)
            except (UnusableRecording, StoreUnreadable, OSError) as error:
                self.note(f"{node}: no flight recording: {error}")
                continue
            found.append(Flight(node, done.total_steps, done.problems, done.missing))
        return found

    def _unexpected_ends(self, injected: Sequence[Injected], ended_s: float) -> list[str]:
        """The processes that ended by themselves, or not in time, as texts.

        SIGKILL comes from a fault. After SIGTERM a broker ends with exit code 0, or with TERMINATED if its
        store was not open yet. A broker whose disk was disturbed may end itself.
        """
        excused = {node for one in injected if NEMESES[one.kind].needs == FILES for node in one.nodes}
        found = []
        for end in self.ends:
            stopped_late = end.code == -signal.SIGKILL and end.at_s >= ended_s
            if end.code not in (0, TERMINATED, -signal.SIGTERM, -signal.SIGKILL) and end.node not in excused:
                found.append(f"{end.node} ended with exit code {end.code} before {end.at_s:.1f} s")
            elif stopped_late:
                found.append(f"{end.node} did not end after SIGTERM, and was killed")
        return found

    def lines(self) -> list[Line]:
        logs = self.cluster.directory / "logs"
        found = [
            line for node in self.nodes for line in read_lines(logs / f"broker-{node}", node, self.began_wall)
        ]
        return sorted(found, key=lambda line: line.at_s)

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


def _ignore(header: EntryHeader, record: bytes) -> None:
    """Do nothing with an entry."""
