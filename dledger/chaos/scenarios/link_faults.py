"""Faults of the network in a plan, and the choice of the machines that a fault hits. The class is a base of
the injector (faults.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.scenarios.stage import PORT, Stage

Undo = Callable[[], object]


class LinkFaults:
    """Injects partitions, bad links, broken connections, and connections of foreign clients."""

    def __init__(self, stage: Stage) -> None:
        self.over = False
        self._stage = stage
        self._world = stage.world
        self._cuts: dict[tuple[str, str], int] = {}

    def link_kinds(self) -> dict[str, Callable[[Fault], bool]]:
        """The kinds of faults in this module, with their methods."""
        return {
            "cut": self._cut,
            "one-way": self._one_way,
            "isolate": self._isolate,
            "orphan": self._orphan,
            "deaf": self._deaf,
            "mute": self._mute,
            "ring": self._ring,
            "bridge": self._bridge,
            "churn": self._churn,
            "clients-cut": self._clients_cut,
            "delay": self._delay,
            "loss": self._loss,
            "narrow": self._narrow,
            "silence": self._silence,
            "reset": self._reset,
            "half-open": self._half_open,
            "strand": self._strand,
            "garbage": self._garbage,
            "crowd": self._crowd,
        }

    def mend_links(self) -> None:
        """End all faults of the network."""
        self._cuts.clear()
        self._world.heal()
        self._world.network.mend()

    def _later(self, delay_ms: int, undo: Undo) -> None:
        self._world.push(self._world.now + max(delay_ms, 1) * MS, self._undo, undo)

    def _undo(self, undo: Undo) -> None:
        if not self.over:
            undo()

    # Choice of the machines

    def _target(self, fault: Fault) -> str | None:
        alive = self._stage.alive()
        leader = self._stage.leader()
        if fault.target == "leader" and leader is not None:
            return leader
        if fault.target == "follower":
            alive = [name for name in alive if name != leader]
        return alive[fault.pick % len(alive)] if alive else None

    def _other(self, fault: Fault, target: str) -> str:
        """Another machine of the group, or the machine itself if the group has only one machine (in a shrunk
        plan)."""
        others = [name for name in self._stage.names if name != target] or [target]
        return others[fault.pick // 7 % len(others)]

    # Partitions

    def _block(self, fault: Fault, pairs: list[tuple[str, str]]) -> bool:
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
            self._world.partition(*pair, directed=True)
        self._later(fault.lasting_ms, lambda: self._unblock(pairs))
        return True

    def _unblock(self, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            left = self._cuts.get((source, target), 0) - 1
            self._cuts[source, target] = left
            if left == 0:
                self._world.note(source, "heal", f"{source}>{target}")
                self._world.network.heal(source, target)

    def _everybody_but(self, target: str) -> list[str]:
        stage = self._stage
        everybody = (*stage.names, *stage.client_names, *stage.bystanders)
        return [name for name in everybody if name != target]

    def _cut(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        other = self._other(fault, target)
        return self._block(fault, [(target, other), (other, target)])

    def _one_way(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        other = self._other(fault, target)
        return self._block(fault, [(target, other) if fault.pick % 2 else (other, target)])

    def _isolate(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        pairs = [(target, other) for other in self._everybody_but(target)]
        return self._block(fault, pairs + [(other, target) for _, other in pairs])

    def _orphan(self, fault: Fault) -> bool:
        """Cut a node off from the other members, in both directions. Clients still reach it."""
        target = self._target(fault) or self._stage.names[0]
        others = [name for name in self._stage.names if name != target]
        return self._block(fault, [pair for other in others for pair in ((target, other), (other, target))])

    def _deaf(self, fault: Fault) -> bool:
        """Let nothing from other machines arrive at a node."""
        target = self._target(fault) or self._stage.names[0]
        return self._block(fault, [(other, target) for other in self._everybody_but(target)])

    def _mute(self, fault: Fault) -> bool:
        """Let nothing that a node sends arrive at other machines."""
        target = self._target(fault) or self._stage.names[0]
        return self._block(fault, [(target, other) for other in self._everybody_but(target)])

    def _ring(self, fault: Fault) -> bool:
        """Let each node reach only its two neighbours in a ring. In a group of three nodes only one link is
        cut."""
        order = self._order(fault.pick)
        size = len(order)
        pairs = [
            (order[one], order[other])
            for one in range(size)
            for other in range(size)
            if one != other and (one - other) % size not in (1, size - 1)
        ]
        return self._block(fault, pairs or [(order[0], order[1 % size]), (order[1 % size], order[0])])

    def _bridge(self, fault: Fault) -> bool:
        """Separate the nodes into two sides and one node that still reaches all nodes. The sides reach each
        other only through that node."""
        return self._apart(fault, self._order(fault.pick)[1:])

    def _churn(self, fault: Fault) -> bool:
        """Begin another partition every `amount` ms. One side has a majority, and the two sides do not reach
        each other."""
        part = replace(fault, lasting_ms=fault.amount)
        step = 1 + fault.pick // 7 % max(1, len(self._stage.names) - 1)
        for turn in range(max(1, fault.lasting_ms // max(1, fault.amount))):
            order = self._order(fault.pick + turn * step)
            self._later(turn * fault.amount, partial(self._apart, part, order))
        return True

    def _order(self, pick: int) -> tuple[str, ...]:
        """All machines of the group in a ring, beginning with the one that `pick` chooses."""
        names = self._stage.names
        shift = pick % len(names)
        return names[shift:] + names[:shift]

    def _apart(self, fault: Fault, names: tuple[str, ...]) -> bool:
        """Separate the first half of these machines (the smaller one) from the rest."""
        half = len(names) // 2
        pairs = [(one, other) for one in names[:half] for other in names[half:]]
        return self._block(fault, pairs + [(other, one) for one, other in pairs])

    def _clients_cut(self, fault: Fault) -> bool:
        """Cut a node off from the clients. The other nodes still reach it."""
        target = self._target(fault) or self._stage.names[0]
        pairs = [(target, client) for client in self._stage.client_names]
        return self._block(fault, pairs + [(client, target) for _, client in pairs])

    # Links and connections

    def _pair(self, fault: Fault) -> tuple[str, str]:
        target = self._target(fault) or self._stage.names[0]
        if fault.pick % 5 == 0:
            return target, self._stage.client_names[fault.pick // 5 % len(self._stage.client_names)]
        return target, self._other(fault, target)

    def _delay(self, fault: Fault) -> bool:
        """Give all links of the target a random latency between a quarter of `amount` and `amount` ms one
        way."""
        target = self._target(fault) or self._stage.names[0]
        network = self._world.network
        others = self._everybody_but(target)
        for other in others:
            network.delay(target, other, (fault.amount / 4000, fault.amount / 1000))

        def usual() -> None:
            for other in others:
                network.delay(target, other, None)

        self._later(fault.lasting_ms, usual)
        return True

    def _loss(self, fault: Fault) -> bool:
        """Let one link lose `amount` percent of its packets."""
        one, other = self._pair(fault)
        self._world.network.loss(one, other, fault.amount / 100)
        self._later(fault.lasting_ms, lambda: self._world.network.loss(one, other, 0))
        return True

    def _narrow(self, fault: Fault) -> bool:
        """Limit a link to `amount` bytes a second."""
        one, other = self._pair(fault)
        self._world.network.bandwidth(one, other, fault.amount)
        self._later(fault.lasting_ms, lambda: self._world.network.bandwidth(one, other, None))
        return True

    def _silence(self, fault: Fault) -> bool:
        """Let a link accept everything and deliver nothing."""
        one, other = self._pair(fault)
        self._world.network.silence(one, other, directed=fault.pick % 2 == 0)
        self._later(fault.lasting_ms, lambda: self._world.heal(one, other))
        return True

    def _reset(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        self._world.network.reset(target)
        return True

    def _half_open(self, fault: Fault) -> bool:
        one, other = self._pair(fault)
        self._world.network.forget(one, other)
        return True

    def _strand(self, fault: Fault) -> bool:
        one, other = self._pair(fault)
        self._world.network.strand(one, other)
        return True

    def _garbage(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        self._world.network.garbage(target, PORT, hold_s=fault.lasting_ms / 1000)
        return True

    def _crowd(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        self._world.network.crowd(target, PORT, fault.amount, hold_s=fault.lasting_ms / 1000)
        return True
