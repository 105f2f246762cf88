"""What a plan does to the machines, and how each fault is undone.

The *fault atlas*: a fault is left out when the group could then lose more than it promises to survive. Today:
damage that takes a node's store out of the quorum (`DAMAGING`) never reaches a second node before the first
has recovered; process, power and network faults may hit everybody at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chaos.sim.settings import MS
from chaos.simulate.plan import Fault
from chaos.simulate.stage import Stage

Undo = Callable[[], None]


class Injector:
    """Applies the faults of a plan at their times, undoes them, and ends them all at `finish`."""

    def __init__(self, stage: Stage) -> None:
        self.injected: dict[str, int] = {}
        self.over = False
        self._stage = stage
        self._world = stage.world
        self._cuts: dict[tuple[str, str], int] = {}
        self._kinds: dict[str, Callable[[Fault], bool]] = {
            "kill": self._kill,
            "kill-all": self._kill_all,
            "crash": self._crash,
            "power": self._power,
            "power-crash": self._crash,
            "power-all": self._power_all,
            "restarts": self._restarts,
            "cut": self._cut,
            "one-way": self._one_way,
            "isolate": self._isolate,
            "deaf": self._deaf,
            "mute": self._mute,
            "clients-cut": self._clients_cut,
        }

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        """Have all of them happen at their times."""
        for fault in faults:
            self._world.push(fault.at_ms * MS, self._begin, fault)

    def finish(self) -> None:
        """Undo everything: whole networks, good disks, running nodes."""
        self.over = True
        self._cuts.clear()
        self._world.heal()
        for name in self._stage.names:
            process = self._world.nodes[name].process
            if process is not None:
                process.crash_at = None
            self._stage.start(name)

    def _begin(self, fault: Fault) -> None:
        if self.over:
            return
        if self._kinds[fault.kind](fault):
            self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1
            self._stage.noted_fault(fault.kind)

    def _later(self, delay_ms: int, undo: Undo) -> None:
        self._world.push(self._world.now + max(delay_ms, 1) * MS, self._undo, undo)

    def _undo(self, undo: Undo) -> None:
        if not self.over:
            undo()

    # Whom

    def _target(self, fault: Fault) -> str | None:
        alive = self._stage.alive()
        leader = self._stage.leader()
        if fault.target == "leader" and leader is not None:
            return leader
        if fault.target == "follower":
            alive = [name for name in alive if name != leader]
        return alive[fault.pick % len(alive)] if alive else None

    def _other(self, fault: Fault, target: str) -> str:
        others = [name for name in self._stage.names if name != target]
        return others[fault.pick // 7 % len(others)]

    # Processes and power

    def _kill(self, fault: Fault) -> bool:
        return self._end(fault, self._world.kill)

    def _power(self, fault: Fault) -> bool:
        return self._end(fault, self._world.power_cut)

    def _end(self, fault: Fault, end: Callable[[str], None]) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        end(target)
        self._later(fault.lasting_ms, lambda: self._stage.start(target))
        return True

    def _crash(self, fault: Fault) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        self._world.crash_before(target, fault.amount, power=fault.kind == "power-crash")
        self._later(fault.lasting_ms, lambda: self._stage.start(target))
        return True

    def _kill_all(self, fault: Fault) -> bool:
        return self._end_all(fault, self._world.kill)

    def _power_all(self, fault: Fault) -> bool:
        return self._end_all(fault, self._world.power_cut)

    def _end_all(self, fault: Fault, end: Callable[[str], None]) -> bool:
        for place, name in enumerate(self._stage.names):
            end(name)
            # They come back one after another, in an order of their own.
            turn = (place + fault.pick) % len(self._stage.names)
            self._later(fault.lasting_ms + turn * (fault.pick % 300), partial(self._stage.start, name))
        return True

    def _restarts(self, fault: Fault) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        pause = fault.lasting_ms
        for turn in range(fault.amount):
            self._later(2 * turn * pause, lambda: self._world.kill(target))
            self._later((2 * turn + 1) * pause, lambda: self._stage.start(target))
        return True

    # Network

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
        return [name for name in (*self._stage.names, *self._stage.client_names) if name != target]

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

    def _deaf(self, fault: Fault) -> bool:
        """It hears nobody."""
        target = self._target(fault) or self._stage.names[0]
        return self._block(fault, [(other, target) for other in self._everybody_but(target)])

    def _mute(self, fault: Fault) -> bool:
        """Nobody hears it."""
        target = self._target(fault) or self._stage.names[0]
        return self._block(fault, [(target, other) for other in self._everybody_but(target)])

    def _clients_cut(self, fault: Fault) -> bool:
        """Clients do not reach a node that the others reach."""
        target = self._target(fault) or self._stage.names[0]
        pairs = [(target, client) for client in self._stage.client_names]
        return self._block(fault, pairs + [(client, target) for _, client in pairs])
