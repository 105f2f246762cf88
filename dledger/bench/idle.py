"""`dledger bench idle`: how much processor time each process of an idle group takes, in percent of a core.

Starts a group of real processes on loopback in a temporary directory, and waits until it has settled.
Reads the CPU time of every process at the beginning and the end of the measurement. A broker with nothing
to do should take at most LIMIT_PERCENT.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

SETTLE_S = 3.0
LIMIT_PERCENT = 2.0
"""Limit for one node of an idle group, in percent of a core."""


def idle(nodes: int, seconds: float) -> dict[str, float]:
    """Return the percentage of a core by node, the highest one as `worst`, and the limit as `limit`. The
    leader is named, for example, `leader (n0)`."""
    with tempfile.TemporaryDirectory(prefix="idle-") as directory:
        spec = ClusterSpec(nodes=nodes, base_port=find_base_port(nodes), segment_size=16 * MIB)
        group = LocalCluster.create(Path(directory) / "group", spec)
        group.start()
        try:
            time.sleep(SETTLE_S)
            leader = group.wait_leader()
            pids = {node: group.pid(node) for node in spec.node_ids}
            before = {node: _cpu_s(pid) for node, pid in pids.items()}
            began = time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            result = {
                f"leader ({node})" if node == leader else node: _percent(_cpu_s(pid) - before[node], took)
                for node, pid in pids.items()
            }
        finally:
            group.stop()
    return result | {"worst": max(result.values()), "limit": LIMIT_PERCENT}


def _percent(cpu_s: float, took_s: float) -> float:
    return round(100 * cpu_s / took_s, 2)


def _cpu_s(pid: int | None) -> float:
    """Return the user and system time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
