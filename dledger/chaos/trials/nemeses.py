"""The faults of processes. A *nemesis* strikes some nodes, and returns what undoes its fault.

All functions block, so the conductor runs them in threads. `NEMESES` is the table of all kinds.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dledger.chaos.scenarios.plan import Fault
from dledger.local.cluster import ClusterError

if TYPE_CHECKING:
    from dledger.chaos.trials.arena import Arena

TARGETS = ("leader", "follower", "any", "minority", "majority", "all", "namesrv")
"""What a fault may aim at. `minority` is the largest number of nodes without which the others are a quorum,
the leader among them. `majority` is one node more."""
END_LIMIT_S = 30.0
"""Longest time in which a process has to end, in seconds."""
TRANSFER_S = 5.0
"""Longest time of a transfer of leadership, in seconds."""

Undo = Callable[[], None]


@dataclass(frozen=True)
class Nemesis:
    """One kind of fault."""

    about: str
    """What it does, as a noun phrase for tables."""
    targets: tuple[str, ...]
    strike: Callable[[Arena, Sequence[str], Fault], Undo | None]
    """Injects the fault at these nodes, and returns what undoes it; None if nothing is to be undone."""


def choose(arena: Arena, fault: Fault) -> list[str]:
    """The nodes at which a fault strikes now. Empty if no node fits."""
    nodes, leader = list(arena.nodes), arena.leader()
    others = [node for node in nodes if node != leader]
    turned = others[fault.pick % len(others) :] + others[: fault.pick % len(others)]
    first = [leader] if leader else []
    lesser = (len(nodes) - 1) // 2
    return {
        "leader": first,
        "follower": turned[:1],
        "any": [nodes[fault.pick % len(nodes)]],
        "minority": (first + turned)[:lesser],
        "majority": (first + turned)[: lesser + 1],
        "all": nodes,
        "namesrv": [],
    }[fault.target]


# Processes


def _signal_all(arena: Arena, nodes: Sequence[str], number: signal.Signals) -> list[str]:
    """Send a signal to those of the nodes that run; returns them."""
    struck = []
    for node in nodes:
        try:
            arena.cluster.signal(node, number)
        except ClusterError:  # it does not run, because of another fault
            continue
        struck.append(node)
    arena.struck_s = arena.elapsed_s()
    return struck


def _wait_ended(arena: Arena, nodes: Sequence[str]) -> None:
    for node in nodes:
        if not arena.cluster.wait_down([node], END_LIMIT_S):
            raise ClusterError(f"after {END_LIMIT_S:g} s {node} has not ended")


def _start_all(arena: Arena, nodes: Sequence[str]) -> None:
    for node in nodes:
        if arena.cluster.pid(node) is None:
            arena.cluster.start_node(node)


def _kill(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    struck = _signal_all(arena, nodes, signal.SIGKILL)

    def undo() -> None:
        _wait_ended(arena, struck)
        _start_all(arena, struck)

    return undo


def _terminate(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    struck = _signal_all(arena, nodes, signal.SIGTERM)

    def undo() -> None:
        _wait_ended(arena, struck)
        _start_all(arena, struck)

    return undo


def _stop(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    struck = _signal_all(arena, nodes, signal.SIGSTOP)

    def undo() -> None:
        _signal_all(arena, struck, signal.SIGCONT)

    return undo


def _restart_loop(arena: Arena, nodes: Sequence[str], fault: Fault) -> None:
    for _ in range(max(1, fault.amount)):
        struck = _signal_all(arena, nodes, signal.SIGKILL)
        _wait_ended(arena, struck)
        _start_all(arena, nodes)


def _roll(arena: Arena, nodes: Sequence[str], fault: Fault) -> None:
    for node in arena.cluster.followers_first():
        arena.cluster.restart_node(node, END_LIMIT_S)


def _wipe(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    struck = _signal_all(arena, nodes, signal.SIGKILL)
    _wait_ended(arena, struck)
    for node in struck:
        shutil.rmtree(arena.cluster.store(node))
    return lambda: _start_all(arena, struck)


def _transfer(arena: Arena, nodes: Sequence[str], fault: Fault) -> None:
    targets = [node for node in arena.nodes if node not in nodes]
    arena.transfer(targets[fault.pick % len(targets)], TRANSFER_S)


def _kill_namesrv(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    arena.kill_namesrv()
    return arena.start_namesrv


_MEMBERS = tuple(target for target in TARGETS if target != "namesrv")
NEMESES: Mapping[str, Nemesis] = {
    "kill": Nemesis("SIGKILL, then a new start", _MEMBERS, _kill),
    "terminate": Nemesis("SIGTERM, then a new start", _MEMBERS, _terminate),
    "stop": Nemesis("SIGSTOP, then SIGCONT", _MEMBERS, _stop),
    "restart-loop": Nemesis("`amount` times SIGKILL and a new start at once", _MEMBERS, _restart_loop),
    "rolling-restart": Nemesis("all nodes restarted one by one, the leader last", ("all",), _roll),
    "wipe": Nemesis("SIGKILL, the store removed, then a new start", ("leader", "follower", "any"), _wipe),
    "transfer": Nemesis("leadership handed to another node", ("leader",), _transfer),
    "kill-namesrv": Nemesis("SIGKILL of the NameServer, then a new start", ("namesrv",), _kill_namesrv),
}
"""All kinds of faults, by name."""
