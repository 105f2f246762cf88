"""The system under test: the group that a trial disturbs, as the conductor, the clients and the faults see
it.

There are two. `arena` starts a group of its own on this machine, and `attached` uses a group that others have
started.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.injected import Injected, Served
from dledger.chaos.trials.network import Network, ProxiedNetwork
from dledger.chaos.trials.node_logs import Line
from dledger.local.cluster import ClusterError

Undo = Callable[[], None]
OUTSIDE = "OUTSIDE"
"""Role of a node that is not a member of the group."""
WATCH_EVERY_S = 0.1
"""Pause between two questions to a node, in seconds."""


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


class SystemUnderTest(ABC):
    """The group of a trial. Methods block, except `watch`."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes: tuple[str, ...] = tuple(nodes)
        """Ids of all nodes; one of them is a spare if members are exchanged."""
        self.size: int = len(self.nodes)
        """Number of members that the group has, except during an exchange of members."""
        self.notes: list[str] = []
        """What faults report about themselves."""
        self.network: Network | None = None
        """How the links between the processes can be broken; None if no fault of the scenario needs it."""
        self.proxy: ProxiedNetwork | None = None
        """The network, if it is the proxy."""
        self.seen: list[Seen] = []
        self.served: dict[tuple[str, int], Served] = {}
        """Maps (node, term) to the first answer of this node in which it leads that term and serves."""
        self.elections: int = 0
        """How many leaders were seen to serve."""
        self.closing: bool = False
        """Whether the trial ends, so that no process may be started any more."""
        self._struck: dict[int, float] = {}
        self._began = time.monotonic()
        self.began_wall: float = time.time()
        """Wall time of the beginning of the trial, in seconds since the epoch."""
        self._now: dict[str, Seen] = {}
        self._last_term = -1

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of the nodes that are members now."""
        return self.nodes

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
            state = await asyncio.to_thread(self.state, node)
            self._note(node, state)
            await asyncio.sleep(WATCH_EVERY_S)

    def _note(self, node: str, state: Mapping[str, Any]) -> None:
        silent = "SILENT" if node in self.members else OUTSIDE
        role, term = str(state.get("role", silent)), int(state.get("term") or -1)
        serving = bool(state.get("serving")) and role == "LEADER"
        if serving and (node, term) not in self.served and "applied_index" in state:
            self.served[node, term] = Served(node, term, int(state["applied_index"]))
        before = self._now.get(node)
        if before is not None and (before.role, before.term, before.serving) == (role, term, serving):
            return
        self._now[node] = now = Seen(self.elapsed_s(), node, role, term, serving)
        self.seen.append(now)
        if serving and term > self._last_term:
            self._last_term = term
            self.elections += 1

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

    # What clients need to know

    namespace: str = ""
    """The namespace of all topics and consumer groups of the trial; empty for none."""
    broker_name: str
    """Name of the broker group (`brokerName`)."""
    flush: str
    """How the brokers flush: SYNC_FLUSH or ASYNC_FLUSH."""
    where: str
    """Which group this is, for texts."""
    left_out: Mapping[str, str] = {}
    """Maps a rule, or another part of a trial, that this system does not allow to the reason."""

    @property
    @abstractmethod
    def namesrv_addr(self) -> str:
        """Addresses of the NameServers, `host:port` each, separated by `;`."""

    def log_addresses(self) -> Mapping[str, str]:
        """Where the members answer clients of the log, by node id; empty if such clients cannot take part."""
        return {}

    def client_directory(self, name: str) -> Path:
        """Directory in which a client program may keep files. Raises ClusterError if there is none."""
        raise ClusterError(f"{name}: {self.where} has no directory for clients")

    # What the conductor asks for

    @abstractmethod
    def start(self, topics: Mapping[str, int]) -> None:
        """Make the group ready, and create these topics; the values are their numbers of queues. Raises
        ClusterError."""

    @abstractmethod
    def state(self, node: str) -> Mapping[str, Any]:
        """What a node says about itself: `role`, `term`, `serving`; empty if it does not answer."""

    @abstractmethod
    def not_whole(self, limit_s: float) -> str:
        """Wait until all nodes have caught up, at most `limit_s` seconds. Returns what is wrong if they do
        not; otherwise an empty text."""

    @abstractmethod
    def strike(self, nodes: Sequence[str], fault: Fault) -> Undo | None:
        """Inject a fault at these nodes, and return what undoes it; None if nothing is to be undone."""

    def executes(self, kind: str) -> bool:
        """Whether a command of the user injects faults of this kind, so that nobody knows exactly when they
        strike."""
        return False

    @abstractmethod
    def heal(self) -> None:
        """Undo everything that faults have left."""

    @abstractmethod
    def read_committed(self, evidence: Evidence) -> str:
        """Let the judges of `evidence` read what is committed so far. Returns why this is not possible at the
        moment; empty if it was done."""

    @abstractmethod
    def stop(self) -> None:
        """End what the trial has started, in good order. The clients have ended before."""

    @abstractmethod
    def interrupt(self) -> None:
        """End at once what faults do, because the trial was interrupted. No fault is injected after this."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what an interrupted trial has left. `interrupt` was called, and no fault runs any more."""

    @abstractmethod
    def close(self) -> None:
        """Remove the network. To be called in the thread that made this object."""

    @abstractmethod
    def collect(self, evidence: Evidence, injected: Sequence[Injected], ended_s: float) -> None:
        """Complete the evidence after `stop`: the log, and what else this system can show. `ended_s` is when
        the end phase was over."""

    @abstractmethod
    def lines(self) -> list[Line]:
        """The lines of the logs of all nodes, sorted by time; empty if they cannot be read."""
