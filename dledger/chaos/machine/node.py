"""Simulated machines and the processes on them.

A `Node` is a machine: an address, a clock, a disk, a network stack. It runs one `Process` at a time, and
stays when a process ends. *Kill* ends the process: the kernel closes the sockets of the process and keeps the
page cache. *Power cut* ends the machine: its peers get no notice, and the disk forgets everything that is not
durable.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger.chaos.machine.clock import Clock
from dledger.chaos.machine.disk import Disk
from dledger.chaos.machine.env import make_env
from dledger.chaos.machine.files import SimFiles
from dledger.chaos.machine.loop import SimLoop
from dledger.chaos.machine.workers import SimWorkers
from dledger.runtime.env import Env

if TYPE_CHECKING:
    from dledger.chaos.machine.tcp import Endpoint, Flow, Listener
    from dledger.chaos.machine.world import World

Main = Callable[[Env], Coroutine[Any, Any, object]]


@dataclass(frozen=True)
class Exit:
    """How a process ended: `reason` is "returned", "raised", "cancelled", "killed" or "power cut"."""

    reason: str
    error: BaseException | None = None


class Node:
    """One simulated machine."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.address: str = f"10.0.{number // 250}.{number % 250 + 1}"
        settings = world.settings
        rng = world.stream(f"node/{name}")
        skew = rng.randint(-settings.wall_skew_ms, settings.wall_skew_ms)
        self.clock: Clock = Clock(rng.randrange(settings.uptime_ns), skew)
        self.disk: Disk = Disk(world, name)
        self.powered: bool = True
        self.slowness: float = 1.0  # factor by which its processor is slower
        self.process: Process | None = None
        self.boots: int = 1
        self.processes = 0
        self.boot_id: str = f"{rng.getrandbits(128):032x}"
        self.listeners: dict[int, Listener] = {}
        self.waiting: list[Flow] = []  # packets to this machine while it is off
        self._random = rng

    def boot(self) -> None:
        """Switch the power on after a power cut. The machine gets a new boot id, and its monotonic clock gets
        a new random time."""
        self.powered = True
        self.boots += 1
        self.boot_id = f"{self._random.getrandbits(128):032x}"
        self.clock.set(self.world.now, self._random.randrange(self.world.settings.uptime_ns))

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.address}>"


class Process:
    """One run of a program on a machine: a loop, an `Env`, open sockets and files."""

    def __init__(self, node: Node, main: Main, may_raise: tuple[type[BaseException], ...]) -> None:
        self.world: World = node.world
        self.node = node
        self.name: str = node.name
        node.processes += 1
        self.number: int = node.processes
        self.pid: int = 1000 + node.number * 1000 + self.number
        self.exit: Exit | None = None
        self.effects: int = 0
        self.crash_at: int | None = None
        self.crash_power: str | None = None  # mode of the power cut; None kills
        self.dies_below: str | None = None  # killed in its next write to a path that contains this
        self.stall_at: int | None = None
        self.stall_ns = 0
        self.stopped = False
        self.endpoints: dict[int, Endpoint] = {}
        self.random: random.Random = self.world.stream(f"process/{node.name}/{self.number}")
        self.loop: SimLoop = SimLoop(self)
        self.workers: SimWorkers = SimWorkers(self)
        self.files: SimFiles = SimFiles(node.disk, self)
        self.env: Env = make_env(self)
        self.task: asyncio.Task[object] | None = None
        self._main = main
        self._may_raise = may_raise
        self.loop.call_soon(self._start)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return not self.loop.dead

    def effect(self) -> bool:
        """Count an effect. Called before anything that other machines or the disk could notice. Returns False
        if the process is dead; then the caller must do nothing."""
        if self.loop.dead:
            return False
        self.effects += 1
        if self.effects == self.crash_at:
            self.world.crash(self)
            return False
        if self.stall_at is not None and self.effects >= self.stall_at and self.loop.is_running():
            self.world.stall(self)
        return True

    def cancel(self) -> None:
        """Ask the program to end, as the outer shell does on SIGTERM."""
        self.loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _start(self) -> None:
        self.task = self.loop.create_task(self._main(self.env), name="main")
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        if task.cancelled():
            self.world.ended(self, Exit("cancelled"))
            return
        error = task.exception()
        if error is not None and not isinstance(error, self._may_raise):
            self.world.fail(self, "the program ended with an error", error)
        self.world.ended(self, Exit("returned" if error is None else "raised", error))

    def __repr__(self) -> str:
        return f"<Process {self.name}#{self.number}>"
