"""A member that is looked for at two addresses: the recorded one, and that of dLegerPeers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from test_peers import HELLO_OF_N1, LIMIT_S, Recorder, Wire

from dledger.config import NodeConfig
from dledger.election.identity import Hello
from dledger.peers.peers import Peers
from dledger.runtime.env import production_env


class Events(Recorder):
    """n1 is a voter with the store i1, and dLegerPeers names another address than the recorded one."""

    def __init__(self, elsewhere: str) -> None:
        super().__init__()
        self.refused = 0
        self._elsewhere = elsewhere

    def elsewhere(self, peer: str) -> tuple[str, str] | None:
        return self._elsewhere, "i1"

    def on_refused(self, peer: str) -> None:
        self.refused += 1


class Machine:
    """Listens at one address for n1, and says hello as the test wants."""

    def __init__(self, port: int, hello: Hello) -> None:
        self._port = port
        self._hello = hello
        self._server: asyncio.Server | None = None
        self._wires: list[Wire] = []

    async def start(self) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            wire = Wire(reader, writer)
            wire.hello(self._hello)
            self._wires.append(wire)

        self._server = await asyncio.start_server(accept, "127.0.0.1", self._port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for wire in self._wires:
            wire.close()


@asynccontextmanager
async def looking(ports: list[int]) -> AsyncIterator[tuple[Peers, Events]]:
    """n0 looks for n1, which is recorded at the second of these ports."""
    own, recorded, elsewhere = (f"127.0.0.1:{port}" for port in ports)
    config = NodeConfig(
        "g",
        "n0",
        {"n0": own, "n1": elsewhere},
        "unused",
        bind_host="127.0.0.1",
        redial_max_s=0.1,
        hello_timeout_s=LIMIT_S,
        dial_timeout_s=LIMIT_S,
    )
    events = Events(elsewhere)
    failures: list[BaseException] = []
    peers = Peers(production_env("n0"), config, failures.append)
    await peers.listen(events)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(peers.dial("n1", recorded), name="dial")
        yield peers, events
        task.cancel()
        await peers.close()
    assert not failures


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - looks at what the peers under test do
            await asyncio.sleep(0.002)


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(3)


def test_a_voter_that_nobody_finds_at_its_recorded_address_is_found_at_the_other(ports: list[int]) -> None:
    async def scenario() -> None:
        moved = Machine(ports[2], HELLO_OF_N1)
        async with looking(ports) as (peers, events):
            await asyncio.sleep(0.3)
            assert events.refused == 0, "where it never was a refusal says nothing of its process"
            await moved.start()
            await until(lambda: events.up == ["n1"])
            assert peers.strayed() == {"n1": f"127.0.0.1:{ports[2]}"} and events.refused == 0
            moved.stop()
            await until(lambda: events.refused > 0)
            assert peers.strayed() == {}

    asyncio.run(scenario())


def test_the_recorded_address_is_tried_first_and_its_refusal_counts_once_it_was_reached(
    ports: list[int],
) -> None:
    async def scenario() -> None:
        there, old = Machine(ports[1], HELLO_OF_N1), Machine(ports[2], HELLO_OF_N1)
        await there.start()
        await old.start()
        async with looking(ports) as (peers, events):
            await until(lambda: events.up == ["n1"])
            assert peers.strayed() == {} and events.refused == 0
            old.stop()
            there.stop()
            await until(lambda: events.refused > 0)

    asyncio.run(scenario())


def test_at_the_other_address_only_the_recorded_store_is_let_in(ports: list[int]) -> None:
    """A store that was replaced may still run where dLegerPeers says."""

    async def scenario() -> None:
        old = Machine(ports[2], replace(HELLO_OF_N1, incarnation="i0 of old"))
        await old.start()
        async with looking(ports) as (peers, events):
            await until(lambda: peers.refused().get("other node", 0) > 0)
            assert events.up == [] and not peers.connected("n1")
            there = Machine(ports[1], replace(HELLO_OF_N1, incarnation="i2"))
            await there.start()  # at the recorded one an empty disk may have taken its place
            await until(lambda: events.up == ["n1"])
            there.stop()
            old.stop()

    asyncio.run(scenario())
