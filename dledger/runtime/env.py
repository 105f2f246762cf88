"""`Env`: the access of a program to the world, passed to every entry point (`async def main(env)`)."""

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
    """Time of day. Wall time is data (time stamps); it never decides an order or a time-out."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""


class SystemWallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Env:
    """Access of one process to the world. Three brokers in one interpreter have three of them.

    `pid` and `boot_id` identify this process and this start of the machine. A changed `boot_id` distinguishes
    a loss of power from a restart of the process.
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
    """Seconds since the machine's start, including suspended time; None where that is not known."""
    reloads: Reloads = field(default_factory=Reloads)
    secret_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Returns this many random bytes, which cannot be guessed from earlier results of `random` and `ids`."""


def production_env(name: str = "dledger", disk_threads: int = 2) -> Env:
    """The real world: system clock, files of the operating system, random numbers seeded by the kernel,
    threads."""
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


def _uptime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:  # not Linux: every start counts as a new boot, the safe reading
        return secrets.token_hex(16)
