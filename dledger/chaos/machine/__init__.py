"""Deterministic simulation: unchanged asyncio programs run under virtual time, and one seed decides every
run.

Start with `World` (world.py). `env.py` shows how the interfaces of `dledger/runtime/`, through which a
program reaches clock, files, network and threads, are built on it.
"""

from dledger.chaos.machine.guard import Guard, OutsideWorldError
from dledger.chaos.machine.node import Exit, Node, Process
from dledger.chaos.machine.settings import Settings
from dledger.chaos.machine.trace import Trace
from dledger.chaos.machine.world import RunFailed, RunTimeout, World

__all__ = [
    "Exit",
    "Guard",
    "Node",
    "OutsideWorldError",
    "Process",
    "RunFailed",
    "RunTimeout",
    "Settings",
    "Trace",
    "World",
]
