"""`python -m dledger.bench.memory COMMAND...`: run a program and report the memory of its processes. Runs
only on Linux.

Processes are grouped into kinds by what they run, such as `java`, `pyspark.daemon`, or `pyspark.daemon
worker` (the forks of the daemon). There are three figures for each kind, in MiB. The first is the most
that a single process held (its own high-water mark). The second is the resident memory of all processes of
the kind together. The third is their proportional memory, in which a page that several processes share
counts once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.25
"""Longest time between two measurements of the processes, in seconds. They are measured more often just
after the start, because the program may end soon."""
FIRST_INTERVAL_S = 0.01
PROC = Path("/proc")
MIB_KIB = 1024


@dataclass
class Peak:
    """The largest memory figures of one kind of processes, in KiB."""

    count: int = 0
    one: int = 0
    together: int = 0
    proportional: int = 0


@dataclass(frozen=True)
class Process:
    """One process when it was measured. Memory is in KiB."""

    pid: int
    parent: int
    command: tuple[str, ...]
    high_water: int
    resident: int
    proportional: int


def measure(command: list[str], *, quiet: bool = False) -> tuple[int, float, dict[str, Peak]]:
    """Run a program. Return its exit code, the elapsed seconds, and the peaks by kind of process; the kind
    `all` covers all processes. If `quiet` is set, the program's output is thrown away."""
    peaks: dict[str, Peak] = {}
    began = time.monotonic()
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL if quiet else None)
    while program.poll() is None:
        note(peaks, tree(program.pid))
        age = time.monotonic() - began
        with suppress(subprocess.TimeoutExpired):
            program.wait(min(INTERVAL_S, max(FIRST_INTERVAL_S, age / 8)))
    return program.returncode, time.monotonic() - began, peaks


def note(peaks: dict[str, Peak], processes: dict[int, Process]) -> None:
    """Update the peaks with these processes."""
    by_kind: dict[str, list[Process]] = {"all": list(processes.values())}
    for process in processes.values():
        by_kind.setdefault(kind(process, processes), []).append(process)
    for name, some in by_kind.items():
        peak = peaks.setdefault(name, Peak())
        peak.count = max(peak.count, len(some))
        peak.one = max([peak.one, *(process.high_water for process in some)])
        peak.together = max(peak.together, sum(process.resident for process in some))
        peak.proportional = max(peak.proportional, sum(process.proportional for process in some))


def kind(process: Process, processes: dict[int, Process]) -> str:
    """Return the kind of a process: the name of the module after `-m`, otherwise the name of the program.
    ` worker` is added if the parent runs the same command, because the process is then a fork."""
    words = process.command
    name = words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name if words else "?"
    parent = processes.get(process.parent)
    return f"{name} worker" if parent is not None and parent.command == words else name


def tree(root: int) -> dict[int, Process]:
    """Return a process and all its descendants by pid. Processes that end meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for path in PROC.iterdir():
        if path.name.isdigit() and (parent := parent_of(path)) is not None:
            children.setdefault(parent, []).append(int(path.name))
    found: dict[int, Process] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if (process := look(PROC / str(pid))) is not None:
            found[pid] = process
        waiting += children.get(pid, ())
    return found


def parent_of(path: Path) -> int | None:
    """Return the pid of the parent process; None if the process has ended."""
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def look(path: Path) -> Process | None:
    """Measure a process; returns None if it has ended."""
    try:
        status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
        rollup = (path / "smaps_rollup").read_text().splitlines()[1:]
        command = tuple((path / "cmdline").read_text().split("\0")[:-1])
    except (OSError, ValueError):
        return None
    pages = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in rollup)}
    high = int(status.get("VmHWM", "0 kB").split()[0])
    return Process(int(path.name), int(status["PPid"]), command, high, pages["Rss"], pages["Pss"])


def main(argv: list[str]) -> int:
    """Print the figures as a table on standard error, or as JSON with `--json` as the first argument."""
    as_json = argv[:1] == ["--json"]
    command = argv[1:] if as_json else argv
    if not command:
        print("usage: python -m dledger.bench.memory [--json] COMMAND...", file=sys.stderr)
        return 2
    code, seconds, peaks = measure(command)
    rows = {
        name: {
            "count": peak.count,
            "one": peak.one // MIB_KIB,
            "together": peak.together // MIB_KIB,
            "proportional": peak.proportional // MIB_KIB,
        }
        for name, peak in sorted(peaks.items())
    }
    if as_json:
        print(json.dumps({"exit_code": code, "seconds": round(seconds, 2), "mib": rows}), file=sys.stderr)
        return code
    print(f"{'process':44} {'count':>5} {'one':>6} {'all':>6} {'shared once':>12}  MiB", file=sys.stderr)
    for name, row in rows.items():
        print(
            f"{name[-44:]:44} {row['count']:5} {row['one']:6} {row['together']:6} {row['proportional']:12}",
            file=sys.stderr,
        )
    print(f"exit code {code} after {seconds:.1f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
