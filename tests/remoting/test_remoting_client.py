"""The client against a real server on loopback, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from remoting_kit import Pair, pair, read_frame, run, until

from dledger.chaos.machine import World
from dledger.remoting.client import ClientLimits, RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import (
    BadHeader,
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    RemotingError,
    RequestTimeout,
    TooLarge,
)
from dledger.remoting.frames import encode_request
from dledger.remoting.headers import ConsumerGroupHeader, OffsetResponseHeader, TimestampResponseHeader
from dledger.remoting.server import Connection, RemotingServer, ServerLimits
from dledger.runtime.env import Env, production_env
from tests.broker.harness import skip_s

ECHO, LATER = 1, 2


def echo(connection: Connection, request: Request) -> None:
    connection.respond(request, 0, ext=request.ext(), body=request.body)


def never(connection: Connection, request: Request) -> None:
    pass


HANDLERS = {ECHO: echo, LATER: never}


@asynccontextmanager
async def stub(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server made of one function per connection."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()


async def failure(call: Awaitable[Response]) -> RemotingError:
    with pytest.raises(RemotingError) as caught:
        await call
    return caught.value


def test_requests_share_one_connection_and_find_their_answers() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            calls = [p.client.invoke(p.address, ECHO, {"n": str(n)}, b"b%d" % n) for n in range(100)]
            for n, response in enumerate(await asyncio.gather(*calls)):
                assert (response.ext, response.body) == ({"n": str(n)}, b"b%d" % n)
            assert p.server.stats.accepted == 1
            assert p.client.connected(p.address)

    run(main())


def test_a_pipelined_window_of_callbacks() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            results: list[Response | RemotingError] = []
            for n in range(3000):
                p.client.invoke_nowait(p.address, ECHO, {"n": str(n)}, b"", 60.0, results.append)
            assert results == []  # never before it returns
            await until(lambda: len(results) == 3000)
            assert [r.ext["n"] for r in results if isinstance(r, Response)] == [str(n) for n in range(3000)]

    run(main())


def test_large_requests_arrive_whole_between_small_ones() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            bodies = [bytes([n]) * size for n, size in enumerate((10, 5_000_000, 10, 0, 2_000_000, 3))]
            calls = [p.client.invoke(p.address, ECHO, None, body) for body in bodies]
            assert [answer.body for answer in await asyncio.gather(*calls)] == bodies

    run(main())


def test_an_error_code_is_an_answer_and_checked_raises_it() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            response = await p.client.invoke(p.address, 9999)
            assert response.code == 3
            assert response.checked(3) is response
            with pytest.raises(RemotingError, match="code 3:  request type 9999"):
                response.checked()

    run(main())


def test_oneway_requests_arrive() -> None:
    async def main() -> None:
        seen: list[tuple[bool, str]] = []

        def note(connection: Connection, request: Request) -> None:
            seen.append((request.oneway, request.header(ConsumerGroupHeader).consumerGroup))

        async with pair({40: note}) as p:
            for group in ("a", "b"):  # the first dials, the second does not
                await p.client.invoke_oneway(p.address, 40, ConsumerGroupHeader(group))
            await until(lambda: len(seen) == 2)
            assert seen == [(True, "a"), (True, "b")]

    run(main())


def test_nobody_listening_fails_everything_that_waits() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            await p.server.close()
            errors = [await failure(p.client.invoke(p.address, ECHO)) for _ in range(2)]
            assert all(isinstance(error, ConnectFailed) and error.refused for error in errors)
            assert p.address in errors[0].remark
            with pytest.raises(ConnectFailed):
                await p.client.invoke_oneway(p.address, ECHO)

    run(main())


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:x", "host:70000", "n0..example.com:1", ".n0:1", "n0\0:1", "\udc80:1"],
)
def test_a_bad_address_is_said(address: str) -> None:
    async def main() -> None:
        async with pair() as p:
            error = await failure(p.client.invoke(address, ECHO))
            assert isinstance(error, ConnectFailed)
            assert "host:port" in error.remark or "nor a host name" in error.remark
            assert repr(address.removesuffix(":1"))[1:-1] in error.remark

    run(main())


def test_a_lost_connection_fails_all_in_flight_at_once_and_the_next_use_dials() -> None:
    async def main() -> None:
        lost: list[str] = []
        async with pair(HANDLERS, on_connection_lost=lost.append) as p:
            calls = [
                asyncio.ensure_future(p.client.invoke(p.address, LATER, timeout_s=60)) for _ in range(20)
            ]
            await until(lambda: p.server.stats.requests == 20)
            p.server.connections[0].abort()
            for call in calls:
                assert isinstance(await failure(call), ConnectionLost)
            assert lost == [p.address]
            assert not p.client.connected(p.address)
            assert (await p.client.invoke(p.address, ECHO)).code == 0
            assert p.server.stats.accepted == 2

    run(main())


def test_time_outs_of_different_length_each_come_in_time() -> None:
    async def main() -> None:
        limits = ClientLimits(silence_close_s=1000)
        async with pair(HANDLERS, client_limits=limits) as p:
            loop = asyncio.get_running_loop()
            start = loop.time()
            ended: dict[float, float] = {}

            async def one(timeout_s: float) -> None:
                error = await failure(p.client.invoke(p.address, LATER, timeout_s=timeout_s))
                assert isinstance(error, RequestTimeout)
                ended[timeout_s] = loop.time() - start

            all_three = asyncio.gather(*(one(timeout_s) for timeout_s in (60.0, 0.05, 0.1)))
            await until(lambda: len(ended) == 2)
            assert not all_three.done(), "they do not wait for the longest"
            await skip_s(60)
            await all_three
            assert list(ended) == [0.05, 0.1, 60.0]
            assert all(timeout_s <= took for timeout_s, took in ended.items())
            assert p.client.connected(p.address)

    run(main())


def test_a_late_answer_is_dropped() -> None:
    async def main() -> None:
        waiting: list[tuple[Connection, Request]] = []
        handlers = {LATER: lambda c, r: waiting.append((c, r)), ECHO: echo}
        async with pair(handlers, client_limits=ClientLimits(silence_close_s=1000)) as p:
            assert (await p.client.invoke(p.address, ECHO)).code == 0  # it is connected
            await failure(p.client.invoke(p.address, LATER, timeout_s=0.02))
            await until(lambda: bool(waiting))
            connection, request = waiting[0]
            connection.respond(request, 0)
            assert (await p.client.invoke(p.address, ECHO)).code == 0
            assert p.client.late_responses == 1

    run(main())


def test_a_silent_connection_is_hung_up_after_a_time_out() -> None:
    async def main() -> None:
        limits = ClientLimits(silence_close_s=0.05)
        async with pair(HANDLERS, client_limits=limits) as p:
            other = asyncio.ensure_future(p.client.invoke(p.address, LATER, timeout_s=60))
            await until(lambda: p.server.stats.requests == 1)
            await asyncio.sleep(0.06)
            error = await failure(p.client.invoke(p.address, LATER, timeout_s=0.1))
            assert isinstance(error, RequestTimeout)
            assert isinstance(await failure(other), ConnectionLost)
            assert (await p.client.invoke(p.address, ECHO)).code == 0

    run(main())


def test_what_a_silent_connection_did_not_deliver_never_is() -> None:
    """This is tested with a real kernel: after an ordinary abort it would go on delivering the bytes that it
    holds."""

    async def main() -> None:
        received = 0
        go_on, ended = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await go_on.wait()
            try:
                while data := await reader.read(1 << 16):
                    received += len(data)
            except ConnectionResetError:
                pass
            writer.close()
            ended.set()

        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        server = await asyncio.start_server(serve, sock=listener, limit=1024)
        async with server, asyncio.TaskGroup() as tasks:
            client = RemotingClient(
                production_env("test"),
                limits=ClientLimits(silence_close_s=0.05, outbound_high_water=1 << 26),
            )
            running = tasks.create_task(client.run())
            body = bytes(600_000)  # more than the server's end takes, less than the kernel at ours
            await client.invoke_oneway(address, ECHO)  # silence counts from the end of the dial
            error = await failure(client.invoke(address, ECHO, body=body, timeout_s=0.2))
            assert isinstance(error, RequestTimeout)
            go_on.set()
            await ended.wait()
            assert received < len(body)
            await client.close()
            running.cancel()

    run(main())


def test_a_request_that_was_given_up_is_not_executed_when_its_cut_heals() -> None:
    executed: list[bytes] = []
    answers: list[object] = []

    def note(connection: Connection, request: Request) -> None:
        executed.append(bytes(request.body))
        connection.respond(request, 0)

    async def serve(env: Env) -> None:
        server = RemotingServer(env, handlers={ECHO: note}, limits=ServerLimits(), name="server")
        await server.start("0.0.0.0", 9000)
        await server.run()

    async def ask(env: Env) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = RemotingClient(env, limits=ClientLimits(silence_close_s=0.1))
            running = tasks.create_task(client.run())
            for body, timeout_s in ((b"first", 5), (b"given up", 0.5), (b"last", 5)):
                try:
                    answers.append(
                        (await client.invoke("server:9000", ECHO, body=body, timeout_s=timeout_s)).code
                    )
                except RemotingError as error:
                    answers.append(type(error))
                await asyncio.sleep(1)
            await client.close()
            running.cancel()

    with World(1) as world:
        world.spawn(world.node("server"), serve)
        world.run_for(0.1)
        world.spawn(world.node("client"), ask)
        world.run_for(0.5)
        world.partition("client", "server")
        world.run_for(1.2)
        world.heal()
        world.run_for(10)
    assert answers == [0, RequestTimeout, 0]
    assert executed == [b"first", b"last"]


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
def test_the_kernel_looks_after_connections() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            await p.client.invoke(p.address, ECHO)
            transport = p.client._links[p.address]._transport
            assert transport is not None
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [sock.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [3, 1, 3, 0]

    run(main())


def test_a_long_wait_ends_when_the_machine_vanishes() -> None:
    """As a pull for messages, which may wait for half a minute."""
    ended: list[tuple[type, float]] = []

    async def serve(env: Env) -> None:
        server = RemotingServer(env, handlers=HANDLERS, limits=ServerLimits(), name="server")
        await server.start("0.0.0.0", 9000)
        await server.run()

    async def ask(env: Env) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = RemotingClient(env)
            running = tasks.create_task(client.run())
            assert (await client.invoke("server:9000", ECHO)).code == 0
            begin = client.loop.time()
            error = await failure(client.invoke("server:9000", LATER, timeout_s=60))  # 20 s of it are well
            ended.append((type(error), client.loop.time() - begin))
            await client.close()
            running.cancel()

    with World(1) as world:
        world.spawn(world.node("server"), serve)
        world.run_for(0.1)
        world.spawn(world.node("client"), ask)
        world.run_for(20)
        assert not ended
        world.partition("client", "server")
        world.run_for(10)
    ((kind, waited_s),) = ended
    assert kind is ConnectionLost and 23 < waited_s < 28


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            call = asyncio.ensure_future(p.client.invoke(p.address, LATER))
            await until(lambda: p.server.stats.requests == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert p.client._links[p.address]._pending == {}

    run(main())


def test_limits_refuse_what_is_too_much() -> None:
    async def main() -> None:
        limits = ClientLimits(max_inflight=3, max_frame_size=10_000, max_outbound=25_000)
        async with pair(HANDLERS, client_limits=limits) as p:
            assert isinstance(await failure(p.client.invoke(p.address, ECHO, body=bytes(10_001))), TooLarge)
            results: list[Response | RemotingError] = []
            for _ in range(4):
                p.client.invoke_nowait(p.address, ECHO, None, bytes(9000), 60.0, results.append)
            await until(lambda: len(results) == 4)
            assert sum(isinstance(result, Overloaded) for result in results) == 2  # by bytes
            for _ in range(5):
                p.client.invoke_nowait(p.address, LATER, None, b"", 0.05, results.append)
            await until(lambda: len(results) == 9)
            assert sum(isinstance(result, Overloaded) for result in results) == 4  # by number

    run(main())


def test_a_failing_callback_does_not_take_other_answers_with_it() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            reported: list[object] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
            results: list[Response | RemotingError] = []

            def fail(result: Response | RemotingError) -> None:
                raise KeyError("bug")

            for done in (results.append, fail, results.append):
                p.client.invoke_nowait(p.address, ECHO, None, b"", 60.0, done)
            await until(lambda: len(results) == 2)
            assert [type(error) for error in reported] == [KeyError]

    run(main())


def test_requests_of_the_server_reach_handlers_and_are_answered() -> None:
    async def main() -> None:
        answers: list[Request] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_frame(reader)
            for code in (40, 307, 308, 999):
                writer.write(encode_request(code, code, {"consumerGroup": "CG"}))
            writer.write(encode_request(999, 5, {}, flag=2))
            for _ in range(3):
                answers.append(await read_frame(reader))
            writer.close()

        def notice(addr: str, request: Request) -> None:
            assert request.header(ConsumerGroupHeader).consumerGroup == "CG"

        def info(addr: str, request: Request) -> Response:
            return Response(0, ext={"from": addr}, body=b"info")

        def refuse(addr: str, request: Request) -> Response:
            raise RemotingError(16, "no")

        handlers = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notice, 307: info, 308: refuse}
        async with stub(serve) as address, pair(client_handlers=handlers) as p:
            await failure(p.client.invoke(address, ECHO))
            assert [(a.opaque, a.code) for a in answers] == [(307, 0), (308, 16), (999, 3)]
            assert (answers[0].ext(), answers[0].body) == ({"from": address}, b"info")

    run(main())


def test_garbage_from_a_server_is_a_lost_connection() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with stub(serve) as address, pair() as p:
            assert isinstance(await failure(p.client.invoke(address, ECHO)), ConnectionLost)
            assert p.client.bad_frames == 1

    run(main())


def test_an_answer_with_numbers_and_nulls_is_read_as_text_and_typed() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await read_frame(reader)
            text = '{"code":0,"flag":1,"opaque":%d,"extFields":{"offset":7,"x":null,"y":true}}'
            header = (text % request.opaque).encode()
            writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)

        async with stub(serve) as address, pair() as p:
            response = await p.client.invoke(address, ECHO)
            assert response.ext == {"offset": "7", "y": "true"}
            assert response.header(OffsetResponseHeader).offset == 7
            with pytest.raises(BadHeader, match="the header lacks the field timestamp"):
                response.header(TimestampResponseHeader)

    run(main())


def test_an_idle_connection_is_closed_but_not_one_that_waits() -> None:
    async def main() -> None:
        limits = ClientLimits(idle_close_s=60, idle_sweep_s=0.01, silence_close_s=1000)
        async with pair(HANDLERS, client_limits=limits) as p:
            waiting = asyncio.ensure_future(failure(p.client.invoke(p.address, LATER, timeout_s=100)))
            await until(lambda: p.server.stats.requests == 1)
            await skip_s(80)
            await asyncio.sleep(0.1)  # it looks for idle connections now
            assert p.client.connected(p.address) and not waiting.done()
            await skip_s(20)
            assert isinstance(await waiting, RequestTimeout)
            await asyncio.sleep(0.1)
            assert p.client.connected(p.address), "its time begins with the end of the wait"
            await skip_s(60)
            await until(lambda: not p.client.connected(p.address))
            assert (await p.client.invoke(p.address, ECHO)).code == 0

    run(main())


def test_close_fails_what_is_in_flight_and_refuses_what_comes_later() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            call = asyncio.ensure_future(p.client.invoke(p.address, LATER))
            await until(lambda: p.server.stats.requests == 1)
            await p.client.close()
            assert isinstance(await failure(call), ConnectionLost)
            assert isinstance(await failure(p.client.invoke(p.address, ECHO)), ConnectFailed)
            await until(lambda: not p.server.connections)

    run(main())


def test_requests_made_before_run_wait_for_it_or_time_out() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            client = RemotingClient(p.env)
            first = await failure(client.invoke(p.address, LATER, timeout_s=0.02))
            assert isinstance(first, RequestTimeout)
            call = asyncio.ensure_future(client.invoke(p.address, ECHO))
            await asyncio.sleep(0)
            running = asyncio.ensure_future(client.run())
            assert (await call).code == 0
            await client.close()
            running.cancel()

    run(main())


def test_many_failed_dials_leave_nothing_behind() -> None:
    async def main() -> None:
        async with pair(HANDLERS) as p:
            await p.server.close()
            for _ in range(50):
                await failure(p.client.invoke(p.address, ECHO))
            assert p.client._links == {}
            gc.collect()
            assert len([task for task in asyncio.all_tasks() if task.get_name().startswith("dial")]) == 0

    run(main())


def test_back_pressure_of_the_transport_is_obeyed() -> None:
    async def main() -> None:
        limits = ClientLimits(outbound_high_water=10_000, max_outbound=200_000_000, max_inflight=2000)

        async def check(p: Pair) -> None:
            results: list[Response | RemotingError] = []
            for _ in range(300):
                p.client.invoke_nowait(p.address, ECHO, None, bytes(100_000), 60.0, results.append)
            await until(lambda: len(results) == 300)
            assert all(isinstance(result, Response) for result in results)

        async with pair(HANDLERS, client_limits=limits) as p:
            await check(p)

    run(main())


def test_what_did_not_leave_fails_as_not_sent() -> None:
    """A connection that is full, and then lost: what waited behind was certainly not executed."""

    async def main() -> None:
        full = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(4)
            await full.wait()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, asyncio.TaskGroup() as tasks:
            client = RemotingClient(production_env("test"), limits=ClientLimits(outbound_high_water=1024))
            running = tasks.create_task(client.run())
            large = asyncio.ensure_future(client.invoke(address, ECHO, body=bytes(12_000_000)))
            await until(lambda: client.connected(address))
            await asyncio.sleep(0.05)
            behind = [asyncio.ensure_future(client.invoke(address, ECHO, body=b"x")) for _ in range(3)]
            await asyncio.sleep(0.01)
            full.set()
            assert isinstance(await failure(large), ConnectionLost)
            for call in behind:
                error = await failure(call)
                assert isinstance(error, ConnectFailed) and "not sent" in error.remark
            await client.close()
            running.cancel()

    run(main())


def test_what_waits_for_a_connection_can_be_taken_back() -> None:
    async def main() -> None:
        executed: list[bytes] = []

        def note(connection: Connection, request: Request) -> None:
            executed.append(bytes(request.body))
            connection.respond(request, 0)

        async with pair({ECHO: note}) as p:
            calls = [
                asyncio.ensure_future(p.client.invoke(p.address, ECHO, body=b"%d" % number))
                for number in range(3)
            ]
            await asyncio.sleep(0)
            p.client.drop_unsent("taken back")
            for call in calls:
                error = await failure(call)
                assert isinstance(error, ConnectFailed) and "taken back" in error.remark
            assert (await p.client.invoke(p.address, ECHO, body=b"last")).code == 0
            assert executed == [b"last"]

    run(main())
