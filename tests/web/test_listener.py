"""Connections of the HTTP port: bounded, and closed when nothing comes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from dledger.broker.http.server import HttpServer
from dledger.web import listener as module
from dledger.web.listener import Listener
from tests.broker.harness import World


async def listening(idle_s: float, body: bytes = b"well") -> tuple[web.AppRunner, Listener, int]:
    app = web.Application()

    async def health(request: web.Request) -> web.Response:
        found.served(request)
        return web.Response(body=body)

    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    found = Listener(runner, idle_s=idle_s)
    await found.open("127.0.0.1", 0)
    return runner, found, found.addresses[0][1]


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int = 4) -> bytes:
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(size)
    return head.split()[1]


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def scenario() -> None:
        runner, found, port = await listening(0.2)
        async with asyncio.timeout(20):
            silent = await asyncio.open_connection("127.0.0.1", port)
            slow = await asyncio.open_connection("127.0.0.1", port)
            slow[1].write(b"GET /health HT")
            for reader, _ in (silent, slow):
                with contextlib.suppress(ConnectionResetError):  # what was not read yet
                    assert await reader.read() == b""
        assert found.count == 0
        found.close()
        await runner.cleanup()

    asyncio.run(scenario())


def test_one_too_many_closes_the_one_that_was_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        runner, found, port = await listening(60)
        async with asyncio.timeout(20):
            scraper = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(*scraper) == b"200"
            silent = await asyncio.open_connection("127.0.0.1", port)
            other = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(*scraper) == b"200"  # heard of later than the two others
            another = await asyncio.open_connection("127.0.0.1", port)
            assert await silent[0].read() == b""
            for connection in (scraper, other, another):
                assert await ask(*connection) == b"200"
            assert found.count == 3
        for _, writer in (scraper, other, another):
            writer.close()
        found.close()
        await runner.cleanup()

    asyncio.run(scenario())


async def ask_and_do_not_read(found: Listener, port: int) -> tuple[asyncio.StreamWriter, asyncio.Transport]:
    """A connection that takes no answer, and the server's side of it once it has one."""
    known = set(map(id, found.handlers))
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(20):
        while True:
            for one in found.handlers:
                if (
                    id(one) not in known
                    and one.transport is not None
                    and one.transport.get_write_buffer_size()
                ):
                    return writer, one.transport
            await asyncio.sleep(0.01)


def test_answers_that_nobody_takes_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection with the most of them is closed, and what it did not take is given back at once."""
    size = 16 << 20  # more than what the system takes for a connection
    monkeypatch.setattr(module, "MAX_UNSENT", 2 * size)

    async def scenario() -> None:
        runner, found, port = await listening(60, b"x" * size)
        deaf = [await ask_and_do_not_read(found, port) for _ in range(6)]
        assert sum(transport.get_write_buffer_size() for _, transport in deaf) <= 3 * size
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(reader, writer, size) == b"200"
        for one in (writer, *(writer for writer, _ in deaf)):
            one.transport.abort()
        found.close()
        await runner.cleanup()

    asyncio.run(scenario())


def test_what_an_idle_connection_did_not_take_is_given_back() -> None:
    async def scenario() -> None:
        runner, found, port = await listening(0.5, b"x" * (16 << 20))
        writer, transport = await ask_and_do_not_read(found, port)
        async with asyncio.timeout(20):
            while found.count or transport.get_write_buffer_size():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.transport.abort()
        found.close()
        await runner.cleanup()

    asyncio.run(scenario())


def test_no_connection_that_asks_for_anything_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervisors ask for /livez alone, for ever, on one connection."""
    served: list[str] = []
    monkeypatch.setattr(Listener, "served", lambda self, request: served.append(request.path))
    paths = ["/health", "/livez", "/readyz", "/metrics", "/nothing"]

    async def scenario() -> None:
        server = HttpServer(World(str(tmp_path)).broker)
        await server.port.start("127.0.0.1", 0)
        async with ClientSession() as session:
            for path in paths:
                async with session.get(f"http://127.0.0.1:{server.port.addresses[0][1]}{path}"):
                    pass
        await server.port.close()

    asyncio.run(scenario())
    assert served == paths
