"""What a server finds unread after its event loop stood still is not executed; clients connect anew."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from remoting_kit import read_frame, run, until

from dledger.remoting.commands import Request
from dledger.remoting.frames import encode_request
from dledger.remoting.server import Connection, RemotingServer, ServerLimits
from dledger.runtime.env import production_env
from dledger.runtime.standstill import BEAT_S, SETTLE_S, Standstill

LIMIT_S = 2.0
CODE = 1


@dataclass
class Uptime:
    """A clock that stands still until the test moves it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stage:
    """A server whose loop may stand still, and what its handler got."""

    server: RemotingServer
    uptime: Uptime
    standstill: Standstill
    handled: list[tuple[Connection, Request]] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for _, request in self.handled]

    def connect(self) -> socket.socket:
        """Connect and go on at once: the loop has no turn in between."""
        return socket.create_connection(self.server.addresses[0])

    async def answered(self, client: socket.socket, body: bytes) -> bool:
        """Send a request over an open connection and wait for its answer, or for the end."""
        reader, writer = await asyncio.open_connection(sock=client.dup())
        writer.write(frame(body))
        try:
            await read_frame(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        finally:
            writer.close()
        return True


def frame(body: bytes) -> bytes:
    return encode_request(CODE, 1, None, len(body)) + body


async def ended(client: socket.socket) -> bool:
    """Whether the server closes the connection without a byte."""
    client.setblocking(False)
    try:
        return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionResetError:
        return True


@asynccontextmanager
async def serving(limits: ServerLimits | None = None, answer: bool = True) -> AsyncIterator[Stage]:
    uptime = Uptime()
    standstill = Standstill(lambda: LIMIT_S, uptime)

    def handle(connection: Connection, request: Request) -> None:
        stage.handled.append((connection, request))
        if answer:
            connection.respond(request, 0)

    env = production_env("test")
    server = RemotingServer(
        env, handlers={CODE: handle}, limits=limits or ServerLimits(), name="test", standstill=standstill
    )
    stage = Stage(server, uptime, standstill)
    await server.start("127.0.0.1", 0)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(standstill.run()), tasks.create_task(server.run())]
        await asyncio.sleep(0)
        yield stage
        for task in running:
            task.cancel()
        await server.close()
    env.workers.close()


@pytest.mark.parametrize("paused_s", [LIMIT_S + 0.01, 3600.0])
def test_what_lay_unread_is_not_executed(paused_s: float) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = stage.connect()
            assert await stage.answered(client, b"before")
            client.send(frame(b"while it stood still"))
            stage.uptime.now += paused_s
            assert await ended(client)
            assert stage.bodies == [b"before"] and stage.standstill.count == 1
            stage.uptime.now += SETTLE_S
            assert await stage.answered(stage.connect(), b"after")
            assert stage.bodies == [b"before", b"after"]

    run(main())


def test_a_short_pause_closes_nothing() -> None:
    async def main() -> None:
        async with serving() as stage:
            client = stage.connect()
            for _ in range(3):
                stage.uptime.now += LIMIT_S - BEAT_S
                assert await stage.answered(client, b"x")
                await asyncio.sleep(2 * BEAT_S)  # a sign of life
            assert stage.standstill.count == 0 and len(stage.bodies) == 3

    run(main())


def test_a_client_that_connected_meanwhile_is_late_too() -> None:
    async def main() -> None:
        async with serving() as stage:
            client = stage.connect()
            client.send(frame(b"while it stood still"))
            stage.uptime.now += 10
            assert await ended(client)
            assert stage.bodies == []
            assert stage.server.stats.errors == {"connected while the event loop stood still": 1}

    run(main())


def test_what_waited_for_its_turn_is_not_executed() -> None:
    """A read that was taken before the pause, of which requests were left for the next turn of the loop."""

    async def main() -> None:
        async with serving() as stage:
            client = stage.connect()
            assert await stage.answered(client, b"before")
            (connection,) = stage.server.connections
            stage.server.in_time = lambda: False  # type: ignore[method-assign]
            client.send(frame(b"waits"))
            await until(lambda: stage.server.stats.late > 0)
            stage.uptime.now += 10
            connection.go_on()
            assert await ended(client)
            assert stage.bodies == [b"before"]

    run(main())


def test_what_a_handler_held_is_not_executed() -> None:
    async def main() -> None:
        async with serving(answer=False) as stage:
            client = stage.connect()
            client.send(frame(b"held"))
            await until(lambda: bool(stage.handled))
            connection, request = stage.handled.pop()
            connection.again(request)
            assert stage.bodies == [b"held"], "without a pause it is"
            stage.uptime.now += 10
            connection.again(request)
            assert await ended(client)
            assert stage.bodies == [b"held"]

    run(main())


def test_all_connections_are_closed_a_hundred_in_a_turn() -> None:
    async def main() -> None:
        async with serving() as stage:
            clients = [stage.connect() for _ in range(250)]
            for client in clients:
                assert await stage.answered(client, b"before")
            for client in clients:
                client.send(frame(b"while it stood still"))
            stage.uptime.now += 10
            assert all([await ended(client) for client in clients])
            assert len(stage.bodies) == 250 and not stage.server.connections

    run(main())


def test_a_timer_notices_where_nothing_is_read() -> None:
    async def main() -> None:
        async with serving() as stage:
            client = stage.connect()
            assert await stage.answered(client, b"before")
            stage.uptime.now += 10
            assert await ended(client)

    run(main())
