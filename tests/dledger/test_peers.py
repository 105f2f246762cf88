"""The connections of a node: versions, what is refused, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dledger.config import NodeConfig
from dledger.election.membership import Hello, encode_hello
from dledger.links import PeerConnection
from dledger.messages import Heartbeat, Message, ReadIndexRequest, ReadIndexResponse, RepairRequest
from dledger.peers import Peers
from dledger.wire import ERROR, HELLO, PREFIX, Frame, decode_frame, decode_message, encode_frame
from runtime.env import production_env

HELLO_OF_N0 = Hello("g", "n0", "i0", "c", 1, 2, 16 << 20, True, {"n0": "i0", "n1": "i1"})
HELLO_OF_N1 = replace(HELLO_OF_N0, node="n1", incarnation="i1")


class Recorder:
    """Stands for the node: keeps what it is told."""

    def __init__(self) -> None:
        self.hello = HELLO_OF_N0
        self.hellos: list[Hello] = []
        self.up: list[str] = []
        self.messages: list[tuple[str, Message]] = []

    def my_hello(self) -> Hello:
        return self.hello

    def on_hello(self, hello: Hello) -> None:
        self.hellos.append(hello)

    def on_peer_up(self, peer: str) -> None:
        self.up.append(peer)

    def on_peer_down(self, peer: str) -> None: ...

    def on_refused(self, peer: str) -> None: ...

    def on_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        self.messages.append((peer, message))

    def on_client_frame(self, connection: PeerConnection, frame: Frame) -> None: ...


class Wire:
    """One raw connection to the node under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def hello(self, hello: Hello) -> None:
        self.send(encode_frame(HELLO, encode_hello(hello)))

    async def frame(self, timeout_s: float = 3.0) -> Frame:
        """The next frame; EOFError when the node closed instead."""
        async with asyncio.timeout(timeout_s):
            prefix = await self._reader.readexactly(PREFIX.size)
            rest = await self._reader.readexactly(PREFIX.unpack(prefix)[0] - 2)
        return decode_frame(memoryview(prefix + rest))

    async def message(self) -> Message:
        return decode_message(await self.frame())

    async def refusal(self) -> str:
        """Text of the error frame that ends the connection."""
        frame = await self.frame()
        assert frame.number == ERROR
        async with asyncio.timeout(3):
            assert await self._reader.read() == b""
        return str(frame.header)

    def close(self) -> None:
        self._writer.close()


class Bench:
    """The connections of n0, and n1 as the test plays it."""

    def __init__(self, ports: list[int], peers: Peers, events: Recorder) -> None:
        self._ports = ports
        self.peers = peers
        self.events = events
        self.failures: list[BaseException] = []
        self.dialled: asyncio.Queue[Wire] = asyncio.Queue()

    async def dial(self) -> Wire:
        return Wire(*await asyncio.open_connection("127.0.0.1", self._ports[0]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(3):
            while not condition():  # noqa: ASYNC110 - looks at what the node under test does
                await asyncio.sleep(0.002)


@asynccontextmanager
async def connections(ports: list[int], **settings: object) -> AsyncIterator[Bench]:
    config = NodeConfig(
        "g",
        "n0",
        {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)},
        "unused",
        bind_host="127.0.0.1",
        **settings,  # type: ignore[arg-type]
    )
    events = Recorder()
    failures: list[BaseException] = []
    peers = Peers(production_env("n0"), config, events, failures.append)
    bench = Bench(ports, peers, events)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bench.dialled.put_nowait(Wire(reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", ports[1])
    await peers.listen()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(peers.dial("n1"), name="dial")
        yield bench
        task.cancel()
        await peers.close()
        server.close()
    assert not failures


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(2)


@pytest.mark.parametrize(("theirs", "spoken"), [(1, 1), (2, 2), (9, 2)])
def test_both_sides_speak_the_highest_version_that_both_know(
    theirs: int, spoken: int, ports: list[int]
) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            assert bench.peers.version("n1") == 0
            dialled = await bench.dialled.get()
            dialled.hello(replace(HELLO_OF_N1, protocol_max=theirs))
            await bench.until(lambda: bench.events.up == ["n1"])
            assert bench.peers.version("n1") == spoken

    asyncio.run(scenario())


def test_what_a_peer_of_version_1_does_not_know_is_dropped_and_counted(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            dialled = await bench.dialled.get()
            accepted = await bench.dial()
            for wire in (dialled, accepted):
                wire.hello(replace(HELLO_OF_N1, protocol_max=1))
                assert (await wire.frame()).number == HELLO
            await bench.until(lambda: bench.events.up == ["n1"])
            bench.peers.send("n1", RepairRequest(1, 0, 1))
            bench.peers.send("n1", ReadIndexRequest(1, "n0", 1))
            bench.peers.send("n1", Heartbeat(1, "n0"))
            assert await dialled.message() == Heartbeat(1, "n0")
            assert bench.peers.too_new == 2
            bench.peers.send("n1", ReadIndexResponse(1, 0, 1, 1))  # type: ignore[arg-type]
            assert bench.peers.too_new == 3

    asyncio.run(scenario())


def test_a_peer_of_version_2_gets_them(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            dialled = await bench.dialled.get()
            dialled.hello(HELLO_OF_N1)
            assert (await dialled.frame()).number == HELLO
            await bench.until(lambda: bench.events.up == ["n1"])
            bench.peers.send("n1", RepairRequest(1, 0, 1))
            assert await dialled.message() == RepairRequest(1, 0, 1)
            assert bench.peers.too_new == 0

    asyncio.run(scenario())
