"""Runs one system after another, each with all loads in turn, and makes a table of the figures."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dledger.bench.compare.etcd import Etcd
from dledger.bench.compare.load import LOADS, Cell, Figures, cells, measure
from dledger.bench.compare.nats import NatsStream
from dledger.bench.compare.ours import Ours
from dledger.bench.compare.rabbitmq import RabbitMq
from dledger.bench.compare.rocketmq import RocketMq
from dledger.bench.compare.system import FSYNC, PAGE_CACHE, CompareError, System, resident_mib

BASE_PORT = 21_000
WARMUP_S = 2.0
BURST_S = 8.0
"""How long the load in `Cell.after` runs before the measured load, in seconds."""


@dataclass(frozen=True)
class Setting:
    """Settings with which all systems are started and loaded."""

    nodes: int = 3
    size: int = 1024
    """Size of a message's body in bytes."""
    seconds: float = 8.0
    """How long each load is measured, in seconds."""
    loads: Sequence[str] = LOADS
    turns: int = 1
    jars: Path | None = None
    """Directory with the jars of Apache RocketMQ."""
    directory: Path | None = None
    """Directory in which stores are made, and deleted afterwards. None means the system's directory for
    temporary files."""


SYSTEMS: Mapping[str, Callable[[Setting], System]] = {
    "dledger": lambda setting: Ours("SYNC_FLUSH", BASE_PORT, setting.nodes),
    "rabbitmq-quorum": lambda setting: RabbitMq("quorum", BASE_PORT, setting.nodes),
    "etcd": lambda setting: Etcd(BASE_PORT, setting.nodes),
    "dledger-async": lambda setting: Ours("ASYNC_FLUSH", BASE_PORT, setting.nodes),
    "rabbitmq-stream": lambda setting: RabbitMq("stream", BASE_PORT, setting.nodes),
    "nats": lambda setting: NatsStream(BASE_PORT, setting.nodes),
    "rocketmq": lambda setting: _rocketmq(setting),
}
NEEDS: Mapping[str, str] = {
    "rabbitmq-quorum": "rabbitmq-server",
    "rabbitmq-stream": "rabbitmq-server",
    "etcd": "etcd",
    "nats": "nats-server",
}
"""Maps a system to the program that must be installed to run it."""


def _rocketmq(setting: Setting) -> System:
    if setting.jars is None:
        raise CompareError("rocketmq: say with --rocketmq where its jars are")
    return RocketMq(setting.jars, BASE_PORT, setting.nodes)


def installed(jars: Path | None) -> list[str]:
    """Return the systems that can be started on this machine."""
    found = [name for name in SYSTEMS if name not in NEEDS or shutil.which(NEEDS[name])]
    return [name for name in found if name != "rocketmq" or jars is not None]


def compare(names: Sequence[str], setting: Setting, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure each system under each load, in several turns. Return the median of the turns, and the
    figures of each turn. Raises CompareError if a system cannot be started or used."""
    wanted = [cell for load, cell in cells(setting.size).items() if load in setting.loads]
    if not wanted:
        raise CompareError(f"no load of {', '.join(setting.loads)} is for bodies of {setting.size} bytes")
    found: dict[str, dict[str, list[Figures]]] = {name: {} for name in names}
    about: dict[str, dict[str, object]] = {}
    load_before = round(os.getloadavg()[0], 2)
    tell(f"{setting.nodes} nodes, bodies of {setting.size} bytes, load of the machine {load_before}")
    for turn in range(1, setting.turns + 1):
        for name in names:
            system = SYSTEMS[name](setting)
            tell(f"turn {turn} of {setting.turns}: {system.name}")
            with tempfile.TemporaryDirectory(prefix="compare-", dir=setting.directory) as place:
                try:
                    system.start(Path(place))
                    figures, memory = asyncio.run(_cells(system, wanted, setting, tell))
                    about[name] = {
                        "name": system.name,
                        "version": system.version,
                        "durability": system.durability,
                        "batch": system.batch,
                        "resident_mib": memory,
                    }
                finally:
                    system.stop()
            for cell, one in figures.items():
                found[name].setdefault(cell, []).append(one)
    return {
        "nodes": setting.nodes,
        "size": setting.size,
        "seconds": setting.seconds,
        "turns": setting.turns,
        "load of the machine before": load_before,
        "systems": {
            name: about[name]
            | {"cells": {cell: _middle(one) for cell, one in found[name].items()}}
            | {"turns": {cell: [each.as_dict() for each in one] for cell, one in found[name].items()}}
            for name in names
        },
    }


def _middle(figures: Sequence[Figures]) -> dict[str, float]:
    rows = [one.as_dict() for one in figures]
    return {name: median(row[name] for row in rows) for name in rows[0]}


async def _cells(
    system: System, wanted: Sequence[Cell], setting: Setting, tell: Callable[[str], None]
) -> tuple[dict[str, Figures], float]:
    sender = await system.connect(setting.size)
    found: dict[str, Figures] = {}
    gc.collect()
    gc.freeze()
    pids = system.pids()
    try:
        for cell in wanted:
            if cell.after is not None:
                await measure(sender, cell.after, pids, BURST_S, 0.0)
            warmup_s = WARMUP_S if cell.after is None else 0.0
            found[cell.name] = one = await measure(sender, cell, pids, setting.seconds, warmup_s)
            tell(
                f"  {cell.name}: {one.rate:,.0f} a second, p50 {one.p50_ms} ms, p99 {one.p99_ms} ms,"
                f" {one.server_cpu_ms} ms of CPU each" + (f", {one.failed} FAILED" if one.failed else "")
            )
    finally:
        await sender.close()
    return found, round(resident_mib(pids))


def markdown(found: Mapping[str, Any]) -> str:
    """Return a table for each class of durability."""
    shown = [cell for cell in cells(found["size"]).values() if _measured(found, cell)]
    lines: list[str] = []
    for durability in (FSYNC, PAGE_CACHE):
        own = {name: one for name, one in found["systems"].items() if one["durability"] == durability}
        if not own:
            continue
        heads = [f"{one['name']} {one['version']}".strip() for one in own.values()]
        lines += [f"| {durability} | " + " | ".join(heads) + " |", "|---" * (len(own) + 1) + "|"]
        for cell in shown:
            values = [_value(cell, one["cells"][cell.name]) for one in own.values()]
            lines.append(f"| {cell.name} | " + " | ".join(values) + " |")
            if cell.batch > 1:
                lines.append("| what a batch is | " + " | ".join(one["batch"] for one in own.values()) + " |")
        memory = [f"{one['resident_mib']:,} MiB" for one in own.values()]
        lines += ["| memory of all nodes at the end | " + " | ".join(memory) + " |", ""]
    return "\n".join(lines)


def _measured(found: Mapping[str, Any], cell: Cell) -> bool:
    return any(cell.name in one["cells"] for one in found["systems"].values())


def _value(cell: Cell, one: Mapping[str, float]) -> str:
    failed = f"; {one['failed']:.0f} FAILED" if one["failed"] else ""
    cpu_ms = one["server_cpu_ms"]
    cpu = (
        f"{cpu_ms:.2f} ms CPU"
        if cpu_ms >= 1 or cell.rate or cell.window == 1
        else f"{1000 * cpu_ms:.0f} us CPU"
    )
    if cell.rate or cell.window == 1:
        return f"p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.1f} ms; {cpu}{failed}"
    rate = f"{one['rate'] / 1000:.1f} k/s" if one["rate"] >= 1000 else f"{one['rate']:.0f}/s"
    return f"{rate}, p99 {one['p99_ms']:.0f} ms; {cpu}{failed}"
