"""Faults of processes and clocks: stops, slowness and stalls; jumps and drift."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from dledger.chaos.machine import Settings, Trace, World
from dledger.chaos.machine.node import Process
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

PORT = 9000


class Ticker:
    """Notes the local and the world time of a timer that should run every 100 ms."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.local: list[float] = []
        self.at: list[float] = []

    async def main(self, env: Env) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += 0.1
            await asyncio.sleep(due - loop.time())
            self.local.append(loop.time())
            self.at.append(self.world.time)


def ticking(seed: int = 1) -> tuple[World, Ticker]:
    world = World(seed)
    ticker = Ticker(world)
    world.spawn(world.node("n0"), ticker.main)
    world.run_for(1.05)
    assert len(ticker.at) == 10
    return world, ticker


def process_of(world: World, name: str = "n0") -> Process:
    process = world.nodes[name].process
    assert process is not None
    return process


def test_a_stopped_process_runs_nothing_and_catches_up_at_once() -> None:
    world, ticker = ticking()
    world.stop("n0")
    world.stop("n0")
    world.run_for(10)
    assert len(ticker.at) == 10
    world.cont("n0")
    world.run_for(0.005)
    assert len(ticker.at) >= 100
    assert ticker.local[10] - ticker.local[9] == pytest.approx(10.05, abs=0.001)  # its clock went on
    world.run_for(1)
    assert 118 <= len(ticker.at) <= 122
    assert world.faults == {"stop": 1}
    world.cont("n0")  # nothing to continue


def test_all_timers_that_fell_due_while_stopped_run_in_one_turn() -> None:
    seen: list[int] = []

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_later(1 + number, seen.append, number)
        loop.call_later(60, seen.append, 60)
        await asyncio.Event().wait()

    world = World(1)
    world.spawn(world.node("n0"), main)
    world.run_for(0.5)
    world.stop("n0")
    world.run_for(30)
    world.cont("n0")
    events = world.events
    world.run_for(1)
    assert seen == [0, 1, 2, 3, 4]
    assert world.events - events <= 2
    world.run_for(30)
    assert seen[-1] == 60


def test_the_kernel_of_a_stopped_process_takes_data_and_connections_up_to_its_limits() -> None:
    world = World(1, settings=Settings(window=10_000))
    got: list[bytes] = []
    clients: list[asyncio.Transport] = []

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            got.append(data)

    async def serve(env: Env) -> None:
        await asyncio.get_running_loop().create_server(Server, "0.0.0.0", PORT)
        await asyncio.Event().wait()

    async def talk(env: Env) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "server", PORT)
        clients.append(transport)
        transport.write(bytes(15_000))
        await asyncio.Event().wait()

    world.spawn(world.node("server"), serve)
    world.run_for(0.1)
    world.stop("server")
    world.spawn(world.node("client"), talk)
    world.run_for(20)
    assert len(clients) == 1 and not got
    assert clients[0].get_write_buffer_size() == 5_000
    world.cont("server")
    world.run_for(0.1)
    assert sum(map(len, got)) == 15_000 and clients[0].get_write_buffer_size() == 0


def test_an_fsync_in_flight_completes_while_stopped_and_no_further_job_begins() -> None:
    world = World(1, settings=Settings(sync_ns=(10_000_000, 10_000_001)))
    done: list[str] = []

    def write(env: Env, name: str) -> None:
        file = env.files.open(name, create=True)
        file.pwritev([b"x"], 0)
        file.fdatasync()
        done.append(name)

    async def main(env: Env) -> None:
        await asyncio.gather(*(env.workers.run(Lane.FLUSH, write, env, name) for name in ("/a", "/b")))
        done.append("both")

    world.spawn(world.node("n0"), main)
    world.run_until(lambda: done, 1)
    disk = world.nodes["n0"].disk
    assert disk.inode("/a").durable == b""
    world.stop("n0")
    world.run_for(1)
    assert done == ["/a"] and disk.inode("/a").durable == b"x"
    world.cont("n0")
    world.run_for(0.1)
    assert done == ["/a", "/b", "both"]


def test_a_stopped_process_can_be_killed_and_started_again() -> None:
    world, ticker = ticking()
    world.stop("n0")
    world.kill("n0")
    world.cont("n0")
    world.restart("n0", ticker.main)
    world.run_for(1.05)
    assert len(ticker.at) == 20
    assert world.faults == {"stop": 1, "kill": 1}


def test_a_stall_inside_a_step_is_seen_by_that_step_only_from_its_effect_on() -> None:
    world = World(1)
    times: list[float] = []

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.1)
        for name in ("/a", "/b", "/c"):
            times.append(loop.time())
            env.files.open(name, create=True)
        times.append(loop.time())
        await asyncio.sleep(0.1)
        times.append(loop.time())

    process = world.spawn(world.node("n0"), main)
    world.stall_before("n0", 2, 3.0)
    world.run_until(lambda: process.exit, 10)
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert steps[:3] == [0, 3.0, 0] and steps[3] == pytest.approx(0.1, abs=0.001)
    assert 3.2 <= world.time < 3.21
    assert world.faults == {"stall": 1}


