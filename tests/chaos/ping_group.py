"""A toy of three nodes that ping each other, with everything a real node uses: TaskGroup, time-outs,
queues, executor jobs, fsync, random choices. Run as a script it prints its trace."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial

from dledger.chaos.machine import Settings, Trace, World
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

NAMES = ("n0", "n1", "n2")
PORT = 7000


class PingServer(asyncio.Protocol):
    """Answers each byte with the same byte, except that it sometimes does not answer."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for byte in data:
            if self.env.random.random() < 0.9:
                self.transport.write(bytes([byte]))


class PingClient(asyncio.Protocol):
    """Puts answers into a queue."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.answers.put_nowait(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


def record(env: Env, line: bytes) -> None:
    """Append one durable line."""
    file = env.files.open("/pings", create=True)
    file.pwritev([line], file.size())
    file.fdatasync()
    file.close()


async def ping(env: Env, peer: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            transport, client = await loop.create_connection(PingClient, peer, PORT)
        except OSError as error:
            env.log.warning("cannot connect", peer=peer, error=error)
            await asyncio.sleep(0.05)
            continue
        while not client.lost.is_set():
            transport.write(b"p")
            try:
                async with asyncio.timeout(0.02):
                    await client.answers.get()
            except TimeoutError:
                env.log.info("no answer", peer=peer)
            else:
                await env.workers.run(Lane.FLUSH, record, env, peer.encode())
            await asyncio.sleep(0.005 * env.random.random())
        env.log.info("lost", peer=peer)


async def main(env: Env, name: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: PingServer(env), "0.0.0.0", PORT)
    await env.workers.run(Lane.DISK, env.files.sync_dir, "/")
    async with asyncio.TaskGroup() as group:
        for peer in NAMES:
            if peer != name:
                group.create_task(ping(env, peer), name=f"ping-{peer}")


def run(seed: int) -> list[str]:
    """Run two simulated seconds with a kill, a partition, and a power cut. Returns the trace."""
    trace = Trace()
    with World(seed, trace=trace) as world:
        for name in NAMES:
            world.spawn(world.node(name), partial(main, name=name))
        world.run_for(0.3)
        world.kill("n0")
        world.run_for(0.1)
        world.restart("n0", partial(main, name="n0"))
        world.partition("n1", "n2", directed=True)
        world.run_for(0.2)
        world.heal()
        world.power_cut("n2")
        world.run_for(0.2)
        world.restart("n2", partial(main, name="n2"))
        world.run_for(0.2)
        return list(trace.lines)


def run_with_faults(seed: int) -> list[str]:
    """Run the toy under one seeded fault of each family after another. Returns the trace."""
    trace = Trace()
    with World(seed, settings=Settings(spread_chance=0.3), trace=trace) as world:
        for name in NAMES:
            world.spawn(world.node(name), partial(main, name=name), may_raise=(ExceptionGroup,))
        chance = world.stream("faults")
        network, disk = world.network, world.nodes["n1"].disk
        faults: list[Callable[[], object]] = [
            lambda: world.stop("n0"),
            lambda: world.slow("n1", 50),
            lambda: world.cont("n0"),
            lambda: world.clock_drift("n2", 1.2),
            lambda: world.stall_before("n2", 5, 0.05),
            lambda: world.clock_jump("n2", 500),
            lambda: network.delay("n0", "n1", (0.001, 0.01)),
            lambda: network.loss("n1", "n2", 0.2),
            lambda: network.bandwidth("n0", "n2", 2_000),
            lambda: network.silence("n0", "n2", directed=True),
            lambda: network.forget("n0", "n1"),
            lambda: network.strand("n1", "n2"),
            lambda: network.reset("n2"),
            lambda: network.garbage("n0", PORT),
            lambda: disk.slow(30),
            lambda: disk.hang(),
            lambda: world.heal(),
            lambda: disk.mend(),
            lambda: disk.misdirect(),
            lambda: disk.flip("/pings", 0, 3),
            lambda: world.crash_before("n1", 7, power=True, mode="torn"),
            lambda: disk.fail("fsync"),
        ]
        for fault in faults:
            world.run_for(0.02 + 0.1 * chance.random())
            for name in NAMES:
                if world.nodes[name].process is None:
                    world.restart(name, partial(main, name=name), may_raise=(ExceptionGroup,))
            world.run_for(0.02)
            fault()
        world.run_for(0.2)
        disk.room(disk.used())
        world.run_for(0.5)
        world.trace = None
        return list(trace.lines)


if __name__ == "__main__":
    course = run_with_faults if "--faults" in sys.argv else run
    sys.stdout.write("\n".join(course(int(sys.argv[1]))))
