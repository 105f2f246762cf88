"""A toy of three nodes that ping each other, with everything a real node uses: TaskGroup, time-outs,
queues, executor jobs, fsync, random choices. Run as a script it prints the digest of its trace."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from chaos.sim import Trace, World
from runtime.env import Env
from runtime.workers import Lane

NAMES = ("n0", "n1", "n2")
PORT = 7000


class PingServer(asyncio.Protocol):
    """Answers each byte with itself; forgets to, now and then."""

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
    """Hands answers to a queue."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.answers.put_nowait(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


def record(env: Env, line: bytes) -> None:
    """One durable line."""
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
    """Two simulated seconds with a kill, a partition, and a power cut."""
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


if __name__ == "__main__":
    sys.stdout.write("\n".join(run(int(sys.argv[1]))))
