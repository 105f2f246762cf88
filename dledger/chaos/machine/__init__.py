"""Deterministic simulation: unchanged asyncio programs run under virtual time, and a seed decides everything
that happens.

Start with `World` (world.py). A program reaches clock, files, network and threads through the interfaces of
`dledger/runtime/`; `env.py` shows how the simulator implements them.
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
