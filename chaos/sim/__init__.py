"""Deterministic simulation: unchanged asyncio programs under virtual time, from one seed.

Start with `World` (world.py); `env.py` shows how the doors of `runtime/` are built on it.
"""

from dledger.chaos.sim.guard import Guard, OutsideWorldError
from dledger.chaos.sim.node import Exit, Node, Process
from dledger.chaos.sim.settings import Settings
from dledger.chaos.sim.trace import Trace
from dledger.chaos.sim.world import RunFailed, RunTimeout, World

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
