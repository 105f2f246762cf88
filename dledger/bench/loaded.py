"""`dledger bench loaded`: how late the event loops of a group become during minutes of load.

Starts a group of real processes on loopback in a temporary directory, and another process that sends as
fast as acknowledgements allow. If the event loop of a leader is late by more than the shortest election
time-out, another leader is elected. The limit for the delay, `LAG_LIMIT_MS`, is a third of that time-out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dledger.chaos.lateness import LAG_LIMIT_MS
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port


class LoadFailed(Exception):
    """Raised if the load generator ended with errors. The text is the last part of its output."""


def loaded(nodes: int, seconds: float, *, size: int, window: int, batch: int) -> dict[str, object]:
    """Return the rate of the load, and for each node the longest delay of the event loop and the longest
    garbage collection, in ms.

    `within` says whether all delays are below LAG_LIMIT_MS and no new leader was elected during the load.
    Raises LoadFailed.
    """
    with tempfile.TemporaryDirectory(prefix="loaded-") as directory:
        spec = ClusterSpec(nodes=nodes, base_port=find_base_port(nodes), segment_size=64 * MIB)
        group = LocalCluster.create(Path(directory) / "group", spec)
        group.start()
        try:
            leader = group.wait_leader()
            term = group.state(leader)["term"]
            load = _produce(group.namesrv_addr, seconds, size=size, window=window, batch=batch)
            states = {node: group.state(node) for node in spec.node_ids}
        finally:
            group.stop()
    result: dict[str, object] = {
        "messages": load["messages"],
        "seconds": load["seconds"],
        "rate": load["rate"],
        "latency_ms": load["latency_ms"],
        "size": size,
        "window": window,
        "batch": batch,
        "terms": max(int(state.get("term", 0)) for state in states.values()) - int(term),
    }
    for node, state in states.items():
        result[f"leader ({node})" if node == leader else node] = {
            name: state.get(name)
            for name in (
                "loop_lag_ms_max",
                "loop_lag_ms_max_waited",
                "gc_ms_max",
                "gc_pauses",
                "gc_pauses_full",
            )
        }
    worst = max(float(state.get("loop_lag_ms_max", 1e9)) for state in states.values())
    return result | {
        "loop_lag_ms_max": worst,
        "limit_ms": LAG_LIMIT_MS,
        "within": worst < LAG_LIMIT_MS and result["terms"] == 0,
    }


def _produce(namesrv: str, seconds: float, *, size: int, window: int, batch: int) -> dict[str, Any]:
    """Run `bench produce` in another process; return its figures."""
    arguments = {"namesrv": namesrv, "seconds": seconds, "size": size, "window": window, "batch": batch}
    command = [sys.executable, "-m", "dledger.bench", "produce", "--json"]
    for name, value in arguments.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise LoadFailed(f"the load ended with {done.returncode}: {done.stdout.strip() or 'see above'}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
