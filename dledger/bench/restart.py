"""`dledger bench restart`: how long a group with a large log takes to start.

Starts a group of real processes on loopback and fills the log of each node with messages. Then all nodes
are stopped, or killed while messages are sent, and started again. This is done once with the files in the
page cache, as after a restart of the processes only, and once with none of them in the page cache, as
after a restart of the machine. Each node must still have all entries that were committed before. The
stores are deleted at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dledger.formats.entry import HEADER_SIZE
from dledger.formats.record import FIXED_SIZE
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, LocalCluster, find_base_port

GB = 10**9
TOPIC = "much"
NAMES_SIZE = 80
"""Approximate number of bytes that topic and properties take in an entry."""
WINDOW = 64
LARGEST_BATCH = 32
BATCH_BYTES = MIB
LIMIT_S = 1800.0
"""Time limit of one start, in seconds."""
STOP_LIMIT_S = 120.0
LOADED_S = 5.0
"""How long messages are sent before a kill, in seconds. It is shorter than `bench produce` sends by
default."""
SPARE = 1.2
"""Disk space that a log needs, as a multiple of its size. It includes indexes, queues and the pool of
segments."""


def restart(
    gigabytes: float, size: int, nodes: int, directory: Path | None, tell: Callable[[str], None]
) -> dict[str, object]:
    """Measure, and return the figures by name.

    `gigabytes` is the size of each node's log (1 means 10^9 bytes), `size` is the number of bytes of a
    body, and `directory` is where stores are made. Raises ClusterError if the disk has too little space, a
    start takes longer than `LIMIT_S`, or entries were lost.
    """
    spec = ClusterSpec(nodes=nodes, base_port=find_base_port(nodes))
    with tempfile.TemporaryDirectory(prefix="restart-", dir=directory) as place:
        wanted = int(nodes * gigabytes * GB * SPARE) + spec.disk_wanted()
        free = shutil.disk_usage(place).free
        if free < wanted:
            raise ClusterError(f"{wanted // GB} GB of disk wanted at {place}, {free // GB} GB free")
        group = LocalCluster.create(Path(place) / "group", spec)
        group.start()
        try:
            result: dict[str, object] = {"nodes": nodes, "load of the machine before": _machine_load()}
            result |= _fill(group, int(gigabytes * GB), size, tell)
            for name, value in _starts(group, size):
                tell(f"{name}: {value} s")
                result[f"{name}, s"] = value
            result["load of the machine after"] = _machine_load()
        finally:
            for node in spec.node_ids:
                if group.pid(node) is not None:
                    group.kill(node)
            group.stop()
    return result


def _machine_load() -> float:
    return round(os.getloadavg()[0], 2)


def _fill(group: LocalCluster, wanted: int, size: int, tell: Callable[[str], None]) -> dict[str, object]:
    messages = max(1, wanted // (size + HEADER_SIZE + FIXED_SIZE + NAMES_SIZE))
    tell(f"{messages:,} messages of {size} bytes are sent")
    command = [*_produce(group, size), "--messages", str(messages)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"the log could not be filled: exit code {done.returncode} {done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout)
    group.wait_caught_up(LIMIT_S)
    return {
        "messages": found["messages"],
        "segments, MiB": group.spec.segment_size // MIB,
        "bytes of a body": size,
        "log of each node, GB": [round(log_bytes(group.store(node)) / GB, 2) for node in group.spec.node_ids],
        "seconds to fill it": found["seconds"],
    }


def _produce(group: LocalCluster, size: int) -> list[str]:
    command = [sys.executable, "-m", "dledger.bench", "produce", "--json", "--topic", TOPIC, "--warmup", "0"]
    batch = max(1, min(LARGEST_BATCH, BATCH_BYTES // size))
    for option, value in (
        ("namesrv", group.namesrv_addr),
        ("size", size),
        ("batch", batch),
        ("window", WINDOW),
    ):
        command += [f"--{option}", str(value)]
    return command


def log_bytes(store: Path) -> int:
    """Return the number of bytes of a node's segment files, whether the segments are full or not."""
    return sum(path.stat().st_size for path in store.glob("dledger-*/data/*"))


def _starts(group: LocalCluster, size: int) -> Iterator[tuple[str, float]]:
    """Stop and start the group in several ways. Yield the name and the seconds of each step as soon as it
    is measured."""
    kept = group.committed_index(group.wait_leader())
    for memory, cold in (("", False), (", nothing in the page cache", True)):
        yield f"clean stop of all{' again' if cold else ''}", _timed(lambda: group.stop(STOP_LIMIT_S))
        yield from _start(group, f"a clean stop{memory}", kept, cold=cold)
        kept = _kill_all(group, size)
        yield from _start(group, f"a kill of all under load{memory}", kept, cold=cold)
    killed = group.kill_leader()
    _, took_s = group.time_to_leader(killed)
    yield "next leader after a kill", round(took_s, 3)
    again = _timed(lambda: group.restart_node(killed.node, LIMIT_S))
    yield "start of the killed node, until it has caught up", again


def _kill_all(group: LocalCluster, size: int) -> int:
    """Kill all nodes while messages are sent. Return the committed index just before."""
    sender = subprocess.Popen(_produce(group, size), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(LOADED_S)
        kept = group.committed_index(group.wait_leader())
        for node in group.spec.node_ids:
            group.kill(node)
    finally:
        sender.kill()
        sender.wait()
    return kept


def _timed(what: Callable[[], object]) -> float:
    began = time.monotonic()
    what()
    return round(time.monotonic() - began, 2)


def _start(group: LocalCluster, after: str, kept: int, *, cold: bool) -> Iterator[tuple[str, float]]:
    if cold:
        forget_pages(group.directory / "store")
    began = time.monotonic()
    group.start(LIMIT_S)
    yield f"start after {after}, until a leader is in the routes", round(time.monotonic() - began, 2)
    group.wait_caught_up(LIMIT_S)
    yield f"start after {after}, until all have caught up", round(time.monotonic() - began, 2)
    for node in group.spec.node_ids:
        held = group.committed_index(node)
        if held < kept:
            raise ClusterError(f"after {after} {node} holds entries up to {held}, not {kept}")


def forget_pages(directory: Path) -> None:
    """Remove all files in this directory from the page cache, so that they are read from the disk again.
    Bytes that are not yet on the disk are written first."""
    for path in directory.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
