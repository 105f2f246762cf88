"""The faults of disks, clocks and power. The brokers of the trial are `faulty_broker`s.

Every function strikes some nodes, and returns what undoes its fault. A broker ends when its disk fails. So
undoing a fault also starts the brokers that have ended.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.power_loss import Loss, forget, lose_power
from dledger.chaos.trials.rot import INDEX_FILE, INDEX_FILES, flip_bit
from dledger.chaos.trials.switches import DiskFault
from dledger.local.cluster import ClusterError

if TYPE_CHECKING:
    from dledger.chaos.trials.arena import Arena

END_LIMIT_S = 30.0
"""Longest time in which a process has to end after SIGKILL, in seconds."""
BACK_LIMIT_S = 60.0
"""Longest time after a fault until its brokers answer and lead or follow again, in seconds."""
POLL_S = 0.1
ERRORS = (DiskFault.READ_ERROR, DiskFault.WRITE_ERROR, DiskFault.SYNC_ERROR)
"""What `amount` of the fault `disk-error` means: 0 reads, 1 writes, 2 syncs."""

LOSSES = (Loss.ALL, Loss.TORN, Loss.NAMES, Loss.CONTENT)
"""What `amount` of the fault `power-loss` means: how much of what was not synced is lost."""

Undo = Callable[[], None]


def kill(arena: Arena, nodes: Sequence[str]) -> None:
    """Kill these brokers within some microseconds, and wait until they have ended. If one lived on for the
    time of an fsync, the disk would hold what a common loss of power loses."""
    for pid in [pid for node in nodes if (pid := arena.cluster.pid(node)) is not None]:
        with suppress(ProcessLookupError):  # it has just ended, because of another fault
            os.kill(pid, signal.SIGKILL)
    arena.has_struck()
    for node in nodes:
        if not arena.cluster.wait_down([node], END_LIMIT_S):
            raise ClusterError(f"after {END_LIMIT_S:g} s {node} has not ended")


def bring_back(arena: Arena, nodes: Sequence[str]) -> None:
    """Start those of these brokers that have ended or end, until all answer, except those that have left the
    group meanwhile. Raises ClusterError if one does not."""
    deadline = time.monotonic() + BACK_LIMIT_S
    while missing := [node for node in nodes if node in arena.members and not arena.cluster.state(node)]:
        if time.monotonic() > deadline:
            raise ClusterError(f"after {BACK_LIMIT_S:g} s {', '.join(missing)} do not answer")
        arena.start_missing(missing)
        time.sleep(POLL_S)


# Disks


def _switch(arena: Arena, nodes: Sequence[str], kind: DiskFault, slow_ms: int = 0) -> Undo:
    for node in nodes:
        switches = arena.surroundings[node].switches
        switches.slow_ms = slow_ms
        switches.disk |= kind

    def undo() -> None:
        for node in nodes:
            arena.surroundings[node].switches.disk &= ~kind
        bring_back(arena, nodes)

    return undo


def disk_full(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    """No room is left on the disk, until it is undone."""
    return _switch(arena, nodes, DiskFault.FULL)


def disk_error(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    """Reads, writes or syncs fail with EIO, until it is undone."""
    return _switch(arena, nodes, ERRORS[fault.amount % len(ERRORS)])


def disk_slow(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    """Each write and each sync takes `amount` milliseconds longer."""
    return _switch(arena, nodes, DiskFault.SLOW, fault.amount)


def disk_hang(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    """Writes and syncs wait until it is undone."""
    return _switch(arena, nodes, DiskFault.HANG)


def bit_flip(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo | None:
    """One bit of one file is flipped. Half of the time the broker is killed before and started afterwards.

    No broker checks its IndexFiles, so a damaged one is removed afterwards, as the documentation says. The
    broker builds it again.
    """
    (node,) = nodes
    while_down = bool(fault.pick & 1)
    if while_down:
        kill(arena, nodes)
    store = arena.cluster.store(node)
    damage = flip_bit(store, arena.next_flip(), random.Random(fault.pick))
    arena.note(f"{node}: {damage.text}")
    if not while_down and damage.kind != INDEX_FILE:
        return None

    def undo() -> None:
        if damage.kind == INDEX_FILE:
            kill(arena, nodes)
            shutil.rmtree(store / INDEX_FILES)
            forget_unsynced(arena, node)
        bring_back(arena, nodes)

    return undo


# Clocks


def clock_jump(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    """The wall clock jumps by `amount` milliseconds, half of the time backwards, and jumps back when it is
    undone."""
    jump = -fault.amount if fault.pick & 1 else fault.amount
    for node in nodes:
        arena.surroundings[node].switches.clock_ms += jump

    def undo() -> None:
        for node in nodes:
            arena.surroundings[node].switches.clock_ms -= jump

    return undo


# Power


def power_loss(arena: Arena, nodes: Sequence[str], fault: Fault) -> Undo:
    """All these machines lose their power at once. What was not synced is lost: everything, or a part that
    the seed chooses (`amount`).

    Half of the time the leader comes back last, when the others have a leader. So they cannot learn from
    its disk what they had acknowledged and not synced. With ASYNC_FLUSH they would wait for it, because
    each of them knows that it may have lost entries.
    """
    waits = arena.cluster.spec.flush == "ASYNC_FLUSH"
    late = [] if waits or fault.pick & 1 else [node for node in nodes if node == arena.leader()]
    if late == list(nodes):
        late = []
    loss = LOSSES[fault.amount % len(LOSSES)]
    with arena.starting, ExitStack() as stack:
        for node in nodes:
            _take(arena, node, nodes, stack)
        for node in nodes:
            place, chance = arena.surroundings[node], random.Random(f"{fault.pick}/{node}")
            lost = lose_power(place.journal, arena.cluster.store(node), loss, chance)
            place.boot_again()
            arena.note(f"{node}: {lost.writes} writes and {lost.names} names lost ({loss.value})")

    def undo() -> None:
        try:
            bring_back(arena, [node for node in nodes if node not in late])
            if late:
                arena.cluster.wait_leader(BACK_LIMIT_S)
        finally:
            bring_back(arena, late)

    return undo


def _take(arena: Arena, node: str, nodes: Sequence[str], stack: ExitStack) -> None:
    """Kill these nodes until the store of one of them is in no use. If its broker is started from elsewhere,
    it waits from now on."""
    deadline = time.monotonic() + END_LIMIT_S
    while True:
        kill(arena, nodes)
        try:
            stack.enter_context(arena.surroundings[node].used(wait=False))
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ClusterError(f"after {END_LIMIT_S:g} s the store of {node} is still in use") from None
            time.sleep(POLL_S)
        else:
            return


def forget_unsynced(arena: Arena, node: str) -> None:
    """Let everything in a store count as durable, after its files were removed by another fault."""
    place = arena.surroundings.get(node)
    if place is not None and place.loses_power:
        forget(place.journal)
