"""What the tests of remoting share: recorded frames, and a server and a client on loopback."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger.remoting.client import ClientLimits, RemotingClient
from dledger.remoting.commands import Request
from dledger.remoting.frames import FrameReader
from dledger.remoting.server import Handler, RemotingServer, ServerLimits
from dledger.runtime.env import Env, production_env

DATA = Path(__file__).parent / "data"
LIMIT_S = 300.0
"""Loop time of one test. Some move the loop's clock ahead; a pause of the machine counts as well."""


def recorded_frames() -> list[dict[str, Any]]:
    """Frames of real clients: {"client", "header", "body_len", "frame_hex"}."""
    return [json.loads(line) for line in (DATA / "client_frames.jsonl").read_text().splitlines()]


def java_samples() -> dict[str, dict[str, Any]]:
    """Bodies and frames encoded by RocketMQ's own classes, by name (the first of each)."""
    samples: dict[str, dict[str, Any]] = {}
    for line in (DATA / "java_samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        samples.setdefault(sample["name"], sample)
    return samples


def java_bytes(name: str) -> bytes:
    return bytes.fromhex(java_samples()[name]["hex"])


def feed(reader: FrameReader, data: bytes, chunk: int = 1 << 20) -> list[Request]:
    """All commands in `data`, given to the reader in pieces of at most `chunk` bytes."""
    commands = []
    at = 0
    while at < len(data) and reader.error is None:
        room = reader.buffer()
        count = min(chunk, len(room), len(data) - at)
        room[:count] = data[at : at + count]
        commands += reader.received(count)
        at += count
    return commands


def decode_one(frame: bytes) -> Request:
    """The one command in these bytes."""
    reader = FrameReader()
    (command,) = feed(reader, frame)
    assert reader.error is None
    assert reader.pending == 0
    return command


def run(main: Any) -> Any:
    """Run a coroutine; what reaches the loop's exception handler fails the test."""

    async def guarded() -> Any:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        async with asyncio.timeout(LIMIT_S):
            result = await main
        assert not unhandled, unhandled
        return result

    return asyncio.run(guarded())


@dataclass
class Pair:
    """A server and a client that are running, and the server's address."""

    env: Env
    server: RemotingServer
    client: RemotingClient
    address: str


@asynccontextmanager
async def pair(
    handlers: Mapping[int, Handler] | None = None,
    *,
    limits: ServerLimits | None = None,
    client_limits: ClientLimits | None = None,
    client_handlers: Mapping[int, Any] | None = None,
    on_close: Callable[[Any], None] | None = None,
    on_connection_lost: Callable[[str], None] | None = None,
) -> AsyncIterator[Pair]:
    env = production_env("test")
    server = RemotingServer(
        env, handlers=handlers or {}, limits=limits or ServerLimits(), name="server", on_close=on_close
    )
    await server.start("127.0.0.1", 0)
    client = RemotingClient(
        env,
        limits=client_limits or ClientLimits(),
        handlers=client_handlers,
        on_connection_lost=on_connection_lost,
    )
    host, port = server.addresses[0]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(server.run()), tasks.create_task(client.run())]
        try:
            yield Pair(env, server, client, f"{host}:{port}")
        finally:
            await client.close()
            await server.close()
            for task in running:
                task.cancel()


async def read_frame(reader: asyncio.StreamReader) -> Request:
    """One command from a plain stream."""
    (length,) = struct.unpack(">I", head := await reader.readexactly(4))
    return decode_one(head + await reader.readexactly(length))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true (the test's time-out ends it otherwise)."""
    while not condition():  # noqa: ASYNC110  (any condition, not only events)
        await asyncio.sleep(0.002)