def test_a_slow_processor_makes_callbacks_slow_in_later_processes_too() -> None:
    spent: list[float] = []

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        for _ in range(1000):
            await asyncio.sleep(0)
        spent.append(loop.time() - before)

    world = World(1)
    for factor in (None, 100, None, 1):
        if factor is not None:
            world.slow(world.node("n0"), factor)
        world.restart(world.node("n0"), main)
        world.run_for(10)
    assert 50 < spent[1] / spent[0] < 200 and 50 < spent[2] / spent[0] < 200
    assert 0.5 < spent[3] / spent[0] < 2
    assert world.faults == {"slow": 1}


def test_a_wall_clock_jumps_and_nothing_else_does() -> None:
    seen: list[tuple[int, float]] = []

    async def main(env: Env) -> None:
        while True:
            seen.append((env.wall.now_ms(), asyncio.get_running_loop().time()))
            await asyncio.sleep(1)

    world = World(1)
    world.spawn(world.node("n0"), main)
    world.run_for(0.5)
    world.clock_jump("n0", 3_600_000)
    world.run_for(1)
    world.clock_jump("n0", -7_200_000)
    world.run_for(1)
    wall = [later[0] - earlier[0] for earlier, later in pairwise(seen)]
    assert [round(step / 1000) for step in wall] == [3601, -7199]
    assert all(0.999 < later[1] - earlier[1] < 1.001 for earlier, later in pairwise(seen))
    assert world.faults == {"clock_jump": 2}


@pytest.mark.parametrize("rate", [0.5, 0.9993, 1.25, 3.0])
def test_a_drifting_clock_is_continuous_and_carries_its_timers_along(rate: float) -> None:
    world, ticker = ticking()
    loop = process_of(world).loop
    before = loop.time()
    world.clock_drift("n0", rate)
    assert 0 <= loop.time() - before < 0.000_01
    world.run_for(4)
    assert loop.time() - before == pytest.approx(4 * rate, abs=0.001)
    assert len(ticker.at) == pytest.approx(10 + 40 * rate, abs=1.1)
    steps = [later - earlier for earlier, later in zip(ticker.local, ticker.local[1:], strict=False)]
    assert all(0.099 < step < 0.101 for step in steps)  # by its own clock nothing happened
    middle = loop.time()
    world.clock_drift("n0", 1)
    assert 0 <= loop.time() - middle < 0.000_01
    count = len(ticker.at)
    world.run_for(1)
    assert len(ticker.at) - count == pytest.approx(10, abs=1.1)
    assert world.faults == {"clock_drift": 1}


def test_a_clock_that_stands_still_lets_no_timer_run_until_it_goes_on() -> None:
    world, ticker = ticking()
    world.clock_drift("n0", 0)
    world.run_for(100)
    assert len(ticker.at) == 10
    world.clock_drift("n0", 1)
    world.run_for(1)
    assert len(ticker.at) == pytest.approx(20, abs=1.1)
    assert ticker.local[10] - ticker.local[9] == pytest.approx(0.1, abs=0.001)
    with pytest.raises(ValueError, match="backward"):
        world.clock_drift("n0", -1)


def test_a_rate_outlives_a_boot_and_the_shown_time_does_not() -> None:
    world, ticker = ticking()
    world.clock_drift("n0", 2.0)
    world.power_cut("n0")
    world.restart("n0", ticker.main)
    assert abs(process_of(world).loop.time() - ticker.local[-1]) > 5
    world.run_for(1.01)
    assert len(ticker.at) == pytest.approx(30, abs=1.1)


def test_the_clock_and_its_inverse_agree() -> None:
    world = World(5)
    clock = world.node("n0").clock
    rng = world.stream("test")
    now = 0
    for _ in range(200):
        now += rng.randrange(1, 10**10)
        shown = clock.local_ns(now)
        clock.drift(now, rng.choice([0.3, 0.999_999, 1.0, 1.000_1, 7.7]))
        assert clock.local_ns(now) == shown
        due = shown + rng.randrange(1, 10**10)
        at = clock.world_ns(due)
        assert clock.local_ns(at) >= due > clock.local_ns(at - 1)


def test_faults_are_counted_and_traced_in_one_line_each() -> None:
    trace = Trace()
    world = World(1, trace=trace)
    ticker = Ticker(world)
    for name in ("n0", "n1", "n2"):
        world.spawn(world.node(name), ticker.main)
    world.run_for(0.1)
    world.stop("n0")
    world.cont("n0")
    world.slow("n0", 5)
    world.clock_jump("n1", -5)
    world.clock_drift("n1", 1.5)
    world.partition("n0", "n1")
    world.partition("n0", "n2", directed=True)
    world.isolate("n2")
    world.heal()
    world.crash_before("n0", 1)
    world.crash_before("n1", 1, power=True, mode="none")
    process_of(world, "n0").effect()
    process_of(world, "n1").effect()
    world.power_cut("n2")
    lines = [line.split(maxsplit=3)[1:] for line in trace.lines if " fault " in line]
    assert lines == [
        ["n0", "fault", "stop"],
        ["n0", "fault", "slow 5"],
        ["n1", "fault", "clock_jump -5 ms"],
        ["n1", "fault", "clock_drift 1.5"],
        ["n0", "fault", "partition n0<>n1"],
        ["n0", "fault", "partition_one_way n0>n2"],
        ["n2", "fault", "isolate"],
        ["n0", "fault", "kill"],
        ["n1", "fault", "power_cut_none lost 0 writes, 0 names"],
        ["n2", "fault", "power_cut_prefix lost 0 writes, 0 names"],
    ]
    assert sum(world.faults.values()) == len(lines)
