"""The fault atlas. It decides which faults of disks a run may inject, so that the group must still be able to
recover.

Kills, power cuts, partitions, stops and clock faults may hit all nodes at once, because they lose nothing
that was acknowledged. A fault that *damages* a store (a failed write, rot, a lost file, a wiped directory)
can take away that node's copy. Then a majority of undamaged copies must be left. So in a group of three no
second node is damaged before the first one is whole again. A node is *whole* if it is a voter with everything
that was committed when it was damaged. A damaged node that was removed from the group is no longer counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger.chaos.scenarios.machine import Machine
    from dledger.chaos.scenarios.stage import Stage
    from dledger.node.node import Node


ROT = ("rot", "rot-index", "misdirect", "misdirect-votes", "lose-segment", "eio-read", "eio-snapshot")
"""Kinds of damage that are repaired while the node runs."""
ALONE = ("rot-index", "rot-votes", "lose-votes", "misdirect", "misdirect-votes")
"""Kinds of damage that are never combined with other damage in one store. Two kinds in one entry may be more
than the store can tell apart (docs/explanation/guarantees.md)."""


@dataclass(frozen=True)
class Damage:
    """One damage: its kind, the commit index when it happened, and the node's number of starts at that time
    (`life`)."""

    kind: str
    commit_index: int
    life: int


class Atlas:
    """The stores that are damaged now, and the decision whether another damage is allowed."""

    def __init__(self, stage: Stage) -> None:
        self.damaged: dict[str, Damage] = {}
        self.refused: int = 0
        self._stage = stage

    def allows(self, name: str, kind: str) -> bool:
        """Whether this node's store may be damaged in this way now. Counts a refusal in `refused`."""
        self.look()
        others = sum(1 for other in self.damaged if other != name)
        before = self.damaged.get(name)
        alone = before is None or (kind not in ALONE and before.kind not in ALONE)
        fine = others + 1 <= (self._voters() - 1) // 2 and alone
        self.refused += not fine
        return fine

    def damage(self, name: str, kind: str) -> None:
        """Note that a node's store is damaged."""
        machine = self._stage.machines[name]
        machine.excused = True
        self.damaged[name] = Damage(kind, self._stage.cluster.commit_index, machine.lives)

    def look(self) -> None:
        """Forget the damage of nodes that are whole again, or that have left the group."""
        for name in list(self.damaged):
            if self._whole(self._stage.machines[name], self.damaged[name]):
                del self.damaged[name]
                self._stage.machines[name].excused = False
            elif self._left(name):
                del self.damaged[name]

    def _head(self) -> Node | None:
        """The leader, if its configuration is committed; otherwise None."""
        leader = self._stage.leader()
        head = None if leader is None else self._stage.machines[leader].node
        return None if head is None or head.members.pending(head.commit_index) else head

    def _voters(self) -> int:
        """The number of voters. While a change of the configuration is pending, or without a leader, it is
        the smallest number that any node knows."""
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
