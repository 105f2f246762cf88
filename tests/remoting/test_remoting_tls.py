"""TLS on the remoting port: who may connect, whom we believe, and certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger.remoting.client import RemotingClient
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import ConnectFailed, RemotingError, WrongTls
from dledger.remoting.limits import ClientLimits, ServerLimits
from dledger.remoting.server import Connection, RemotingServer
from dledger.runtime import first_byte
from dledger.runtime.env import production_env
from dledger.runtime.remoting_tls import TlsOptions, TlsSettings
from dledger.runtime.settings import ConfigError
from tests.broker.harness import skip_s
from tests.client.fake_cluster import eventually as until
from tests.dledger.certificates import Authority

ECHO = 10
LIMIT_S = 300
"""Loop time of what is served: some tests move the clock ahead."""


@contextlib.asynccontextmanager
async def serving(settings: TlsSettings) -> AsyncIterator[RemotingServer]:
    env = production_env("server")

    def echo(connection: Connection, request: Request) -> None:
        connection.respond(request, 0, body=request.body)

    server = RemotingServer(
        env, handlers={ECHO: echo}, limits=ServerLimits(), name="t", tls=settings.server(env.log)
    )
    async with asyncio.timeout(LIMIT_S):
        await server.start("127.0.0.1", 0)
        task = asyncio.ensure_future(server.run())
        try:
            yield server
        finally:
            await server.close()
            task.cancel()
            env.workers.close()


async def ask(server: RemotingServer, options: TlsOptions | None, body: bytes = b"hello") -> Response:
    context = None if options is None else options.context()
    client = RemotingClient(
        production_env("client"), limits=ClientLimits(connect_timeout_s=100.0), tls=context
    )
    task = asyncio.ensure_future(client.run())
    try:
        return await client.invoke("{}:{}".format(*server.addresses[0]), ECHO, None, body, timeout_s=100.0)
    finally:
        await client.close()
        task.cancel()


def settings_of(signer: Authority, **changes: str) -> TlsSettings:
    issued = signer.issue("server", "server")
    return replace(TlsSettings(certificate=issued.certificate, key=issued.key), **changes)


def test_permissive_takes_both_and_enforcing_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings, ca = settings_of(authority), str(authority.certificate)

    async def test() -> None:
        large = bytes(3_000_000)
        async with serving(settings) as server:
            for options in (None, TlsOptions(ca=ca), TlsOptions(verify=False)):
                assert (await ask(server, options, large)).body == large
            assert server.stats.errors == {}
        async with serving(replace(settings, mode="enforcing")) as server:
            assert (await ask(server, TlsOptions(ca=ca), large)).body == large
            with pytest.raises(RemotingError):
                await ask(server, None)
            await until(lambda: server.stats.errors == {"TLS handshake failed": 1})
            assert (await ask(server, TlsOptions(ca=ca))).body == b"hello"

    asyncio.run(test())


def test_whom_a_client_believes(tmp_path: Path) -> None:
    """A certificate of another authority, one made out to another host, one whose time is over."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    settings, ca = settings_of(authority), str(authority.certificate)
    over = authority.issue("over", "over", days=-1)
    late = TlsSettings(certificate=over.certificate, key=over.key)

    async def test() -> None:
        async with serving(settings) as server:
            for options, said in (
                (TlsOptions(ca=str(other.certificate)), "certificate verify failed"),
                (TlsOptions(), "certificate verify failed"),
                (TlsOptions(ca=ca, check_hostname=True), "certificate is not valid for '127.0.0.1'"),
            ):
                with pytest.raises(ConnectFailed, match=said):
                    await ask(server, options)
        async with serving(late) as server:
            with pytest.raises(ConnectFailed, match="certificate has expired"):
                await ask(server, TlsOptions(ca=ca))

    asyncio.run(test())


