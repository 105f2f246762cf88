"""NameServers found by an address server, or behind a name: RocketMQ's web request, real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dledger import AsyncProducer, ClientOptions
from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.broker.registration.name_servers import NameServers
from dledger.client.errors import ClientError, NoNameServer
from dledger.remoting import address_server
from dledger.remoting.address_server import (
    MAX_ADDRESSES,
    MAX_ANSWER,
    NoAddresses,
    addresses_in,
    fetch_addresses,
    looked_up,
    url_of,
)
from dledger.runtime.live_settings import LiveSettings, SettingsSource
from dledger.runtime.settings import Property
from tests.broker.harness import make_env, run


@pytest.fixture(autouse=True)
def patient_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address server of a test answers when the test lets it."""
    monkeypatch.setattr(fetch_addresses, "__defaults__", (20.0,))
    monkeypatch.setattr(address_server, "TIMEOUT_S", 20.0)


class Served:
    """What the address server says now, and what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.text = "127.0.0.1:9876;127.0.0.2:9876\n"
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.asked: list[str] = []
        self.url = ""


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()

    async def answer(request: web.Request) -> web.Response:
        served.asked.append(request.path_qs)
        await served.go_on.wait()
        return web.Response(status=served.status, text=served.text)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    served.url = f"127.0.0.1:{port}"
    try:
        yield served
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("place", "group", "url"),
    [
        ("ns.example", "nsaddr", "http://ns.example:8080/rocketmq/nsaddr"),
        ("ns.example:80", "mine", "http://ns.example:80/rocketmq/mine"),
        ("[::1]:8080", "nsaddr", "http://[::1]:8080/rocketmq/nsaddr"),
        ("https://ns.example/rocketmq/nsaddr-unit", "nsaddr", "https://ns.example/rocketmq/nsaddr-unit"),
        ("", "nsaddr", None),
        ("ns example", "nsaddr", None),
        ("ns..example", "nsaddr", None),
        ("ns.example:0", "nsaddr", None),
        ("ftp://ns.example", "nsaddr", None),
        ("http://", "nsaddr", None),
        ("ns.example", "a/b", None),
        ("ns.example", "", None),
    ],
)
def test_where_it_is_asked(place: str, group: str, url: str | None) -> None:
    if url is None:
        with pytest.raises(ValueError, match=r"."):
            url_of(place, group)
    else:
        assert url_of(place, group) == url


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"a:1;b:2\n", ("a:1", "b:2")),
        (b"  a:1;a:1;\r\nc:3", ("a:1",)),
        (b"", "its response is empty"),
        (b"\n\n", "its response is empty"),
        (b"<html>", "its response holds no valid addresses"),
        (b"a:x", "its response holds no valid addresses"),
        (b"\xff\xfe", "its response holds no valid addresses"),
        (";".join(f"a:{number}" for number in range(1, MAX_ADDRESSES + 2)).encode(), "the limit is 64"),
    ],
)
def test_what_it_answers(answer: bytes, expected: tuple[str, ...] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(NoAddresses, match=expected):
            addresses_in(answer)
    else:
        assert addresses_in(answer) == expected


def test_an_answer_is_bounded_in_size_and_time() -> None:
    async def test() -> None:
        async with serving() as served:
            url = url_of(served.url)
            assert await fetch_addresses(url) == ("127.0.0.1:9876", "127.0.0.2:9876")
            assert served.asked == ["/rocketmq/nsaddr"]
            served.text = "a:1;" * MAX_ANSWER
            with pytest.raises(NoAddresses, match="longer than"):
                await fetch_addresses(url)
            served.text, served.status = "a:1", 404
            with pytest.raises(NoAddresses, match="status 404"):
                await fetch_addresses(url)
            served.go_on.clear()
            with pytest.raises(NoAddresses, match=r"no answer within 0\.02 s"):
                await fetch_addresses(url, 0.02)
            served.go_on.set()
        with pytest.raises(NoAddresses, match=r"Cannot connect|refused"):
            await fetch_addresses(url)

    run(test)


def test_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the resolver of the system: in place of it there is one that knows a name, and is always there."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        system = loop.getaddrinfo

        async def resolve(host: str, port: int) -> list[Any]:
            if host == "nowhere.invalid":
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return await system("127.0.0.1" if host == "localhost" else host, port)

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        assert "127.0.0.1:9876" in await looked_up(("localhost:9876",))
        assert await looked_up(("127.0.0.1:1", "[::1]:2")) == ("127.0.0.1:1", "[::1]:2")
        with pytest.raises(NoAddresses, match=r"nowhere\.invalid"):
            await looked_up(("nowhere.invalid:9876",))

    run(test)


def name_servers(
    source: SettingsSource | None = None, **changes: Any
) -> tuple[NameServers, LiveSettings[BrokerConfig], list[tuple[str, ...]]]:
    env = make_env()
    settings = LiveSettings(env, SETTINGS, BrokerConfig(peers={"n0": "127.0.0.1:1"}, **changes), source)
    found = NameServers(env, settings)
    heard: list[tuple[str, ...]] = []
    found.listen(lambda: heard.append(found.addresses))
    return found, settings, heard


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def running(test: Callable[[NameServers], Awaitable[None]], found: NameServers) -> Awaitable[None]:
    async def both() -> None:
        task = asyncio.create_task(found.run())
        try:
            await test(found)
        finally:
            task.cancel()

    return both()


def test_a_broker_follows_an_address_server_and_keeps_what_it_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving() as served:
            found, _, heard = name_servers(
                namesrv_by_address_server=True, address_server=served.url, address_server_interval_s=0.02
            )

            async def steps(found: NameServers) -> None:
                await until(lambda: found.addresses == ("127.0.0.1:9876", "127.0.0.2:9876"))
                served.status = 500
                await until(lambda: "the known ones stay in use" in caplog.text)
                asked = len(served.asked)
                await until(lambda: len(served.asked) > asked + 3)
                assert caplog.text.count("the known ones stay in use") == 1, "said once"
                assert found.addresses == ("127.0.0.1:9876", "127.0.0.2:9876")
                served.status, served.text = 200, "127.0.0.3:9876"
                await until(lambda: found.addresses == ("127.0.0.3:9876",))

            await running(steps, found)
            assert heard == [("127.0.0.1:9876", "127.0.0.2:9876"), ("127.0.0.3:9876",)]

    run(test)


def test_what_is_configured_goes_before_and_may_change_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("namesrvAddr=a:1;b:1\n")

    async def resolve(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"10.0.0.{number}:1" for number in range(len(names)))

    monkeypatch.setattr("dledger.broker.registration.name_servers.looked_up", resolve)

    async def test() -> None:
        async with serving() as served:
            found, settings, _ = name_servers(
                SettingsSource(str(file)),
                namesrv_addr=("a:1", "b:1"),
                namesrv_by_address_server=True,
                address_server=served.url,
            )
            assert found.addresses == ("a:1", "b:1")

            async def steps(found: NameServers) -> None:
                await asyncio.sleep(0.02)
                assert not served.asked
                await settings.update([Property("namesrvAddr", "a:1")])
                assert found.addresses == ("a:1",)
                await settings.update([Property("fetchNameSrvAddrByDnsLookup", "true")])
                await until(lambda: found.addresses == ("10.0.0.0:1",))
                await settings.update([Property("namesrvAddr", "")])
                await until(lambda: found.addresses == ("127.0.0.1:9876", "127.0.0.2:9876"))
                await settings.update([Property("fetchNamesrvAddrByAddressServer", "false")])
                assert found.addresses == ()

            await running(steps, found)

    run(test)


def test_a_client_asks_where_the_nameservers_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("dledger.client.name_servers.CLIENT_INTERVAL_S", 0.02)

    async def test() -> None:
        async with serving() as served:
            served.text = "127.0.0.1:1"
            options = ClientOptions(address_server=served.url)
            async with AsyncProducer("PG", client=options) as producer:
                with pytest.raises(NoNameServer, match=r"no NameServer answers.*127\.0\.0\.1:1"):
                    await producer.queues("T")
                served.text = "127.0.0.1:2"
                await until(lambda: producer._core.namesrv == ("127.0.0.1:2",))
                served.status = 500
                await until(lambda: "the known NameServers stay in use" in caplog.text)
                assert producer._core.namesrv == ("127.0.0.1:2",)
        async with AsyncProducer("PG", client=options) as producer:
            with pytest.raises(NoNameServer, match="named no NameServers: "):
                await producer.queues("T")

    run(test)


def test_an_address_server_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match=r"address_server=.*expected"):
        ClientOptions(address_server="no host")
    monkeypatch.setattr(address_server.importlib, "import_module", _missing)
    with pytest.raises(ClientError, match="dledger\\[server\\]"):
        AsyncProducer("PG", client=ClientOptions(address_server="ns.example"))


def _missing(name: str) -> None:
    raise ImportError(name)
