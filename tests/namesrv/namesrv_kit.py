"""A NameServer and a client on loopback, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import NameServer, main
from dledger.remoting.bodies import TopicRoute, decode_body
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Response
from dledger.remoting.headers import GetRouteHeader, RegisterBrokerHeader
from dledger.remoting.registration import (
    DataVersion,
    Registration,
    TopicConfig,
    body_crc,
    encode_registration,
)
from dledger.runtime.env import production_env
from dledger.runtime.live_settings import SettingsSource

ADDRESS = "10.0.0.1:10911"
LIMIT_S = 300.0
"""Loop time of one test: some move the loop's clock ahead."""


def run(coroutine: Any) -> Any:
    async def guarded() -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await coroutine

    return asyncio.run(guarded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true (the test's time-out ends it otherwise)."""
    while not condition():  # noqa: ASYNC110  (any condition, not only events)
        await asyncio.sleep(0.002)


@dataclass
class World:
    """One NameServer that is running, and a client of it."""

    nameserver: NameServer
    client: RemotingClient
    address: str

    async def call(
        self, code: int, header: msgspec.Struct | dict[str, str] | None = None, body: bytes = b""
    ) -> Response:
        return await self.client.invoke(self.address, code, header, body)

    async def register(
        self,
        address: str = ADDRESS,
        broker_id: int = 0,
        topics: tuple[str, ...] = ("T", "TBW102"),
        term: int = 1,
        counter: int = 1,
        compressed: bool = False,
        timeout_ms: int | None = None,
        name: str = "broker-a",
    ) -> Response:
        registration = Registration(
            {name: TopicConfig(name, 4, 4, 6) for name in topics}, DataVersion(term, counter, 5)
        )
        body = encode_registration(registration, compressed=compressed)
        header = RegisterBrokerHeader(
            name,
            address,
            "c",
            f"ha-{address}",
            broker_id,
            timeout_ms,
            False,
            compressed,
            body_crc(body),
        )
        return await self.call(RequestCode.REGISTER_BROKER, header, body)

    async def route(self, topic: str = "T") -> TopicRoute | None:
        response = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic))
        return decode_body(response.body, TopicRoute) if response.code == 0 else None


@asynccontextmanager
async def nameserver(
    config: NamesrvConfig | None = None, source: SettingsSource | None = None
) -> AsyncIterator[World]:
    env = production_env("test")
    config = replace(config or NamesrvConfig(), listen_port=0, bind_address="127.0.0.1")
    stop = asyncio.Event()
    ready: asyncio.Future[NameServer] = asyncio.get_running_loop().create_future()
    client = RemotingClient(env)
    try:
        async with asyncio.TaskGroup() as tasks:
            server = tasks.create_task(main(env, config, stop, ready.set_result, source))
            running = tasks.create_task(client.run())
            first: list[asyncio.Future[Any]] = [ready, server]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                host, port = ready.result().server.addresses[0]
                yield World(ready.result(), client, f"{host}:{port}")
            await client.close()
            running.cancel()
            stop.set()
    finally:
        env.workers.close()
