"""All families of faults at once on three real nodes, then none: nothing acknowledged is lost.

Uses the oracles of `random_faults`. Run as a script it prints the trace of one seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import node_group
from random_faults import PAUSES_S, Run

from dledger.chaos.machine import Trace, World

NAMES = node_group.NAMES
PORT = 40911
STEPS = 120
MODES = ("prefix", "torn", "none", "all")
SETTINGS = replace(node_group.SETTINGS, spread_chance=0.2)

Fault = Callable[[], object]


class Storm:
    """Draws faults from the seed."""

    def __init__(self, world: World, run: Run) -> None:
        self.world = world
        self.run = run
        self.random = world.stream("storm")
        self.choices: list[Fault] = [*self._network(), *self._processes(), *self._disks()]

    def start_all(self) -> None:
        """Start all nodes that do not run."""
        for name in NAMES:
            if self.world.nodes[name].process is None:
                self.run.group.start(name)

    def step(self) -> None:
        """Inject one fault, perhaps perform an operation, and let some time pass."""
        self.random.choice(self.choices)()
        if self.random.random() < 0.6:
            self.run.append()
        self.world.run_for(self.random.choice(PAUSES_S))
        self.run.look()

    def peace(self) -> None:
        """End all faults that can be ended."""
        self.world.network.mend()
        self.world.heal()
        for name in NAMES:
            node = self.world.nodes[name]
            self.world.cont(name)
            self.world.slow(name, 1)
            self.world.clock_drift(name, 1)
            node.disk.mend()
            if node.process is not None:
                node.process.crash_at = node.process.stall_at = None
        self.start_all()
        self.world.run_for(12.0)  # longer than anybody waits between two attempts

    def _one(self) -> str:
        return self.random.choice(NAMES)

    def _pair(self) -> list[str]:
        return self.random.sample(NAMES, 2)

    def _directed(self) -> bool:
        return self.random.random() < 0.4

    def _living(self, action: Callable[[str], object]) -> None:
        living = [name for name in NAMES if self.world.nodes[name].process is not None]
        if living:
            action(self.random.choice(living))

    def _network(self) -> list[Fault]:
        world, network, some = self.world, self.world.network, self.random.choice
        return [
            lambda: network.delay(*self._pair(), (0.0, some((0.001, 0.02, 0.2))), directed=self._directed()),
            lambda: network.loss(*self._pair(), some((0.01, 0.1, 0.5)), directed=self._directed()),
            lambda: network.bandwidth(*self._pair(), some((1e4, 1e5, 1e6)), directed=self._directed()),
            lambda: network.silence(*self._pair(), directed=self._directed()),
            lambda: network.forget(*self._pair()),
            lambda: network.strand(*self._pair()),
            lambda: network.reset(self._one()),
            lambda: network.garbage(self._one(), PORT),
            lambda: network.crowd(self._one(), PORT, 20),
            lambda: world.partition(*self._pair(), directed=self._directed()),
            lambda: world.isolate(self._one()),
            network.mend,
            world.heal,
        ]

    def _processes(self) -> list[Fault]:
        world, some, number = self.world, self.random.choice, self.random.randint
        return [
            lambda: self._living(world.stop),
            lambda: [world.cont(name) for name in NAMES],
            lambda: world.slow(self._one(), some((1, 5, 100))),
            lambda: self._living(
                partial(world.stall_before, effect=number(1, 40), seconds=some((0.01, 0.5, 3)))
            ),
            lambda: world.clock_drift(self._one(), some((0.9, 1.0, 1.1))),
            lambda: world.clock_jump(self._one(), number(-(10**7), 10**7)),
            lambda: self._living(world.kill),
            lambda: world.power_cut(self._one(), some(MODES)),
            lambda: self._living(
                partial(world.crash_before, effect=number(1, 60), power=self._directed(), mode=some(MODES))
            ),
            self.start_all,
            self.start_all,
        ]

    def _disks(self) -> list[Fault]:
        nodes = self.world.nodes
        return [
            lambda: nodes[self._one()].disk.slow(self.random.choice((1, 10, 200))),
            lambda: nodes[self._one()].disk.hang(),
            lambda: [nodes[name].disk.resume() for name in NAMES],
        ]


def run_seed(seed: int, trace: Trace | None = None) -> tuple[int, dict[str, int]]:
    """Play one seed. Returns the number of acknowledged entries, and the number of faults by kind."""
    with World(seed, settings=SETTINGS, trace=trace) as world:
        run = Run(world, seed)
        storm = Storm(world, run)
        run.group.await_leader()
        for _ in range(STEPS):
            storm.step()
        storm.peace()
        run.finish()
        return len(run.acknowledged), world.faults


if __name__ == "__main__":
    lines = Trace()
    run_seed(int(sys.argv[1]), lines)
    sys.stdout.write("\n".join(lines.lines))
