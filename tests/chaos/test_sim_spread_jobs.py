"""Spread jobs: the loop has turns, and crashes happen, between two effects of one worker job."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dledger.chaos.machine import OutsideWorldError, Settings, Trace, World
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

SPREAD = Settings(spread_chance=1.0)
NAMES = ("/a", "/b", "/c", "/d")


def make_all(env: Env) -> int:
    for name in NAMES:
        env.files.open(name, create=True)
    return len(NAMES)


class Observer:
    """Runs `make_all`, and counts how much of it the loop sees."""

    def __init__(self, seed: int, settings: Settings = SPREAD) -> None:
        self.trace = Trace()
        self.world = World(seed, settings=settings, trace=self.trace)
        self.seen: dict[int, None] = {}
        self.results: list[int] = []
        self.process = self.world.spawn(self.world.node("n0"), self.main)

    async def look(self, env: Env) -> None:
        while True:
            self.seen[len(env.files.listdir("/"))] = None
            await asyncio.sleep(0.000_002)

    async def main(self, env: Env) -> None:
        looking = asyncio.get_running_loop().create_task(self.look(env))
        self.results.append(await env.workers.run(Lane.DISK, make_all, env))
        looking.cancel()


def lines_of(seed: int) -> list[str]:
    observer = Observer(seed)
    observer.world.run_until(lambda: observer.process.exit, 1)
    return observer.trace.lines


def test_the_loop_has_turns_between_the_effects_of_a_spread_job_only() -> None:
    seen: dict[int, None] = {}
    for seed in range(10):
        observer = Observer(seed)
        observer.world.run_until(lambda observer=observer: observer.process.exit, 1)  # type: ignore[misc]
        assert observer.results == [4]
        seen.update(observer.seen)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    whole = Observer(1, Settings())
    whole.world.run_until(lambda: whole.process.exit, 1)
    assert sorted(whole.seen) in ([0], [0, 4])


def test_threads_do_not_disturb_the_order_of_a_seed_and_none_is_left() -> None:
    assert lines_of(3) == lines_of(3) != lines_of(4)
    assert not [thread for thread in threading.enumerate() if thread.name == "spread job"]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_cuts_a_spread_job_between_its_effects(power: bool) -> None:
    left: dict[int, None] = {}
    for seed in range(20):
        observer = Observer(seed)
        node = observer.world.nodes["n0"]
        observer.world.run_until(lambda node=node: len(node.disk.files()) >= 2, 1)  # type: ignore[misc]
        if power:
            observer.world.power_cut("n0", "all")
        else:
            observer.world.kill("n0")
        observer.world.run_for(1)
        left[len(node.disk.files())] = None
        assert not observer.results
        observer.world.dispose()
    assert 2 in left and len(left) > 1
    assert not [thread for thread in threading.enumerate() if thread.name == "spread job"]


def test_a_crash_at_an_effect_inside_a_spread_job() -> None:
    for effect in range(1, 5):
        observer = Observer(effect)
        observer.world.crash_before("n0", effect)
        observer.world.run_for(1)
        assert observer.world.nodes["n0"].disk.files() == list(NAMES[: effect - 1])
        assert observer.process.exit is not None and observer.process.exit.reason == "killed"


def test_a_stopped_process_does_not_go_on_with_a_spread_job() -> None:
    observer = Observer(2)
    disk = observer.world.nodes["n0"].disk
    observer.world.run_until(lambda: disk.files(), 1)
    observer.world.stop("n0")
    observer.world.run_for(0.01)
    count = len(disk.files())
    observer.world.run_for(1)
    assert len(disk.files()) == count < 4
    observer.world.cont("n0")
    observer.world.run_until(lambda: observer.results, 1)


def test_closing_the_workers_finishes_a_spread_job() -> None:
    found: dict[int, None] = {}
    for seed in range(10):
        results: list[int] = []

        async def main(env: Env, results: list[int] = results) -> None:
            job = env.workers.run(Lane.DISK, make_all, env)
            for _ in range(1000):
                if env.files.listdir("/"):
                    break
                await asyncio.sleep(0.000_001)
            results.append(len(env.files.listdir("/")))
            env.workers.close()
            assert asyncio.get_running_loop().is_running()
            results.append(len(env.files.listdir("/")))
            results.append(await job)

        world = World(seed, settings=SPREAD)
        process = world.spawn(world.node("n0"), main)
        world.run_until(lambda process=process: process.exit, 1)  # type: ignore[misc]
        assert results[1:] == [4, 4]
        found[results[0]] = None
    assert min(found) < 4


def test_the_guard_watches_spread_jobs_and_their_errors_arrive() -> None:
    def peek(env: Env) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        env.files.open("/a", create=True)
        time.monotonic()

    async def main(env: Env) -> None:
        with pytest.raises(OutsideWorldError, match="monotonic"):
            await env.workers.run(Lane.DISK, peek, env)

    world = World(1, settings=SPREAD)
    process = world.spawn(world.node("n0"), main)
    world.run_until(lambda: process.exit, 1)
    assert process.exit is not None and process.exit.reason == "returned"
