"""Connections between machines: refusals, kills, power cuts and partitions."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from dledger.chaos.machine import Settings, World
from dledger.remoting.sockets import discard
from dledger.runtime.env import Env

PORT = 9000


class Peer(asyncio.Protocol):
    """A protocol that keeps the received data."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.end: str | None = None
        self.at: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.end = type(error).__name__


class Scene:
    """A listening machine `server`, and `client` with one connection to it."""

    def __init__(self, seed: int = 1, settings: Settings | None = None) -> None:
        self.world = World(seed, settings=settings)
        self.accepted: list[Peer] = []
        self.client = Peer()
        self.world.spawn(self.world.node("server"), self.listen)
        self.world.run_for(0.1)
        self.world.spawn(self.world.node("client"), self.connect)
        self.world.run_until(lambda: self.accepted and hasattr(self.client, "transport"), 1)
        self.world.run_for(0.1)

    async def listen(self, env: Env) -> None:
        def accept() -> Peer:
            self.accepted.append(Peer())
            return self.accepted[-1]

        await asyncio.get_running_loop().create_server(accept, "0.0.0.0", PORT)
        await asyncio.Event().wait()

    async def connect(self, env: Env) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self.client, "server", PORT)
        await asyncio.Event().wait()

    def inside(self, node: str, action: Callable[[], object]) -> None:
        """Call an action in the next turn of a node."""
        process = self.world.nodes[node].process
        assert process is not None
        process.loop.call_soon(action)
        self.world.run_for(0.000_1)

    def send(self, data: bytes) -> None:
        self.inside("client", lambda: self.client.transport.write(data))


def test_data_arrives_whole_and_in_order_in_random_pieces() -> None:
    pieces: dict[int, None] = {}
    for seed in range(10):
        scene = Scene(seed)
        for number in range(40):
            scene.send(bytes([number]) * 50)
        scene.world.run_for(0.1)
        assert scene.accepted[0].data == b"".join(bytes([n]) * 50 for n in range(40))
        pieces[scene.accepted[0].pieces] = None
    assert len(pieces) > 3 and min(pieces) > 1


def test_data_takes_a_latency_and_names_are_addresses() -> None:
    scene = Scene(settings=Settings(latency_ns=(5_000_000, 5_000_001), split_chance=0.0))
    server, client = scene.world.nodes["server"].address, scene.world.nodes["client"].address
    assert scene.client.transport.get_extra_info("peername") == (server, PORT)
    assert scene.accepted[0].transport.get_extra_info("peername")[0] == client
    assert scene.accepted[0].transport.get_extra_info("sockname") == (server, PORT)
    sock = scene.client.transport.get_extra_info("socket")
    assert (sock.getpeername(), sock.getsockname()[0]) == ((server, PORT), client)
    sock.setsockopt(6, 1, 1)
    assert (sock.getsockopt(6, 1), sock.getsockopt(6, 2)) == (1, 0) and sock.fileno() == -1
    before = scene.world.time
    scene.send(b"x")
    scene.world.run_until(lambda: scene.accepted[0].data, 1)
    assert 0.005 <= scene.world.time - before < 0.0051


def attempt(world: World, host: str, timeout_s: float | None = None) -> tuple[str, float]:
    """Connect from a new machine. Returns the outcome and how long it took."""
    outcome: list[tuple[str, float]] = []

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(Peer, host, PORT)
            text = "connected"
        except OSError as error:
            text = errno.errorcode.get(error.errno or 0, type(error).__name__)
        outcome.append((text, loop.time() - before))

    process = world.spawn(world.node(f"probe{len(world.nodes)}"), main)
    world.run_until(lambda: process.exit, 300)
    return outcome[0]


