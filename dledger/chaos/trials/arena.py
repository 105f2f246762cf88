"""The processes of a trial: a NameServer and the brokers of one group, in a directory of their own.

A watcher asks every node for its state again and again (`/health`). So the trial knows who leads, and how
often the leader changed. The exact times of elections are in the logs of the nodes (`node_logs`).
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dledger.chaos.flight_replay import replay_path
from dledger.chaos.replacement import ask
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.scenarios.timer_history import PRECISION_MS, ROLL_WINDOW_SLOTS
from dledger.chaos.scenarios.transaction_history import CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX
from dledger.chaos.trials.disk_nemeses import forget_unsynced
from dledger.chaos.trials.evidence import Evidence, read_entries
from dledger.chaos.trials.injected import Flight, Injected
from dledger.chaos.trials.member_nemeses import settle
from dledger.chaos.trials.namespaces import NamespaceNetwork, can_make_namespaces
from dledger.chaos.trials.nemeses import FILES, NEMESES, NETWORK, PROXY, SPARE, needs_of
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
from dledger.log.base import ORIGIN, LogBase
from dledger.runtime.files import OsFiles
from dledger.runtime.signals import TERMINATED

SEGMENT_SIZE = 16 * MIB
KEPT_STORES = 8
"""How many stores of nodes that have left the group are kept for the judges, the latest. Each takes some
segments of disk space."""
DEPARTED = "departed"
"""Directory with the stores of nodes that have left the group."""
AUDIT_LIMIT_S = 600.0
"""Longest time of the comparison of all stores, in seconds."""
UNREADABLE_STORE = (StoreUnreadable, InstallUnfinished, OSError)
"""Errors with which the log of a store may fail to be read."""
MAX_LAG = 1 << 62
"""The audit never warns that a node which has left the group is this many entries behind."""
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
class Departed:
    """A node that has left the group."""

    node: str
    store: Path
    """Where its store is kept."""


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
        kinds = [fault.kind for fault in scenario.faults]
        places_for = scenario.nodes + (SPARE in needs_of(kinds))
        spec = ClusterSpec(
            nodes=places_for,
            base_port=find_base_port(nodes=places_for),
            group=BROKER_NAME,
            segment_size=SEGMENT_SIZE,
            flush=scenario.flush,
            broker={**SETTINGS, **scenario.settings},
        )
        super().__init__(spec.node_ids)
        self.size: int = scenario.nodes
        self.flush: str = scenario.flush
        self.records: bool = spec.broker["flightRecorderMb"] != "0"
        """Whether the nodes keep flight recordings."""
        self.starting: threading.RLock = threading.RLock()
        """Held while a broker is started. A loss of power holds it, so that nothing starts meanwhile."""
        self._flips = 0
        self._left = 0
        self.departed: list[Departed] = []
        """The stores of the nodes that have left the group: at most KEPT_STORES, the latest."""
        places = {node: directory / "surroundings" / node for node in self.nodes}
        faulty = places if FILES in needs_of(kinds) else {}
        self._make_network(spec, needs_of(kinds))
        if self.network is not None:
            spec = replace(spec, broker={**spec.broker, **self.network.broker_settings})
        self.cluster: LocalCluster = LocalCluster.planned(directory, spec, self._placement(faulty))
        self.cluster.members = self.nodes[: self.size]
        self.cluster.write()
        self.surroundings: dict[str, Surroundings] = {
            node: Surroundings.create(place, "power-loss" in kinds) for node, place in faulty.items()
        }
        """What can be broken around each node; empty if no fault of the scenario needs it."""
        self.where: str = f"a group of {scenario.nodes} brokers in {directory}"
        self._look: Evidence = Evidence(BrokerHistory())
        """The log as far as `read_committed` has read it, up to `_looked`."""
        self._looked: LogBase = ORIGIN
        self.ends: list[Ended] = []
        """The processes of brokers that ended, except those that run until the end."""

    def _make_network(self, spec: ClusterSpec, needs: Collection[str]) -> None:
        if PROXY in needs or (NETWORK in needs and not can_make_namespaces()):
            ports = {NAMESRV: [spec.namesrv_port]}
            ports |= {node: [spec.port(node), spec.raft_port(node)] for node in self.nodes}
            self.network = self.proxy = ProxyNetwork(ports, self._pid)
        elif NETWORK in needs:
            self.network = NamespaceNetwork(self.nodes)

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of the nodes that are members now, those that joined last at the end. During an exchange there
        is one more."""
        return self.cluster.members

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
        look, store = self._look, str(self.cluster.store(leader))
        try:
            self._looked = read_entries(store, SEGMENT_SIZE, committed, look.apply, self._looked)
        except UNREADABLE_STORE as error:
            # A part of the entries may have been applied: the next look reads all again.
            self._look, self._looked = Evidence(BrokerHistory()), ORIGIN
            return f"the log of {leader} cannot be read: {error}"
        evidence.replay, evidence.broken = look.replay, look.broken
        return ""

    def interrupt(self) -> None:
        """End all processes."""
        self.kill()

    def clear(self) -> None:
        """End all processes that a fault has started meanwhile."""
        self.kill()

    def collect(self, evidence: Evidence, injected: Sequence[Injected], ended_s: float) -> None:
        """Read the log of the member whose log reaches furthest, audit all stores, and replay the flight
        recordings."""
        stores = [str(self.cluster.store(node)) for node in self.members]
        longest = stores[0]
        try:
            longest = max(stores, key=_reach)
            read_entries(longest, SEGMENT_SIZE, None, evidence.apply)
        except UNREADABLE_STORE as error:
            evidence.broken["log"] = f"the log cannot be read: {error}"
        evidence.replicas = _audit(*stores, "--same-time")
        for departed in self.departed:
            if not evidence.replicas[0]:  # a node that has left lacks what came after it
                evidence.replicas = _audit(str(departed.store), longest, "--lag-warning", str(MAX_LAG))
        evidence.flights = self._flights()
        evidence.served = list(self.served.values())
        evidence.ends = self._unexpected_ends(injected, ended_s)

    def _flights(self) -> list[Flight]:
        """Replay the flight recordings of all nodes, also of those that have left the group. A recording that
        cannot be read is left out, and noted: a fault may have taken its disk."""
        if not self.records:
            return []
        found = []
        places = [(node, self.cluster.store(node)) for node in self.members]
        places += [(f"{one.node} (has left)", one.store) for one in self.departed]
        for name, store in places:
            try:
                done = replay_path(node_directory(OsFiles(), str(store)), keep=1)
            except (UnusableRecording, StoreUnreadable, OSError) as error:
                self.note(f"{name}: no flight recording: {error}")
                continue
            found.append(Flight(name, done.total_steps, done.problems, done.missing))
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

    def log_addresses(self) -> Mapping[str, str]:
        return {node: self.cluster.raft_addr(node) for node in self.members}

    def client_directory(self, name: str) -> Path:
        return self.cluster.directory / "clients" / name

    # What faults do

    def start_missing(self, nodes: Sequence[str]) -> None:
        """Start those of these brokers that do not run. A node that has left the group stays as it is."""
        for node in nodes:
            with self.starting:
                if node in self.members and self.cluster.pid(node) is None and not self.closing:
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
        for node in self.members:
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
        leader = ask(self.cluster, lambda client: client.transfer(target), timeout_s)
        if leader != target:
            raise ClusterError(f"leadership was to go to {target}, and {leader} leads")

    def enlist(self) -> None:
        """Start the spare with an empty store, as a node that is to join the group. Its settings, and those
        of the members, name the new list of members. Raises ClusterError if there is no spare."""
        spares = [node for node in self.nodes if node not in self.members]
        if not spares:
            raise ClusterError("there is no spare node that could join the group")
        (node,) = spares
        with self.starting:
            self.cluster.members = (*self.members, node)
            self.cluster.write()
            self.start_missing([node])

    def dismiss(self, node: str) -> None:
        """End the process of a node that was removed from the group, and keep its store apart, so that the
        node is an empty spare."""
        with self.starting:
            self.cluster.members = tuple(one for one in self.members if one != node)
            self.cluster.write()
        self.cluster.terminate(node)
        self._note_end(node)
        kept = self.cluster.directory / DEPARTED / f"{self._left}-{node}"
        self._left += 1
        kept.parent.mkdir(exist_ok=True)
        self.cluster.store(node).rename(kept)
        forget_unsynced(self, node)
        self.departed.append(Departed(node, kept))
        for old in self.departed[:-KEPT_STORES]:
            shutil.rmtree(old.store)
        del self.departed[:-KEPT_STORES]

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
        self.start_missing(self.members)
        settle(self)


def _reach(store: str) -> tuple[int, int]:
    """Where the log of a store ends, and then how early it begins: the larger, the more can be read."""
    first: list[int] = []

    def apply(header: EntryHeader, record: bytes) -> None:
        if not first:
            first.append(header.index)

    last = read_entries(store, SEGMENT_SIZE, None, apply).index
    return last, -first[0] if first else 0


def _audit(*arguments: str) -> tuple[int, str]:
    """Compare stores. Returns the exit code of the audit and its report."""
    command = [sys.executable, "-m", "dledger", "audit", "compare", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return -1, f"the audit did not end within {AUDIT_LIMIT_S:g} s"
    return done.returncode, done.stdout[-4000:] + done.stderr[-2000:]
