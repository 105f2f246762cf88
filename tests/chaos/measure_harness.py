"""`python -m tests.chaos.measure_harness`: what the surroundings of a trial cost a group without faults.

A process keeps messages of 1 KiB in flight, in turns: with brokers on loopback and nothing beside them, and
with everything that a trial adds. Each row is compared with the bare group of its own round, because the
speed of a machine changes from minute to minute. The machine should be quiet.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from dledger.chaos.line_process import LineProcess
from dledger.chaos.pressure import LOAD_TOPIC
from dledger.chaos.trials.arena import Arena
from dledger.chaos.trials.conductor import LOAD_QUEUES
from dledger.chaos.trials.scenario import FaultSpec, Scenario

KINDS: Mapping[str, tuple[str, ...]] = {
    "bare": (),
    "watched": (),
    "recorded": (),
    "namespaces": ("partition",),
    "proxy": ("flaky",),
    "disks": ("disk-full",),
    "power": ("power-loss",),
}
"""For each row a kind of fault that needs these surroundings. No fault is injected. All rows but `bare` have
the watcher of a trial, and all but `bare` and `watched` the flight recorder."""


class Row(msgspec.Struct):
    """The throughput of all rounds in the same surroundings."""

    surroundings: str
    messages_per_s: list[float]
    ratio: float
    """Median of the ratios to the bare group of the same round."""


async def turn(kind: str, window: int, seconds: float, directory: Path) -> float:
    """Messages that were acknowledged in one second, in these surroundings."""
    faults = tuple(FaultSpec(fault, "leader", (1.0, 1.0)) for fault in KINDS[kind])
    settings = {} if kind not in ("bare", "watched") else {"flightRecorderMb": "0"}
    scenario = Scenario("cost", "", "", faults=faults, settings=settings)
    arena = Arena(directory, scenario)
    watchers: list[asyncio.Task[None]] = []
    try:
        await asyncio.to_thread(arena.cluster.start)
        await asyncio.to_thread(arena.cluster.create_topic, LOAD_TOPIC, LOAD_QUEUES)
        arena.begin()
        if kind != "bare":
            watchers = [asyncio.create_task(arena.watch(node), name=f"watch-{node}") for node in arena.nodes]
        address = arena.cluster.namesrv_addr
        with LineProcess("dledger.chaos.pressure", address, LOAD_TOPIC, "--window", str(window)) as load:
            await asyncio.to_thread(load.ask, "on")
            await asyncio.sleep(2.0)
            before, began = (await asyncio.to_thread(load.ask, "count"))["acked"], arena.elapsed_s()
            await asyncio.sleep(seconds)
            after, ended = (await asyncio.to_thread(load.ask, "count"))["acked"], arena.elapsed_s()
            await asyncio.to_thread(load.ask, "off")
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.to_thread(arena.kill)
        arena.close()
    return float(after - before) / (ended - began)


@click.command()
@click.option("--window", default=64, show_default=True, help="Messages in flight.")
@click.option("--seconds", default=8.0, show_default=True, help="How long each turn is measured.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--only", multiple=True, type=click.Choice([kind for kind in KINDS if kind != "bare"]))
def main(window: int, seconds: float, rounds: int, only: tuple[str, ...]) -> None:
    """Measure what the surroundings of a trial cost."""
    found: dict[str, list[float]] = {"bare": [], **{kind: [] for kind in KINDS if not only or kind in only}}
    for number in range(rounds):
        for kind in found if number % 2 == 0 else reversed(found):
            with tempfile.TemporaryDirectory(prefix="dledger-harness-") as directory:
                found[kind].append(asyncio.run(turn(kind, window, seconds, Path(directory) / "group")))
            print(f"{kind:<12} {found[kind][-1]:10,.0f} messages/s", file=sys.stderr, flush=True)
    for kind, rates in found.items():
        ratios = [rate / bare for rate, bare in zip(rates, found["bare"], strict=True)]
        row = Row(kind, [round(rate, 1) for rate in rates], round(statistics.median(ratios), 3))
        print(msgspec.json.encode(row).decode())


if __name__ == "__main__":
    main()
