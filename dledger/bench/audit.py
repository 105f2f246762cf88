"""`dledger bench audit --directory DIR`: how fast large stores are audited, and how much memory it takes.
Runs only on Linux.

Three replicas of a store are made in DIR, unless they are there already; the last one has an IndexFile.
First the scan of one replica in this process is measured, without and with an IndexFile. Then the audit of
all three replicas is measured as a user runs it, with one process and with one process per core, and so is
the memory of these processes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dledger.audit.findings import Finding, SegmentRow
from dledger.audit.scan import scan_segment
from dledger.audit.store_directory import open_stores, segment_tasks
from dledger.bench.big_store import MIB, add_key_file, made_once, write_big_group
from dledger.bench.memory import MIB_KIB, measure
from dledger.runtime.env import production_env
from dledger.runtime.processes import cores

ROUNDS = 5
"""How many times each scan is measured; the best time counts."""


def audit(directory: str, megabytes: int) -> dict[str, float]:
    """Measure, and return the figures by name. `megabytes` is the size of the entries of all replicas
    together, if the replicas must be made."""
    stores = large_stores(Path(directory), megabytes)
    result: dict[str, float] = {}
    for name, store in (("scan", stores[0]), ("scan with its IndexFile", stores[-1])):
        cpu, wall, size, entries = min(_scan(store) for _ in range(ROUNDS))
        result["replica, MB"] = round(size / 1e6)
        result[f"{name}, MB/s per core"] = round(size / cpu / 1e6)
        result[f"{name}, ns of CPU an entry"] = round(cpu / entries * 1e9)
        result[f"{name}, MB/s"] = round(size / wall / 1e6)
    for jobs in sorted({1, cores()}):
        command = [sys.executable, "-m", "dledger.audit", "compare", "--jobs", str(jobs), *map(str, stores)]
        seconds, largest, together = min(_run(command) for _ in range(3))
        result[f"audit with --jobs {jobs}, s"] = round(seconds, 2)
        result[f"audit with --jobs {jobs}, MB/s"] = round(len(stores) * result["replica, MB"] / seconds)
        result[f"audit with --jobs {jobs}, MiB of its largest process"] = largest
        result[f"audit with --jobs {jobs}, MiB of all"] = together
    return result


def large_stores(directory: Path, megabytes: int) -> list[Path]:
    """Return three replicas in a directory. They are made if they are missing."""
    stores = [directory / f"n{number}" for number in range(3)]

    def make() -> None:
        size = megabytes * 1_000_000
        _, log = write_big_group(directory, size, segment_size=max(megabytes // 40, 1) * MIB)
        add_key_file(stores[-1], log)

    made_once(directory, make)
    return stores


def _scan(store: Path) -> tuple[float, float, int, int]:
    """Scan a store. Return the CPU seconds, the elapsed seconds, and the number of bytes and of entries."""
    env = production_env("bench")
    (replica,) = open_stores(env.files, [str(store)])
    begun, cpu_begun = time.perf_counter(), time.process_time()
    size = entries = 0
    for task in segment_tasks(replica):
        for row in scan_segment(env.files, task):
            if isinstance(row, Finding):
                raise SystemExit(f"bench: {store} is not clean: {row}")
            if isinstance(row, SegmentRow):
                size, entries = size + row.bytes, entries + row.entries
    cpu, wall = time.process_time() - cpu_begun, time.perf_counter() - begun
    env.workers.close()
    return cpu, wall, size, entries


def _run(command: list[str]) -> tuple[float, float, float]:
    """Run a command. Return the elapsed seconds, the memory in MiB of the process that took most, and the
    memory in MiB of all processes together, in which a shared page counts once."""
    code, seconds, peaks = measure(command, quiet=True)
    if code:
        raise SystemExit(f"bench: exit code {code} of {' '.join(command)}")
    return seconds, peaks["all"].one // MIB_KIB, peaks["all"].proportional // MIB_KIB
