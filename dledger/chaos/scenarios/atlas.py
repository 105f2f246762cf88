"""The fault atlas: what a run may do to disks so that the group must still recover.

Kills, power cuts, partitions, stops and clocks may hit all nodes at once: nothing acknowledged is lost by
them. A fault that *damages* a store (a failed write, rot, a lost file, a wiped directory) takes that node's
copy away. Then a majority of undamaged copies must be left: no second node of three is damaged before the
first one is whole again, that is a voter of the group with everything that was committed when it was hit. Or
it was removed from the group, which then counts on it no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger.chaos.scenarios.machine import Machine
    from dledger.chaos.scenarios.stage import Stage
    from dledger.node.node import Node


ROT = ("rot", "rot-index", "misdirect", "misdirect-votes", "lose-segment", "eio-read", "eio-snapshot")
"""Damage that is repaired while the node runs."""
ALONE = ("rot-index", "rot-votes", "lose-votes", "misdirect", "misdirect-votes")
"""Damage that does not come to a store that is damaged already, nor other damage to it: two in one entry may
be more than it can tell apart (docs/explanation/guarantees.md)."""


@dataclass(frozen=True)
class Damage:
    """What happened to a store, and up to where the log was committed then."""

    kind: str
    commit_index: int
    life: int


class Atlas:
    """Which stores are damaged now."""

    def __init__(self, stage: Stage) -> None:
        self.damaged: dict[str, Damage] = {}
        self.refused: int = 0
        self._stage = stage

    def allows(self, name: str, kind: str) -> bool:
        """Whether this node's store may be damaged so now. Counts what it refuses."""
        self.look()
        others = sum(1 for other in self.damaged if other != name)
        before = self.damaged.get(name)
        alone = before is None or (kind not in ALONE and before.kind not in ALONE)
        fine = others + 1 <= (self._voters() - 1) // 2 and alone
        self.refused += not fine
        return fine

    def damage(self, name: str, kind: str) -> None:
        """It is damaged."""
        machine = self._stage.machines[name]
        machine.excused = True
        self.damaged[name] = Damage(kind, self._stage.cluster.commit_index, machine.lives)

    def look(self) -> None:
        """Who is whole again?"""
        for name in list(self.damaged):
            if self._whole(self._stage.machines[name], self.damaged[name]):
                del self.damaged[name]
                self._stage.machines[name].excused = False
            elif self._left(name):
                del self.damaged[name]

    def _head(self) -> Node | None:
        """Who leads, if its configuration is committed."""
        leader = self._stage.leader()
        head = None if leader is None else self._stage.machines[leader].node
        return None if head is None or head.members.pending(head.commit_index) else head

    def _voters(self) -> int:
        """How many there are: of two, none may be damaged. While a change is pending, or nobody leads, as few
        as some node counts."""
        nodes = [self._stage.machines[name].node for name in self._stage.alive()]
        heads = [node for node in (self._head(),) if node is not None]
        counts = [
            len(node.members.voters) for node in heads or nodes if node is not None and node.members.voters
        ]
        return min(counts, default=self._stage.plan.nodes)

    def _left(self, name: str) -> bool:
        head = self._head()
        return head is not None and name not in head.members.addresses(head.commit_index)

    def _whole(self, machine: Machine, damage: Damage) -> bool:
        head, node = self._head(), machine.node
        rot = damage.kind in ROT
        if head is None or node is None or (machine.lives == damage.life and not rot):
            return False
        if machine.still_rotten():
            return False
        if not node.elector.may_vote or not node.elector.may_stand:
            return False
        named = head.membership.counts(node.trust.hello())
        return named and node.log.durable_index >= damage.commit_index
