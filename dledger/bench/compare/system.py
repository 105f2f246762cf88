"""What a system has to be for the comparison."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dledger.local.processes import ManagedProcess

FSYNC = "fsync of a majority"
PAGE_CACHE = "page cache of a majority"
BATCH = 32
"""Messages of a batch."""
START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0

Done = Callable[[bool], None]
"""Told once of each message: whether it is stored."""


class CompareError(Exception):
    """A system could not be started, or does not do what it is asked for."""


class Sender(Protocol):
    """One connection that sends messages of one size."""

    def send(self, done: Done) -> None:
        """Send one; `done` is called later, never from within."""

    def send_batch(self, done: Done) -> None:
        """Send `BATCH` as the system's `batch` says; `done` is told once, whether all are stored."""

    async def close(self) -> None:
        """Hang up."""


def one_by_one(send: Callable[[Done], None], done: Done) -> None:
    """A batch of a system that has none: `BATCH` sends back to back, told of when the last one is stored."""
    left, stored = BATCH, True

    def told(ok: bool) -> None:
        nonlocal left, stored
        left -= 1
        stored = stored and ok
        if not left:
            done(stored)

    for _ in range(BATCH):
        send(told)


class System(Protocol):
    """A group of nodes on loopback. All but `connect` block."""

    name: str
    durability: str
    """FSYNC or PAGE_CACHE."""
    batch: str
    """What a batch is there, for the table."""

    @property
    def version(self) -> str:
        """As it says itself; empty where that is not known before it runs."""

    def start(self, directory: Path) -> None:
        """Start it in an empty directory and wait until it can take messages. CompareError."""

    def stop(self) -> None:
        """End all of its processes."""

    def pids(self) -> list[int]:
        """Of what serves: NameServers and the like count, too."""

    async def connect(self, size: int) -> Sender:
        """Somebody who sends bodies of `size` bytes to where they are taken at once (the leader)."""


class Nodes:
    """Processes of a system, started with one output file each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[ManagedProcess] = []

    def start(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        """Start one more."""
        process = ManagedProcess(
            name,
            command,
            pid_file=self._directory / f"{name}.pid",
            output=self._directory / f"{name}.out",
            cwd=self._directory,
            environment=environment,
        )
        process.start()
        self._processes.append(process)

    def stop(self) -> None:
        """End all, by force what does not end soon."""
        for process in self._processes:
            process.stop(STOP_LIMIT_S)

    def pids(self) -> list[int]:
        """Of those that run, with their children."""
        roots = [process.pid for process in self._processes]
        return with_children([pid for pid in roots if pid is not None])

    def output(self) -> str:
        """The end of what each wrote, for an error."""
        texts = []
        for process in self._processes:
            path = self._directory / f"{process.name}.out"
            texts.append(
                f"{process.name}: {path.read_text(errors='replace')[-600:]}" if path.exists() else ""
            )
        return "\n".join(texts)


class Started:
    """What systems have in common whose processes are started here."""

    def __init__(self, base: int, nodes: int) -> None:
        """`base`: the first of their ports."""
        self._base = base
        self._members = nodes
        self._nodes: Nodes | None = None

    def stop(self) -> None:
        """See `System`."""
        if self._nodes is not None:
            self._nodes.stop()

    def pids(self) -> list[int]:
        """See `System`."""
        return [] if self._nodes is None else self._nodes.pids()


def with_children(pids: Sequence[int]) -> list[int]:
    """Those processes and all that descend from them."""
    parent_of: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parent_of[int(entry.name)] = int(fields[1])
    found = dict.fromkeys(pids)
    grown = True
    while grown:
        more = [pid for pid, parent in parent_of.items() if parent in found and pid not in found]
        found.update(dict.fromkeys(more))
        grown = bool(more)
    return list(found)


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time of processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: Sequence[int]) -> float:
    """Memory of processes, pages that they share counted for each."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def reachable(host: str, port: int, limit_s: float) -> None:
    """Until somebody listens there. CompareError."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            if asyncio.get_running_loop().time() > deadline:
                raise CompareError(f"{host}:{port}: nobody listens after {limit_s:.0f} s") from None
            await asyncio.sleep(0.2)
        else:
            writer.close()
            return
