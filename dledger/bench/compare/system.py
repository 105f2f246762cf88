"""The interface that a system needs for the comparison, and the parts that systems share."""

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
"""Number of messages in a batch."""
START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0

Done = Callable[[bool], None]
"""Function that is called once for each request. The argument says whether the request's messages are
stored."""


class CompareError(Exception):
    """Raised if a system cannot be started, or does not do what the comparison needs."""


class Sender(Protocol):
    """A connection that sends messages of one size."""

    def send(self, done: Done) -> None:
        """Send one message. `done` is called later, never during this call."""

    def send_batch(self, done: Done) -> None:
        """Send `BATCH` messages, in the way that the system's `batch` describes. `done` is called once;
        its argument says whether all messages are stored."""

    async def close(self) -> None:
        """Close the connection."""


def one_by_one(send: Callable[[Done], None], done: Done) -> None:
    """Send a batch in a system that has no batches, as `BATCH` single messages one after another. `done`
    is called when all are answered."""
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
    """A system under comparison: a group of nodes on loopback. All methods except `connect` block."""

    name: str
    durability: str
    """Class of durability: FSYNC or PAGE_CACHE."""
    batch: str
    """What a batch is in this system, as text for the table."""

    @property
    def version(self) -> str:
        """The version that the system reports; empty if the version is known only while the system runs."""

    def start(self, directory: Path) -> None:
        """Start the system in an empty directory, and wait until it accepts messages. Raises CompareError
        if it does not start."""

    def stop(self) -> None:
        """End all processes of the system."""

    def pids(self) -> list[int]:
        """Pids of all processes that take part in serving, including NameServers and the like."""

    async def connect(self, size: int) -> Sender:
        """Connect a sender for bodies of `size` bytes to the node that takes messages directly (the
        leader)."""


class Nodes:
    """Processes of a system. The output of each process goes to a file of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[ManagedProcess] = []

    def start(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        """Start one more process."""
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
        """End all processes. Those that do not end soon are killed."""
        for process in self._processes:
            process.stop(STOP_LIMIT_S)

    def pids(self) -> list[int]:
        """Pids of the processes that run, and of their children."""
        roots = [process.pid for process in self._processes]
        return with_children([pid for pid in roots if pid is not None])

    def output(self) -> str:
        """Return the last part of the output of each process, for an error text."""
        texts = []
        for process in self._processes:
            path = self._directory / f"{process.name}.out"
            texts.append(
                f"{process.name}: {path.read_text(errors='replace')[-600:]}" if path.exists() else ""
            )
        return "\n".join(texts)


class Started:
    """Common base of the systems whose processes the comparison itself starts."""

    def __init__(self, base: int, nodes: int) -> None:
        """`base` is the first port of the nodes."""
        self._base = base
        self._members = nodes
        self._nodes: Nodes | None = None

    def stop(self) -> None:
        """End all processes, as `System.stop` explains."""
        if self._nodes is not None:
            self._nodes.stop()

    def pids(self) -> list[int]:
        """Return pids, as `System.pids` explains."""
        return [] if self._nodes is None else self._nodes.pids()


def with_children(pids: Sequence[int]) -> list[int]:
    """Return these processes and all their descendants."""
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
    """Return the user and system time that the processes have used so far, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: Sequence[int]) -> float:
    """Return the resident memory of the processes in MiB. A page that several processes share is counted
    for each of them."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def reachable(host: str, port: int, limit_s: float) -> None:
    """Wait until a process listens at this address. Raises CompareError if the time limit is reached
    first."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            if asyncio.get_running_loop().time() > deadline:
                raise CompareError(f"{host}:{port}: the port is still closed after {limit_s:.0f} s") from None
            await asyncio.sleep(0.2)
        else:
            writer.close()
            return
