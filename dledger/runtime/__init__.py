"""The only modules that use the outside world directly: clock, random numbers and ids, files, worker threads,
log.

All code above this package receives an `Env` and uses the outside world through it, so that the same code
runs in production and in deterministic simulation. Monotonic time comes from the running loop
(`loop.time()`), sockets from `loop.create_server` / `loop.create_connection`. Code outside this package must
not call `time.*`, `random`, `uuid`, `threading`, `open` or `socket` (a test enforces it).
"""

from dledger.runtime.env import Env, WallClock
from dledger.runtime.files import DiskUsage, File, Files
from dledger.runtime.ids import Ids
from dledger.runtime.log import Log
from dledger.runtime.workers import Lane, Workers

__all__ = ["DiskUsage", "Env", "File", "Files", "Ids", "Lane", "Log", "WallClock", "Workers"]
