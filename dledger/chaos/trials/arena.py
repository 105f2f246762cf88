"""The processes of a trial: a NameServer and the brokers of one group, in a directory of their own.

A watcher asks every node for its state again and again (`/health`). So the trial knows who leads, and how
often the leader changed. The exact times of elections are in the logs of the nodes (`evidence`).
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dledger.chaos.replacement import ask
from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.timer_history import PRECISION_MS, ROLL_WINDOW_SLOTS
from dledger.chaos.scenarios.transaction_history import CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX
from dledger.chaos.trials.disk_nemeses import forget_unsynced
from dledger.chaos.trials.namespaces import NamespaceNetwork, can_make_namespaces
from dledger.chaos.trials.nemeses import FILES, NETWORK, PROXY, SPARE, needs_of
from dledger.chaos.trials.network import Network, ProxiedNetwork
from dledger.chaos.trials.proxy import ProxyNetwork
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.surroundings import Surroundings
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, LocalCluster, find_base_port
from dledger.local.placement import LOOPBACK, NAMESRV, Placement

SEGMENT_SIZE = 16 * MIB
KEPT_STORES = 8
"""How many stores of nodes that have left the group are kept for the judges, the latest. Each takes some
segments of disk space."""
DEPARTED = "departed"
"""Directory with the stores of nodes that have left the group."""
OUTSIDE = "OUTSIDE"
"""Role of a node that is not a member of the group."""
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
    """What a node said about itself, noted when it changed. `role` is `SILENT` if the node did not answer,
    and OUTSIDE if it did not because it is no member."""

    at_s: float
    """Seconds since the beginning of the trial."""
    node: str
    role: str
    term: int
    serving: bool


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


class Arena:
    """The group of a trial. Methods block, except `watch`."""

    def __init__(self, directory: Path, scenario: Scenario) -> None:
        self.size: int = scenario.nodes
        """Number of members that the group has, except during an exchange of members."""
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
        self.nodes: tuple[str, ...] = spec.node_ids
        """Ids of all nodes; one of them is the spare if members are exchanged."""
        self.records: bool = spec.broker["flightRecorderMb"] != "0"
        """Whether the nodes keep flight recordings."""
        self.notes: list[str] = []
        """What faults report about themselves."""
        self.starting: threading.RLock = threading.RLock()
        """Held while a broker is started. A loss of power holds it, so that nothing starts meanwhile."""
        self._flips = 0
        self._left = 0
        self.departed: list[Departed] = []
        """The stores of the nodes that have left the group: at most KEPT_STORES, the latest."""
        places = {node: directory / "surroundings" / node for node in self.nodes}
        faulty = places if FILES in needs_of(kinds) else {}
        self.network: Network | None = None
        """How the links between the processes can be broken; None if no fault of the scenario needs it."""
        self.proxy: ProxiedNetwork | None = None
        """The network, if it is the proxy."""
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
        self.seen: list[Seen] = []
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
        silent = "SILENT" if node in self.members else OUTSIDE
        role, term = str(state.get("role", silent)), int(state.get("term") or -1)
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
