"""One system after the other, each load in turn, and the table of it."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dledger.bench.compare.etcd import Etcd
from dledger.bench.compare.load import AFTER_A_BURST, CELLS, WINDOW_1024, Cell, Figures, measure
from dledger.bench.compare.nats import NatsStream
from dledger.bench.compare.ours import Ours
from dledger.bench.compare.rabbitmq import RabbitMq
from dledger.bench.compare.rocketmq import RocketMq
from dledger.bench.compare.system import FSYNC, PAGE_CACHE, CompareError, System, resident_mib

BASE_PORT = 21_000
WARMUP_S = 2.0
BURST_S = 8.0
"""How long AFTER_A_BURST loads before."""

SYSTEMS: Mapping[str, Callable[[Path | None], System]] = {
    "dledger": lambda jars: Ours("SYNC_FLUSH", BASE_PORT),
    "rabbitmq-quorum": lambda jars: RabbitMq("quorum", BASE_PORT),
    "etcd": lambda jars: Etcd(BASE_PORT),
    "dledger-async": lambda jars: Ours("ASYNC_FLUSH", BASE_PORT),
    "rabbitmq-stream": lambda jars: RabbitMq("stream", BASE_PORT),
    "nats": lambda jars: NatsStream(BASE_PORT),
    "rocketmq": lambda jars: _rocketmq(jars),
}
NEEDS: Mapping[str, str] = {
    "rabbitmq-quorum": "rabbitmq-server",
    "rabbitmq-stream": "rabbitmq-server",
    "etcd": "etcd",
    "nats": "nats-server",
}
"""Programs that have to be installed."""


def _rocketmq(jars: Path | None) -> System:
    if jars is None:
        raise CompareError("rocketmq: say with --rocketmq where its jars are")
    return RocketMq(jars, BASE_PORT)


def installed(jars: Path | None) -> list[str]:
    """Systems that can be started here."""
    found = [name for name in SYSTEMS if name not in NEEDS or shutil.which(NEEDS[name])]
    return [name for name in found if name != "rocketmq" or jars is not None]


def compare(
    names: Sequence[str],
    *,
    jars: Path | None,
    size: int,
    seconds: float,
    turns: int,
    directory: Path | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Figures of each cell of each system: the median of its turns, and all of them. CompareError."""
    found: dict[str, dict[str, list[Figures]]] = {name: {} for name in names}
    about: dict[str, dict[str, object]] = {}
    for turn in range(1, turns + 1):
        for name in names:
            system = SYSTEMS[name](jars)
            tell(f"turn {turn} of {turns}: {system.name}")
            with tempfile.TemporaryDirectory(prefix="compare-", dir=directory) as place:
                try:
                    system.start(Path(place))
                    figures, memory = asyncio.run(_cells(system, size, seconds, tell))
                    about[name] = {
                        "name": system.name,
                        "version": system.version,
                        "durability": system.durability,
                        "resident_mib": memory,
                    }
                finally:
                    system.stop()
            for cell, one in figures.items():
                found[name].setdefault(cell, []).append(one)
    return {
        "size": size,
        "seconds": seconds,
        "turns": turns,
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
    system: System, size: int, seconds: float, tell: Callable[[str], None]
) -> tuple[dict[str, Figures], float]:
    sender = await system.connect(size)
    found: dict[str, Figures] = {}
    gc.collect()
    gc.freeze()
    pids = system.pids()
    try:
        for cell in CELLS:
            if cell is AFTER_A_BURST:
                await measure(sender, Cell("", window=WINDOW_1024.window), pids, BURST_S, 0.0)
            warmup_s = 0.0 if cell is AFTER_A_BURST else WARMUP_S
            found[cell.name] = one = await measure(sender, cell, pids, seconds, warmup_s)
            tell(
                f"  {cell.name}: {one.rate:,.0f} a second, p50 {one.p50_ms} ms, p99 {one.p99_ms} ms,"
                f" {one.server_cpu_ms} ms of CPU each" + (f", {one.failed} FAILED" if one.failed else "")
            )
    finally:
        await sender.close()
    return found, round(resident_mib(pids))


def markdown(found: Mapping[str, Any]) -> str:
    """A table for each class of durability."""
    lines: list[str] = []
    for durability in (FSYNC, PAGE_CACHE):
        own = {name: one for name, one in found["systems"].items() if one["durability"] == durability}
        if not own:
            continue
        heads = [f"{one['name']} {one['version']}".strip() for one in own.values()]
        lines += [f"| {durability} | " + " | ".join(heads) + " |", "|---" * (len(own) + 1) + "|"]
        for cell in CELLS:
            values = [_value(cell, one["cells"][cell.name]) for one in own.values()]
            lines.append(f"| {cell.name} | " + " | ".join(values) + " |")
        memory = [f"{one['resident_mib']:,} MiB" for one in own.values()]
        lines += ["| memory of all nodes at the end | " + " | ".join(memory) + " |", ""]
    return "\n".join(lines)


def _value(cell: Cell, one: Mapping[str, float]) -> str:
    cpu = f"{one['server_cpu_ms']:.2f} ms CPU"
    if cell.rate or cell.window == 1:
        return f"p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.1f} ms; {cpu}"
    return f"{one['rate'] / 1000:.1f} k/s, p99 {one['p99_ms']:.0f} ms; {cpu}"
