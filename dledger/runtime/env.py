"""`Env`: a program's access to the outside world, passed to every entry point (`async def main(env)`)."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dledger.runtime.files import Files, OsFiles
from dledger.runtime.gc_pauses import Pauses
from dledger.runtime.ids import Ids
from dledger.runtime.log import Log, StandardLog
from dledger.runtime.reloads import Reloads
from dledger.runtime.workers import ThreadWorkers, Workers


class WallClock(Protocol):
    """Time of day. It is used only as data (time stamps); it never decides an order or a time-out."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""


class SystemWallClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Return seconds of a clock that is never set back or forth. For blocking code outside of event loops,
    which have a clock of their own."""
    return time.monotonic()


def pause_s(seconds: float) -> None:
    """Let the calling thread sleep. For blocking code outside of event loops."""
    time.sleep(seconds)


@dataclass(frozen=True)
class Env:
    """Access of one process to the outside world. If three brokers run in one interpreter, each has its own
    `Env`.

    `pid` identifies this process, and `boot_id` this start of the machine. If `boot_id` has changed, the
    machine was restarted, perhaps after a loss of power; if it has not, only the process was restarted.
    """

    files: Files
    wall: WallClock
    random: random.Random
    ids: Ids
    workers: Workers
    log: Log
    pid: int
    boot_id: str
    pauses: Pauses = field(default_factory=Pauses)
    uptime_s: Callable[[], float] | None = None
    """Returns the seconds since the machine's start, including suspended time; None if the system does not
    report it."""
    reloads: Reloads = field(default_factory=Reloads)
    secret_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Returns this many random bytes, which cannot be guessed from earlier results of `random` and `ids`."""


def production_env(name: str = "dledger", disk_threads: int = 2) -> Env:
    """Make an `Env` of the real world: system clock, files of the operating system, random numbers seeded by
    the kernel, threads."""
    rng = random.Random(secrets.randbits(128))
    return Env(
        files=OsFiles(),
        wall=SystemWallClock(),
        random=rng,
        ids=Ids(rng),
        workers=ThreadWorkers(disk_threads),
        log=StandardLog(name),
        pid=os.getpid(),
        boot_id=_boot_id(),
        uptime_s=_uptime_s if hasattr(time, "CLOCK_BOOTTIME") else None,
    )


def new_id() -> str:
    """Return an identifier that no other process makes, for code that has no `Env`: a task in a worker of
    Spark."""
    return secrets.token_hex(16)


def _uptime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:  # not Linux: every start counts as a new boot, which is safe
        return new_id()
