"""The faults of operators: members of the group are exchanged, and other nodes are preferred as leaders.

A trial with such faults has one node more than its group: the spare. An exchange makes the spare a member,
and removes another member, which is the spare from then on. What a removed node leaves is kept (`departed`).

Operators repeat a command that was refused or got no answer: other faults may take the leader away meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dledger.chaos.replacement import ask
from dledger.chaos.scenarios.plan import Fault
from dledger.local.cluster import ClusterError
from dledger.peers.log_client import DLedgerClient, RequestFailed

if TYPE_CHECKING:
    from dledger.chaos.trials.arena import Arena

CHANGE_LIMIT_S = 90.0
"""Longest time until a node has become a member that votes, or is a member no longer, in seconds."""
PREFER_LIMIT_S = 10.0
"""Longest time until the group has accepted which leader it should prefer, in seconds."""
ANSWER_S = 5.0
"""Time limit of one command, in seconds."""
PAUSE_S = 0.1
"""Pause between two looks at the members, in seconds."""

Rows = Mapping[str, Mapping[str, Any]]
"""The members as the leader sees them, by node id."""


def exchange(arena: Arena, nodes: Sequence[str], fault: Fault) -> None:
    """The spare becomes a member that votes; then this node is removed, and its process ends.

    Half of the time the group makes the new member a voter by itself, else the operator does it. If an
    earlier exchange was interrupted, this one first completes it. Raises ClusterError if the group does not
    come to this in time.
    """
    (leaving,) = nodes
    if len(arena.members) <= arena.size:
        arena.enlist()
    joining = arena.members[-1]
    stays = bool(fault.pick & 1)
    _until(arena, partial(_vote, arena, joining, stays), f"{joining} does not become a voter")
    _until(arena, partial(_gone, leaving), f"{leaving} is not removed")
    arena.dismiss(leaving)
    arena.note(f"{joining} has joined the group, and {leaving} has left it")


def settle(arena: Arena) -> None:
    """Complete an exchange that was interrupted, so that the group has its size again. Raises ClusterError if
    that is not possible in time."""
    if len(arena.members) > arena.size:
        exchange(arena, arena.members[:1], Fault(0, "member", "any", 0))


async def _vote(arena: Arena, node: str, stays: bool, client: DLedgerClient, rows: Rows) -> bool:
    """Let a node become a voter. Returns whether it is one, and follows."""
    row = rows.get(node)
    if row is None:
        await client.add_member(node, arena.cluster.raft_addr(node), stays=stays)
    elif row["role"] == "voter":
        return True
    elif row["stays"]:
        await client.promote_member(node)
    return False


async def _gone(node: str, client: DLedgerClient, rows: Rows) -> bool:
    """Remove a node. Returns whether it is a member no longer."""
    if node not in rows:
        return True
    await client.remove_member(node)
    return False


def _until(arena: Arena, step: Callable[[DLedgerClient, Rows], Any], failed: str) -> None:
    """Look at the members and take a step, again and again, until the step says that there is nothing left to
    do."""
    last = ""

    async def look(client: DLedgerClient) -> bool:
        found = await client.members()
        if found["pending"]:
            return False
        return bool(await step(client, {row["id"]: row for row in found["members"]}))

    deadline = time.monotonic() + CHANGE_LIMIT_S
    while time.monotonic() < deadline:
        try:
            if ask(arena.cluster, look, ANSWER_S):
                return
        except RequestFailed as problem:
            last = str(problem)
        time.sleep(PAUSE_S)
    raise ClusterError(f"after {CHANGE_LIMIT_S:g} s {failed}: {last or 'it takes longer'}")


def prefer(arena: Arena, nodes: Sequence[str], fault: Fault) -> Callable[[], None]:
    """The group prefers this node as its leader from now on, until the next such fault. What undoes it only
    notes which node leads."""
    (chosen,) = nodes

    async def command(client: DLedgerClient) -> int:
        return await client.prefer(nodes)

    deadline = time.monotonic() + PREFER_LIMIT_S
    while True:
        try:
            ask(arena.cluster, command, ANSWER_S)
            break
        except RequestFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)

    def look() -> None:
        leader = arena.leader()
        arena.note(f"{chosen} is preferred, and {leader or 'no node'} leads")

    return look