def test_connecting() -> None:
    scene = Scene()
    world = scene.world
    assert attempt(world, "server")[0] == "connected"
    assert attempt(world, world.nodes["server"].address)[0] == "connected"
    assert attempt(world, "client")[0] == "ECONNREFUSED"
    assert attempt(world, "127.0.0.1")[0] == "ECONNREFUSED"
    assert attempt(world, "nowhere")[0] not in ("connected", "ECONNREFUSED")
    world.kill("server")
    outcome, seconds = attempt(world, "server")
    assert outcome == "ECONNREFUSED" and seconds < 0.001
    world.power_cut("server")
    outcome, seconds = attempt(world, "server")
    assert outcome == "ETIMEDOUT" and 127 <= seconds < 127.1
    assert attempt(world, "server", timeout_s=2)[0] == "TimeoutError"


def test_a_kill_closes_the_connections_at_once() -> None:
    scene = Scene()
    scene.send(b"sent before")
    scene.world.kill("client")
    scene.world.run_for(0.001)
    assert (scene.accepted[0].data, scene.accepted[0].end) == (b"sent before", "NoneType")
    assert scene.client.end is None  # the dead are told nothing


def test_a_kill_with_unread_data_resets() -> None:
    scene = Scene()
    scene.inside("server", lambda: scene.accepted[0].transport.pause_reading())
    scene.send(b"never read")
    scene.world.run_for(0.01)
    scene.world.kill("server")
    scene.world.run_for(0.001)
    assert scene.client.end == "ConnectionResetError"


def test_a_power_cut_is_silent_until_the_restarted_machine_is_written_to() -> None:
    scene = Scene()
    world = scene.world
    world.power_cut("server")
    scene.send(b"into the void")
    world.run_for(60)
    assert scene.client.end is None
    world.restart("server", scene.listen)
    world.run_for(0.3)
    assert scene.client.end == "ConnectionResetError"  # retransmitted, unknown there

    scene = Scene()
    scene.world.power_cut("server")
    scene.world.restart("server", scene.listen)
    scene.world.run_for(60)
    assert scene.client.end is None  # nothing was sent
    scene.send(b"hello?")
    scene.world.run_for(0.01)
    assert scene.client.end == "ConnectionResetError"


def test_a_partition_holds_data_and_lets_it_go() -> None:
    scene = Scene()
    world = scene.world
    world.partition("client", "server")
    scene.send(b"held ")
    scene.send(b"back")
    world.run_for(10)
    assert scene.accepted[0].data == b"" and scene.client.end is None
    world.heal("client", "server")
    world.run_for(0.3)
    assert scene.accepted[0].data == b"held back"


def test_a_linger_time_of_zero_resets_and_delivers_nothing_later() -> None:
    for cut in (False, True):
        scene = Scene()
        world = scene.world
        if cut:
            world.partition("client", "server")
        scene.send(b"data")
        scene.inside("client", lambda: discard(scene.client.transport))  # noqa: B023
        world.run_for(1)
        world.heal()
        world.run_for(1)
        peer = scene.accepted[0]
        assert (peer.data, peer.end) == ((b"", None) if cut else (b"data", "ConnectionResetError"))
        if cut:
            scene.inside("server", lambda: peer.transport.write(b"are you there?"))  # noqa: B023
            world.run_for(0.1)
            assert peer.end == "ConnectionResetError"


def test_a_directed_partition_blocks_one_way_only() -> None:
    scene = Scene()
    world = scene.world
    world.partition("server", "client", directed=True)
    scene.send(b"there")
    scene.inside("server", lambda: scene.accepted[0].transport.write(b"back"))
    world.run_for(1)
    assert (scene.accepted[0].data, scene.client.data) == (b"there", b"")
    assert attempt(world, "server")[0] == "connected"  # others are not concerned
    world.heal()
    world.run_for(0.3)
    assert scene.client.data == b"back"


