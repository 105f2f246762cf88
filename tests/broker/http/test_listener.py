"""Connections of the HTTP port: bounded, and closed when nothing comes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from dledger.broker.http import listener as module
from dledger.broker.http.listener import Listener
from dledger.broker.http.server import HttpServer
from tests.broker.harness import World


async def listening(idle_s: float) -> tuple[web.AppRunner, Listener, int]:
    app = web.Application()

    async def health(request: web.Request) -> web.Response:
        found.served(request)
        return web.Response(text="well")

    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    found = Listener(runner, idle_s=idle_s)
    await found.open("127.0.0.1", 0)
    return runner, found, found.addresses[0][1]


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(4)
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


def test_no_connection_that_asks_for_anything_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervisors ask for /livez alone, for ever, on one connection."""
    served: list[str] = []
    monkeypatch.setattr(Listener, "served", lambda self, request: served.append(request.path))
    paths = ["/health", "/livez", "/readyz", "/metrics", "/nothing"]

    async def scenario() -> None:
        server = HttpServer(World(str(tmp_path)).broker)
        await server.start("127.0.0.1", 0)
        async with ClientSession() as session:
            for path in paths:
                async with session.get(f"http://127.0.0.1:{server.addresses[0][1]}{path}"):
                    pass
        await server.close()

    asyncio.run(scenario())
    assert served == paths