def test_clients_show_a_certificate_where_one_is_required(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    ca = str(authority.certificate)
    own, foreign = authority.issue("client", "client"), other.issue("foreign", "foreign")
    settings = settings_of(authority, client_auth="require", authority=ca)

    async def test() -> None:
        async with serving(settings) as server:
            shown = TlsOptions(ca=ca, certificate=own.certificate, key=own.key)
            assert (await ask(server, shown)).body == b"hello"
            strange = replace(shown, certificate=foreign.certificate, key=foreign.key)
            for options in (TlsOptions(ca=ca), strange):
                with pytest.raises(RemotingError):
                    await ask(server, options)
        async with serving(replace(settings, client_auth="optional")) as server:
            assert (await ask(server, TlsOptions(ca=ca))).body == b"hello"
            with pytest.raises(RemotingError):
                await ask(server, strange)

    asyncio.run(test())


def test_old_versions_of_the_protocol_are_refused(tmp_path: Path) -> None:
    settings = settings_of(Authority(tmp_path))

    async def test() -> None:
        async with serving(settings) as server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning):
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(OSError):
                await asyncio.open_connection(*server.addresses[0], ssl=context)
            await until(lambda: server.stats.errors.get("TLS handshake failed") == 1)

    asyncio.run(test())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_changed_files_count_for_the_next_connection_and_no_request_fails(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dledger.runtime.remoting_tls.REFRESH_INTERVAL_S", 0.0)
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    settings, after = settings_of(authority, mode=mode), other.issue("after", "after")
    ca, new = TlsOptions(ca=str(authority.certificate)), TlsOptions(ca=str(other.certificate))

    async def test() -> None:
        async with serving(settings) as server:
            asked = 0
            client = RemotingClient(production_env("client"), tls=ca.context())
            task = asyncio.ensure_future(client.run())
            going = True

            async def keep_asking() -> int:
                nonlocal asked
                while going:
                    await client.invoke("{}:{}".format(*server.addresses[0]), ECHO, None, b"x")
                    asked += 1
                return asked

            load = asyncio.ensure_future(keep_asking())
            assert (await ask(server, ca)).code == 0
            Path(settings.certificate).write_text("half")  # noqa: ASYNC240
            assert (await ask(server, ca)).code == 0
            assert "the changed TLS files cannot be used, so the previous ones stay in use" in caplog.text
            shutil.copy(after.certificate, settings.certificate)
            shutil.copy(after.key, settings.key)
            assert (await ask(server, new)).code == 0
            with pytest.raises(ConnectFailed):
                await ask(server, ca)
            going = False
            assert await load > 0
            await client.close()
            task.cancel()

    asyncio.run(test())


def test_silent_connections_are_bounded_and_go_on_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_byte, "MAX_UNDECIDED", 3)
    settings = settings_of(Authority(tmp_path))

    async def test() -> None:
        async with serving(settings) as server:
            silent = [await asyncio.open_connection(*server.addresses[0]) for _ in range(5)]
            await until(lambda: server.stats.accepted >= 2)
            assert server.stats.accepted == 2, "the oldest went on"
            assert (await ask(server, TlsOptions(verify=False))).code == 0
            await skip_s(first_byte.DECIDE_WITHIN_S)
            await until(lambda: server.stats.accepted >= 6)
            for _, writer in silent:
                writer.close()
            gone, writer = await asyncio.open_connection(*server.addresses[0])
            writer.close()
            half = await asyncio.open_connection(*server.addresses[0])
            half[1].write(b"\x16\x03\x01")
            assert (await ask(server, None)).code == 0
            assert (await gone.read()) == b""

    asyncio.run(test())


