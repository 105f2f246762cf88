"""The faults of processes. A *nemesis* strikes some nodes, and returns what undoes its fault.

All functions block, so the conductor runs them in threads. `NEMESES` is the table of all kinds.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials import disk_nemeses, member_nemeses, network_nemeses
from dledger.chaos.trials.system import SystemUnderTest, Undo
from dledger.local.cluster import ClusterError

if TYPE_CHECKING:
    from dledger.chaos.trials.arena import Arena

TARGETS = ("leader", "follower", "any", "same", "minority", "majority", "all", "namesrv")
"""What a fault may aim at. `minority` is the largest number of nodes without which the others are a quorum,
the leader among them. `majority` is one node more. `same` is the same node in all faults of all trials."""
END_LIMIT_S = 30.0
"""Longest time in which a process has to end, in seconds."""
TRANSFER_S = 5.0
"""Longest time of a transfer of leadership, in seconds."""


@dataclass(frozen=True)
class Nemesis:
    """One kind of fault."""

    about: str
    """What it does, as a noun phrase for tables."""
    targets: tuple[str, ...]
    strike: Callable[[Arena, Sequence[str], Fault], Undo | None]
    """Injects the fault at these nodes, and returns what undoes it; None if nothing is to be undone."""
    needs: str = ""
    """What the trial has to prepare: FILES, NETWORK, PROXY, SPARE or nothing."""


FILES = "faulty files"
"""The brokers have to be `faulty_broker`s."""
NETWORK = "network"
"""Every process needs a host of its own, so that links can be cut (`network`)."""
PROXY = "proxy"
"""The network has to be the proxy, which can also delay, drop and reset (`proxy`)."""

SPARE = "spare"
"""The trial needs a node more than its group has."""


def choose(system: SystemUnderTest, fault: Fault) -> list[str]:
    """The nodes at which a fault strikes now. Empty if no node fits."""
    nodes, leader = list(system.members), system.leader()
    others = [node for node in nodes if node != leader]
    turned = others[fault.pick % len(others) :] + others[: fault.pick % len(others)]
    first = [leader] if leader else []
    lesser = (len(nodes) - 1) // 2
    return {
        "leader": first,
        "follower": turned[:1],
        "any": [nodes[fault.pick % len(nodes)]],
        "same": nodes[-1:],
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
        arena.has_struck()
    if not struck and number is not signal.SIGCONT:
        raise ClusterError(f"{', '.join(nodes)} did not run, so there was nothing to strike")
    return struck


def _wait_ended(arena: Arena, nodes: Sequence[str]) -> None:
    for node in nodes:
        if not arena.cluster.wait_down([node], END_LIMIT_S):
            raise ClusterError(f"after {END_LIMIT_S:g} s {node} has not ended")


def _end(number: signal.Signals, arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    struck = _signal_all(arena, nodes, number)

    def undo() -> None:
        _wait_ended(arena, struck)
        arena.start_missing(struck)

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
        arena.start_missing(nodes)


def _roll(arena: Arena, nodes: Sequence[str], fault: Fault) -> None:
    for node in arena.cluster.followers_first():
        arena.cluster.terminate(node, END_LIMIT_S)
        arena.start_missing([node])
        arena.cluster.wait_caught_up(END_LIMIT_S, [node])


def _wipe(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    struck = _signal_all(arena, nodes, signal.SIGKILL)
    _wait_ended(arena, struck)
    for node in struck:
        shutil.rmtree(arena.cluster.store(node))
        disk_nemeses.forget_unsynced(arena, node)
    return lambda: arena.start_missing(struck)


def _transfer(arena: Arena, nodes: Sequence[str], fault: Fault) -> None:
    targets = [node for node in arena.members if node not in nodes]
    arena.transfer(targets[fault.pick % len(targets)], TRANSFER_S)


def _kill_namesrv(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    arena.kill_namesrv()
    return arena.start_namesrv


_MEMBERS = tuple(target for target in TARGETS if target not in ("same", "namesrv"))
_ONE = ("leader", "follower", "any")
_SOME = (*_ONE, "minority", "majority")
NEMESES: Mapping[str, Nemesis] = {
    "kill": Nemesis("SIGKILL, then a new start", _MEMBERS, partial(_end, signal.SIGKILL)),
    "terminate": Nemesis("SIGTERM, then a new start", _MEMBERS, partial(_end, signal.SIGTERM)),
    "stop": Nemesis("SIGSTOP, then SIGCONT", _MEMBERS, _stop),
    "restart-loop": Nemesis("`amount` times SIGKILL and a new start at once", _MEMBERS, _restart_loop),
    "rolling-restart": Nemesis("all nodes restarted one by one, the leader last", ("all",), _roll),
    "wipe": Nemesis("SIGKILL, the store removed, then a new start", _ONE, _wipe),
    "transfer": Nemesis("leadership handed to another node", ("leader",), _transfer),
    "member": Nemesis(
        "a new node joins the group and gets a vote, then this member is removed",
        _ONE,
        member_nemeses.exchange,
        SPARE,
    ),
    "preferred": Nemesis("the operator prefers this node as leader", _ONE, member_nemeses.prefer),
    "kill-namesrv": Nemesis("SIGKILL of the NameServer, then a new start", ("namesrv",), _kill_namesrv),
    "disk-full": Nemesis("no room on the disk", _MEMBERS, disk_nemeses.disk_full, FILES),
    "disk-error": Nemesis(
        "EIO: `amount` 0 of reads, 1 of writes, 2 of syncs", _MEMBERS, disk_nemeses.disk_error, FILES
    ),
    "disk-slow": Nemesis(
        "each write and sync takes `amount` ms longer", _MEMBERS, disk_nemeses.disk_slow, FILES
    ),
    "disk-hang": Nemesis("writes and syncs wait", _MEMBERS, disk_nemeses.disk_hang, FILES),
    "bit-flip": Nemesis("one bit of one file is flipped", ("same",), disk_nemeses.bit_flip, FILES),
    "clock-jump": Nemesis(
        "the wall clock jumps by `amount` ms, and back", _MEMBERS, disk_nemeses.clock_jump, FILES
    ),
    "power-loss": Nemesis(
        "SIGKILL, what was not synced is lost (`amount` 0: all of it, 1: a part, 2: only names, 3: a part of "
        "the content), then a new start",
        _MEMBERS,
        disk_nemeses.power_loss,
        FILES,
    ),
    "partition": Nemesis(
        "these nodes and the other nodes hear nothing of each other",
        _SOME,
        network_nemeses.partition,
        NETWORK,
    ),
    "one-way": Nemesis(
        "half of the time the nodes hear nothing of the others, else the others nothing of them",
        _SOME,
        network_nemeses.one_way,
        NETWORK,
    ),
    "bridge": Nemesis(
        "two halves that hear nothing of each other, and a node that hears both",
        _ONE,
        network_nemeses.bridge,
        NETWORK,
    ),
    "ring": Nemesis("each node hears only the node before it", ("all",), network_nemeses.ring, NETWORK),
    "clients-cut": Nemesis("clients do not reach these nodes", _SOME, network_nemeses.clients_cut, NETWORK),
    "half-open": Nemesis(
        "connections of these nodes stay open, and everything on them is lost; at the end they are reset",
        _SOME,
        network_nemeses.half_open,
        PROXY,
    ),
    "slow-link": Nemesis(
        "everything from and to these nodes comes `amount` ms later",
        _MEMBERS,
        network_nemeses.slow_link,
        PROXY,
    ),
    "flaky": Nemesis(
        "connections of these nodes are reset, and pieces of data held back, at random",
        _MEMBERS,
        network_nemeses.flaky,
        PROXY,
    ),
    "reconnect-storm": Nemesis(
        "all connections of clients to these nodes are reset at once",
        _MEMBERS,
        network_nemeses.reconnect_storm,
        PROXY,
    ),
}
"""All kinds of faults, by name."""


def needs_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """What the trial has to prepare for these kinds of faults, sorted."""
    return tuple(sorted({NEMESES[kind].needs for kind in kinds} - {""}))
