"""One script on the real loop and in the simulator: the same callbacks come in the same order on each
side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dledger.chaos.machine import Settings, World
from dledger.runtime.env import Env

Event = tuple[object, ...]

BIG = 16 << 20  # more than the kernels of either world buffer


class Side(asyncio.Protocol):
    """Records its callbacks. Consecutive data is one event, as segmentation is random."""

    told = 0
    """How many callbacks all sides got together."""

    def __init__(self, *, keep_open: bool = False, on_data: Callable[[Side], None] | None = None) -> None:
        self.events: list[Event] = []
        self.keep_open = keep_open
        self.on_data = on_data
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.add("made", transport.is_reading(), transport.is_closing(), transport.can_write_eof())

    def add(self, *event: object) -> None:
        Side.told += 1
        self.events.append(event)

    def data_received(self, data: bytes) -> None:
        Side.told += 1
        self.received += len(data)
        if self.events[-1][0] == "data":
            self.events[-1] = ("data", self.received)
        else:
            self.add("data", self.received)
        if self.on_data is not None:
            self.on_data(self)

    def eof_received(self) -> bool:
        self.add("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.add("pause")

    def resume_writing(self) -> None:
        self.add(
            "resume", self.transport.get_write_buffer_size() <= self.transport.get_write_buffer_limits()[0]
        )

    def connection_lost(self, error: Exception | None) -> None:
        self.add("lost", type(error).__name__, self.transport.is_closing())


class BufferedSide(Side, asyncio.BufferedProtocol):
    """Records its callbacks, and receives through a buffer of 10 bytes."""

    def get_buffer(self, sizehint: int) -> memoryview:
        self.buffer = bytearray(10)
        return memoryview(self.buffer)

    def buffer_updated(self, size: int) -> None:
        assert 0 < size <= 10
        self.data_received(bytes(self.buffer[:size]))


async def settle() -> None:
    """Wait until nothing more comes. It checks the sockets many times, as a pause of the process uses up one
    sleep."""
    quiet = 0
    while quiet < 3:
        before = Side.told
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.005)
        quiet = quiet + 1 if Side.told == before else 0


async def all_received(side: Side) -> None:
    while side.received < BIG:
        await settle()
    await settle()


class Pair:
    """A server and a client connected to it."""

    def __init__(self, server: asyncio.Server, accepted: Side, client: Side) -> None:
        self.server, self.accepted, self.client = server, accepted, client


async def connect(accepted: Side, client: Side) -> Pair:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: accepted, "127.0.0.1", 0)
    await loop.create_connection(lambda: client, "127.0.0.1", server.sockets[0].getsockname()[1])
    client.add("connected")
    await settle()
    return Pair(server, accepted, client)


async def echo() -> Pair:
    pair = await connect(Side(on_data=lambda side: side.transport.write(b"x" * 5)), Side())
    pair.client.transport.write(b"hello")
    await settle()
    pair.client.transport.writelines([b"more", bytearray(b"than"), memoryview(b"one")])
    await settle()
    pair.client.transport.close()
    pair.client.transport.write(b"ignored")
    pair.client.add("closing", pair.client.transport.is_closing(), pair.client.transport.is_reading())
    await settle()
    return pair


async def half_close() -> Pair:
    pair = await connect(Side(keep_open=True), Side())
    pair.client.transport.write(b"question")
    pair.client.transport.write_eof()
    try:
        pair.client.transport.write(b"x")
    except RuntimeError as error:
        pair.client.add(str(error))
    await settle()
    pair.accepted.transport.write(b"answer")
    await settle()
    pair.accepted.transport.close()
    await settle()
    return pair


async def abort_without_unread_data() -> Pair:
    pair = await connect(Side(), Side())
    pair.client.transport.abort()
    await settle()
    return pair


async def abort_with_unread_data() -> Pair:
    pair = await connect(Side(), Side())
    pair.client.transport.pause_reading()
    pair.accepted.transport.write(b"never read")
    await settle()
    pair.client.transport.abort()
    await settle()
    return pair


async def data_before_a_reset_is_still_read() -> Pair:
    pair = await connect(Side(), Side())
    pair.accepted.transport.pause_reading()
    pair.client.transport.pause_reading()
    pair.client.transport.write(b"last words")
    pair.accepted.transport.write(b"never read")
    await settle()
    pair.client.transport.abort()
    await settle()
    pair.accepted.transport.resume_reading()
    await settle()
    return pair


async def flow_control() -> Pair:
    pair = await connect(Side(), Side())
    pair.accepted.transport.pause_reading()
    pair.client.transport.set_write_buffer_limits(high=1000)
    pair.client.transport.write(bytes(BIG))
    pair.client.add("written", pair.client.transport.get_write_buffer_size() > 1000)
    await settle()
    pair.accepted.transport.resume_reading()
    await all_received(pair.accepted)
    pair.client.transport.close()
    await settle()
    return pair


async def close_flushes_first() -> Pair:
    pair = await connect(Side(), Side())
    pair.client.transport.write(bytes(BIG))
    pair.client.transport.close()
    pair.client.add("closing", pair.client.transport.is_closing())
    await all_received(pair.accepted)
    return pair


async def abort_drops_the_buffer() -> Pair:
    pair = await connect(Side(), Side())
    pair.accepted.transport.pause_reading()
    pair.client.transport.write(bytes(BIG))
    pair.client.transport.abort()
    pair.client.add("buffered", pair.client.transport.get_write_buffer_size())
    await settle()
    return pair


async def buffered_protocol() -> Pair:
    pair = await connect(BufferedSide(), BufferedSide())
    pair.client.transport.write(b"0123456789" * 5)
    pair.accepted.transport.write(b"abc")
    await settle()
    pair.client.transport.close()
    await settle()
    return pair


async def pausing_holds_data_and_eof() -> Pair:
    pair = await connect(Side(on_data=lambda side: side.transport.pause_reading()), Side())
    pair.client.transport.write(b"one")
    await settle()
    pair.client.transport.write(b"two")
    pair.client.transport.close()
    await settle()
    pair.accepted.add("resume", pair.accepted.transport.is_reading())
    pair.accepted.transport.resume_reading()
    await settle()
    pair.accepted.add("resume", pair.accepted.transport.is_reading())
    pair.accepted.transport.resume_reading()
    await settle()
    return pair


async def writing_to_a_closed_peer() -> Pair:
    pair = await connect(Side(), Side(keep_open=True))
    pair.accepted.transport.close()
    await settle()
    for _ in range(3):
        pair.client.transport.write(b"anybody there?")
        pair.client.add("wrote", pair.client.transport.is_closing())
        await settle()
    return pair


async def closing_inside_a_callback() -> Pair:
    def close(side: Side) -> None:
        side.transport.close()
        side.add("closed")

    pair = await connect(Side(on_data=close), Side())
    pair.client.transport.write(b"go")
    await settle()
    return pair


async def a_closed_server_keeps_its_connections() -> Pair:
    pair = await connect(Side(), Side())
    address = pair.server.sockets[0].getsockname()
    pair.server.close()
    try:
        await asyncio.get_running_loop().create_connection(Side, *address)
    except OSError as error:
        pair.client.add(type(error).__name__, error.errno)
    pair.client.transport.write(b"still here")
    await settle()
    pair.client.add("sockets", len(pair.server.sockets), pair.server.is_serving())
    return pair


async def a_port_in_use() -> Pair:
    pair = await connect(Side(), Side())
    try:
        await asyncio.get_running_loop().create_server(Side, *pair.server.sockets[0].getsockname())
    except OSError as error:
        pair.client.add(type(error).__name__, error.errno)
    return pair


async def switching_the_protocol() -> Pair:
    pair = await connect(Side(), Side())
    second = BufferedSide()
    second.transport = pair.accepted.transport
    second.events = pair.accepted.events
    pair.client.transport.write(b"first")
    await settle()
    pair.accepted.transport.set_protocol(second)
    pair.accepted.add("switched", pair.accepted.transport.get_protocol() is second)
    pair.client.transport.write(b"second")
    await settle()
    pair.client.transport.close()
    await settle()
    return pair


SCRIPTS: list[Callable[[], Awaitable[Pair]]] = [
    echo,
    half_close,
    abort_without_unread_data,
    abort_with_unread_data,
    data_before_a_reset_is_still_read,
    flow_control,
    close_flushes_first,
    abort_drops_the_buffer,
    buffered_protocol,
    pausing_holds_data_and_eof,
    writing_to_a_closed_peer,
    closing_inside_a_callback,
    a_closed_server_keeps_its_connections,
    a_port_in_use,
    switching_the_protocol,
]


async def events_of(script: Callable[[], Awaitable[Pair]]) -> tuple[list[Event], list[Event]]:
    pair = await script()
    seen = (list(pair.accepted.events), list(pair.client.events))
    for side in (pair.accepted, pair.client):
        if not side.transport.is_closing():  # the stock transport fails in abort() after its end
            side.transport.abort()
    pair.server.close()
    await settle()
    return seen


def simulated(script: Callable[[], Awaitable[Pair]], seed: int) -> tuple[list[Event], list[Event]]:
    results: list[tuple[list[Event], list[Event]]] = []

    async def main(env: Env) -> None:
        results.append(await events_of(script))

    with World(seed, settings=Settings(split_chance=0.0)) as world:  # these scripts see the cuts
        process = world.spawn(world.node("n0"), main)
        world.run_until(lambda: process.exit, 10)
    return results[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_simulator_calls_back_as_the_real_loop_does(script: Callable[[], Awaitable[Pair]]) -> None:
    real_accepted, real_client = asyncio.run(events_of(script))
    assert len(real_client) >= 2
    for seed in range(3):
        accepted, client = simulated(script, seed)
        assert accepted == real_accepted
        assert client == real_client
