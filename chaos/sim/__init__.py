"""Deterministic simulation: unchanged asyncio programs under virtual time, from one seed.

Start with `World` (world.py); `env.py` shows how the doors of `runtime/` are built on it.
"""

from chaos.sim.guard import Guard, OutsideWorldError
from chaos.sim.node import Exit, Node, Process
from chaos.sim.settings import Settings
from chaos.sim.trace import Trace
from chaos.sim.world import RunFailed, RunTimeout, World

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