def test_a_handshake_waits_for_the_end_of_a_partition() -> None:
    scene = Scene()
    world = scene.world
    world.node("late")
    world.isolate("late")
    peer = Peer()

    async def main(env: Env) -> None:
        await asyncio.get_running_loop().create_connection(lambda: peer, "server", PORT)

    process = world.spawn("late", main)
    world.run_for(5)
    assert process.exit is None
    world.heal("late")
    world.run_for(0.5)
    assert process.exit is not None


def test_a_slow_reader_stops_the_writer_across_a_partition_too() -> None:
    scene = Scene(settings=Settings(window=10_000))
    world = scene.world
    size = scene.client.transport.get_write_buffer_size
    scene.inside("server", lambda: scene.accepted[0].transport.pause_reading())
    scene.send(bytes(25_000))
    assert size() == 15_000
    scene.inside("server", lambda: scene.accepted[0].transport.resume_reading())
    world.run_for(0.1)
    assert size() == 0 and len(scene.accepted[0].data) == 25_000
    world.partition("server", "client", directed=True)  # no acknowledgement comes back
    scene.send(bytes(25_000))
    world.run_for(10)
    assert size() == 15_000 and len(scene.accepted[0].data) == 35_000
    world.heal()
    world.run_for(1)
    assert size() == 0 and len(scene.accepted[0].data) == 50_000


def test_a_power_cut_forgets_what_its_kernel_still_had_to_deliver() -> None:
    scene = Scene()
    world = scene.world
    world.partition("client", "server")
    scene.send(b"held")
    world.power_cut("client")
    world.heal()
    world.run_for(10)
    assert scene.accepted[0].data == b"" and scene.accepted[0].end is None


def test_a_crash_before_an_effect_cuts_the_rest_of_the_step() -> None:
    scene = Scene(settings=Settings(split_chance=0.0))
    world = scene.world

    def step() -> None:
        for number in range(5):
            scene.client.transport.write(b"%d" % number)

    world.crash_before("client", 3)
    scene.inside("client", step)
    world.run_for(0.01)
    assert (scene.accepted[0].data, scene.accepted[0].end) == (b"01", "NoneType")


def test_connections_that_nobody_accepted_are_reset_with_the_listener() -> None:
    scene = Scene()
    world, peer = scene.world, Peer()
    server = world.nodes["server"].process
    assert server is not None
    listener = world.network.bind(server, None, PORT + 1)
    listener.listen(100)
    listener.start(asyncio.Handle(lambda: None, (), server.loop))

    async def connect(env: Env) -> None:
        await asyncio.get_running_loop().create_connection(lambda: peer, "server", PORT + 1)
        await asyncio.Event().wait()

    world.spawn(world.node("other"), connect)
    world.run_for(1)
    assert peer.transport and peer.end is None
    listener.close()
    world.run_for(1)
    assert peer.end == "ConnectionResetError"


def test_ports_are_free_again_after_a_kill() -> None:
    scene = Scene()
    scene.world.kill("server")
    scene.world.restart("server", scene.listen)
    scene.world.run_for(0.1)
    assert attempt(scene.world, "server")[0] == "connected"


def test_only_simulated_machines_have_names() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="not known"):
            await loop.create_connection(Peer, "nowhere", 1)
        with pytest.raises(OSError, match="could not bind"):
            await loop.create_server(Peer, "other", 1)
        for host in ("other..example", ".other", "x" * 64):  # no OSError, as of the real resolver
            with pytest.raises(UnicodeError):
                await loop.getaddrinfo(host, 80)
            with pytest.raises(UnicodeError):
                await loop.create_connection(Peer, host, 80)
        with pytest.raises(OverflowError):
            await loop.create_connection(Peer, "other", 65536)
        with pytest.raises(OverflowError):
            await loop.create_server(Peer, "n0", 65536)
        assert (await loop.getaddrinfo("other", 80))[0][4] == (other.address, 80)

    world = World(1)
    other = world.node("other")
    process = world.spawn(world.node("n0"), main)
    world.run_until(lambda: process.exit, 1)