def test_without_descriptors_it_pauses_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_byte, "ACCEPT_PAUSE_S", 10.0)
    settings = settings_of(Authority(tmp_path))
    accept, refused = socket.socket.accept, 0

    def refuse(listener: socket.socket) -> tuple[socket.socket, object]:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    async def test() -> None:
        async with serving(settings) as server:
            monkeypatch.setattr(socket.socket, "accept", refuse)
            waiting = asyncio.ensure_future(ask(server, TlsOptions(verify=False)))
            for times in (1, 2, 3):
                await until(lambda times=times: refused >= times)  # type: ignore[misc]
                await asyncio.sleep(0.1)
                assert refused == times and not waiting.done(), "not again and again"
                await skip_s(10.0)
            assert (await waiting).code == 0
            assert server.stats.errors == {"connection refused": 3}

    asyncio.run(test())


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    for changes, said in (
        ({"certificate": "c"}, "must both be set"),
        ({"mode": "enforcing"}, "needs tls.server.certPath"),
        ({"client_auth": "require"}, "needs tls.server.trustCertPath"),
    ):
        with pytest.raises(ValueError, match=said):
            TlsSettings(**changes)  # type: ignore[arg-type]
    assert TlsSettings().server(production_env("x").log) is None
    log, missing = production_env("x").log, str(tmp_path / "nowhere.pem")
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        TlsSettings(certificate=missing, key=missing).server(log)
    with pytest.raises(ConfigError, match=r"tls\.client files cannot be used: .*nowhere\.pem"):
        TlsSettings(enable=True, server_authority=missing).client_context()


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TlsOptions.from_environment() is None
    monkeypatch.setenv("ROCKETMQ_TLS", "yes")
    with pytest.raises(ValueError, match="expected true or false"):
        TlsOptions.from_environment()
    monkeypatch.setenv("ROCKETMQ_TLS", "true")
    monkeypatch.setenv("ROCKETMQ_TLS_CA", "ca.pem")
    assert TlsOptions.from_environment() == TlsOptions(ca="ca.pem")


def test_who_speaks_no_tls_where_it_is_demanded_is_told(tmp_path: Path) -> None:
    """Also behind more than the buffers of a connection hold, and when nobody reads the answer."""

    async def test() -> None:
        async with serving(settings_of(Authority(tmp_path), mode="enforcing")) as server:
            for body in (b"hello", b"x" * 8_000_000):
                with pytest.raises(WrongTls, match="accepts only TLS"):
                    await ask(server, None, body)
            assert server.stats.accepted == 0
            rude = await asyncio.open_connection(*server.addresses[0])
            rude[1].write(b"\0" * 100)
            await until(lambda: server.stats.errors == {"TLS handshake failed": 3})
            await skip_s(first_byte.REFUSED_LINGER_S)
            rude[1].close()
            assert (await ask(server, TlsOptions(verify=False))).code == 0

    asyncio.run(test())


def test_silent_connections_are_closed_where_tls_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_byte, "MAX_UNDECIDED", 3)

    async def test() -> None:
        async with serving(settings_of(Authority(tmp_path), mode="enforcing")) as server:
            silent = [await asyncio.open_connection(*server.addresses[0]) for _ in range(5)]
            assert await silent[0][0].read() == b""
            assert await silent[1][0].read() == b""
            await skip_s(first_byte.DECIDE_WITHIN_S)
            for reader, writer in silent[2:]:
                assert await reader.read() in (b"", first_byte.REFUSED)
                writer.close()
            assert server.stats.accepted == 0
            assert (await ask(server, TlsOptions(verify=False))).code == 0

    asyncio.run(test())


def test_a_port_without_tls_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(TlsSettings()) as server:
            with pytest.raises(WrongTls, match="does not speak TLS"):
                await ask(server, TlsOptions(verify=False))
        http = await asyncio.start_server(
            lambda _, writer: writer.write(b"HTTP/1.1 400\r\n\r\n"), "127.0.0.1", 0
        )
        async with http:
            with pytest.raises(WrongTls, match="does not speak TLS"):
                await ask(
                    SimpleNamespace(addresses=[http.sockets[0].getsockname()]), TlsOptions(verify=False)
                )  # type: ignore[arg-type]

    asyncio.run(test())
