"""The server on a real loopback socket: answers, errors, garbage, limits, back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
from remoting_kit import pair, read_frame, run, until

from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, SerializeType
from dledger.remoting.errors import RemotingError
from dledger.remoting.frames import encode_request, encode_response_json
from dledger.remoting.headers import TopicHeader
from dledger.remoting.server import TURN_S, Connection, RemotingServer, ServerLimits
from dledger.runtime.env import production_env

ECHO, LATER, FAIL, REFUSE, TYPED, SILENT = 1, 2, 3, 4, 5, 6


class Handlers:
    """Handlers of every kind, and what reached them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.waiting: list[tuple[Connection, Request]] = []
        self.connections: list[Connection] = []
        self.table = {
            ECHO: self.echo,
            LATER: self.later,
            FAIL: self.fail,
            REFUSE: self.refuse,
            TYPED: self.typed,
            SILENT: self.silent,
        }

    def echo(self, connection: Connection, request: Request) -> None:
        self.seen.append(request.opaque)
        self.connections.append(connection)
        connection.respond(request, 0, ext=request.ext(), body=request.body)

    def later(self, connection: Connection, request: Request) -> None:
        self.waiting.append((connection, request))

    def fail(self, connection: Connection, request: Request) -> None:
        raise KeyError("what went wrong")

    def refuse(self, connection: Connection, request: Request) -> None:
        raise RemotingError(ResponseCode.NO_PERMISSION, "not for you")

    def typed(self, connection: Connection, request: Request) -> None:
        connection.respond(request, 0, ext={"topic": request.header(TopicHeader).topic})

    def silent(self, connection: Connection, request: Request) -> None:
        connection.respond(request, 0, body=[b"a", memoryview(b"bc"), bytearray(b"d")])


async def raw(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port))


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_a_request_is_answered_in_its_own_serialization() -> None:
    async def main() -> None:
        async with pair(Handlers().table) as p:
            reader, writer = await raw(p.address)
            for serialize in SerializeType:
                writer.write(encode_request(ECHO, 7, {"a": "b"}, 2, serialize=serialize) + b"hi")
                answer = await read_frame(reader)
                assert answer.serialize is serialize
                assert (answer.code, answer.opaque, answer.ext(), answer.body) == (0, 7, {"a": "b"}, b"hi")
                assert answer.is_response
            writer.close()

    run(main())


def test_a_body_in_pieces_is_one_body() -> None:
    async def main() -> None:
        async with pair(Handlers().table) as p:
            assert (await p.client.invoke(p.address, SILENT)).body == b"abcd"

    run(main())


def test_an_unknown_code_is_answered_with_3_as_java_says_it() -> None:
    async def main() -> None:
        async with pair({}) as p:
            response = await p.client.invoke(p.address, 9999)
            assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert response.remark == " request type 9999 not supported"

    run(main())


def test_a_default_handler_takes_what_nobody_else_takes() -> None:
    async def main() -> None:
        env = production_env("test")
        handlers = Handlers()
        server = RemotingServer(env, handlers={}, limits=ServerLimits(), name="s", default=handlers.echo)
        await server.start("127.0.0.1", 0)
        reader, writer = await raw(f"127.0.0.1:{server.addresses[0][1]}")
        writer.write(encode_request(12345, 1, {}))
        assert (await read_frame(reader)).code == 0
        writer.close()
        await server.close()

    run(main())


@pytest.mark.parametrize(
    "code, answer, remark",
    [
        (FAIL, ResponseCode.SYSTEM_ERROR, "KeyError: 'what went wrong'"),
        (REFUSE, ResponseCode.NO_PERMISSION, "not for you"),
        (TYPED, ResponseCode.SYSTEM_ERROR, "the header of request code 5 lacks the field topic"),
    ],
)
def test_what_a_handler_raises_becomes_the_answer(code: int, answer: int, remark: str) -> None:
    async def main() -> None:
        async with pair(Handlers().table) as p:
            response = await p.client.invoke(p.address, code)
            assert (response.code, response.remark) == (answer, remark)
            assert sum(p.server.stats.errors.values()) == 1
            assert (await p.client.invoke(p.address, ECHO)).code == 0  # the connection goes on

    run(main())


def test_a_oneway_request_is_never_answered() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as p:
            reader, writer = await raw(p.address)
            for code in (ECHO, FAIL, REFUSE, 9999):
                writer.write(encode_request(code, 1, {}, flag=2))
            writer.write(encode_request(ECHO, 2, {}))
            assert (await read_frame(reader)).opaque == 2
            assert handlers.seen == [1, 2]
            assert p.server.stats.oneway == 4
            writer.close()

    run(main())


def test_answers_may_come_later_and_out_of_order_and_in_parts() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as p:
            calls = [
                asyncio.ensure_future(p.client.invoke(p.address, LATER, {"n": str(n)})) for n in range(3)
            ]
            await until(lambda: len(handlers.waiting) == 3)
            for connection, request in reversed(handlers.waiting):
                text = request.ext()["n"].encode()
                parts = [encode_response_json(request.opaque, 0, {"x": "y"}, None, len(text)), text]
                connection.respond_parts(request, parts)
            assert [(await call).body for call in calls] == [b"0", b"1", b"2"]

    run(main())


def test_the_output_of_one_turn_is_one_write() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as p:
            reader, writer = await raw(p.address)
            writer.write(b"".join(encode_request(LATER, n, {}) for n in range(50)))
            await until(lambda: len(handlers.waiting) == 50)
            transport: Any = handlers.waiting[0][0]._transport
            writes: list[int] = []
            write = transport.write

            def recorder(data: bytes) -> None:
                writes.append(len(data))
                write(data)

            handlers.waiting[0][0]._transport = Recorder(transport, recorder)  # type: ignore[assignment]
            for connection, request in handlers.waiting:
                connection.respond(request, 0)
            for n in range(50):
                assert (await read_frame(reader)).opaque == n
            assert len(writes) == 1
            writer.close()

    class Recorder:
        def __init__(self, transport: Any, write: Any) -> None:
            self._transport, self.write = transport, write

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    run(main())


def test_garbage_closes_its_connection_and_the_server_goes_on() -> None:
    async def main() -> None:
        async with pair(Handlers().table) as p:
            for garbage in (
                b"GET / HTTP/1.1\r\n\r\n",
                bytes(range(255, 0, -1)),
                struct.pack(">II", 6, 2) + b"[]",
            ):
                reader, writer = await raw(p.address)
                writer.write(encode_request(ECHO, 1, {}) + garbage)
                assert (await read_frame(reader)).code == 0  # what came before is answered
                assert await closed(reader)
                writer.close()
            assert (await p.client.invoke(p.address, ECHO)).code == 0
            assert p.server.stats.errors == {"frame too large": 2, "bad JSON header": 1}
            await until(lambda: len(p.server.connections) == 1)

    run(main())


def test_a_frame_that_ends_early_is_dropped_with_its_connection() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as p:
            reader, writer = await raw(p.address)
            writer.write(encode_request(ECHO, 1, {"a": "b"})[:-3])
            writer.write_eof()
            assert await closed(reader)
            await until(lambda: not p.server.connections)
            assert handlers.seen == []
            writer.close()

    run(main())


def test_an_answer_to_nothing_is_ignored() -> None:
    async def main() -> None:
        async with pair(Handlers().table) as p:
            reader, writer = await raw(p.address)
            writer.write(encode_response_json(999, 0) + encode_request(ECHO, 1, {}))
            assert (await read_frame(reader)).opaque == 1
            assert p.server.stats.stray_responses == 1
            writer.close()

    run(main())


def test_one_connection_too_many_is_closed_and_counted() -> None:
    async def main() -> None:
        async with pair(Handlers().table, limits=ServerLimits(max_connections=2)) as p:
            streams = [await raw(p.address) for _ in range(2)]
            await until(lambda: len(p.server.connections) == 2)
            reader, writer = await raw(p.address)
            assert await closed(reader)
            assert p.server.stats.refused == 1
            streams[0][1].close()
            await until(lambda: len(p.server.connections) == 1)
            assert (await p.client.invoke(p.address, ECHO)).code == 0
            for _, each in [*streams, (reader, writer)]:
                each.close()

    run(main())


def test_an_idle_connection_is_closed() -> None:
    async def main() -> None:
        limits = ServerLimits(idle_close_s=0.05, idle_sweep_s=0.01)
        async with pair(Handlers().table, limits=limits) as p:
            reader, writer = await raw(p.address)
            writer.write(encode_request(ECHO, 1, {}))
            # It may be idle for too long before the server comes to read.
            with contextlib.suppress(ConnectionResetError, asyncio.IncompleteReadError):
                await read_frame(reader)
            assert await closed(reader)
            assert p.server.stats.closed_idle == 1
            writer.close()

    run(main())


def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table, limits=ServerLimits(outbound_high_water=10_000)) as p:
            reader, writer = await raw(p.address)
            await until(lambda: len(p.server.connections) == 1)
            (connection,) = p.server.connections
            frame = encode_request(ECHO, 1, {}, 100_000) + bytes(100_000)
            sent = 400
            for _ in range(sent):
                writer.write(frame)
            await until(lambda: connection.slow)
            await asyncio.sleep(0.1)
            transport: Any = connection._transport
            assert not transport.is_reading()  # the server stopped reading
            assert len(handlers.seen) < sent
            for _ in range(sent):  # and goes on when the peer reads
                assert len((await read_frame(reader)).body) == 100_000
            writer.close()

    run(main())


def test_what_was_read_already_waits_while_the_peer_does_not_read() -> None:
    async def main() -> None:
        handlers = Handlers()

        def large(connection: Connection, request: Request) -> None:
            handlers.seen.append(request.opaque)
            connection.respond(request, 0, body=bytes(1_000_000))

        async with pair({ECHO: large}, limits=ServerLimits(outbound_high_water=10_000)) as p:
            reader, writer = await raw(p.address)
            sent = 300
            writer.write(b"".join(encode_request(ECHO, number, {}) for number in range(sent)))
            await until(lambda: any(one.slow for one in p.server.connections))
            await until(lambda: p.server.unsent > 0)
            assert len(handlers.seen) < sent  # all of them came in one read
            for number in range(sent):  # and it goes on when the peer reads
                assert (await read_frame(reader)).opaque == number
            await until(lambda: p.server.unsent == 0)
            writer.close()

    run(main())


def test_unsent_answers_of_all_connections_have_one_bound() -> None:
    async def main() -> None:
        handlers = Handlers()

        def large(connection: Connection, request: Request) -> None:
            handlers.seen.append(request.opaque)
            connection.respond(request, 0, body=bytes(1_000_000))

        # A connection whose peer is deaf comes to rest with more than a quarter of `outbound_high_water`
        # unsent: 10 MB for 40 of them. A higher bound may be passed once and never again, because the
        # system's buffers take a part.
        limits = ServerLimits(max_unsent=8_000_000)
        async with pair({**handlers.table, ECHO: large}, limits=limits) as p:
            deaf = [await raw(p.address) for _ in range(40)]
            for _, writer in deaf:
                writer.transport.pause_reading()
                writer.write(b"".join(encode_request(ECHO, number, {}) for number in range(50)))
            await until(lambda: p.server.crowded)
            await until(lambda: len(p.server.connections) == 40)
            reader, writer = await raw(p.address)
            both = encode_request(ECHO, 1, {}) + encode_request(TYPED, 2, {"topic": "T", "queueId": "1"})
            for _ in range(200):
                await until(lambda: p.server.crowded)
                writer.write(both)
                refused, small = await read_frame(reader), await read_frame(reader)
                if refused.code:
                    break  # else the kernel's buffers grew, and took what was too much before
            assert refused.code == ResponseCode.SYSTEM_BUSY and not refused.body
            assert "maxUnsentBytes" in (refused.remark or "")
            assert small.opaque == 2  # short answers are sent
            assert p.server.unsent < 10_000_000  # one answer more, and what was refused
            for _, one in deaf:
                one.close()
            await until(lambda: not p.server.crowded)
            writer.write(encode_request(ECHO, 3, {}))
            assert len((await read_frame(reader)).body) == 1_000_000
            await until(lambda: p.server.unsent == 0)
            writer.close()

    run(main())


def test_a_promised_answer_is_sent_although_too_much_is_unsent() -> None:
    async def main() -> None:
        def answer(connection: Connection, request: Request) -> None:
            connection.respond(request, 0, body=bytes(1_000_000), promised=request.opaque == 2)

        async with pair({ECHO: answer}, limits=ServerLimits()) as p:
            reader, writer = await raw(p.address)
            p.server.crowded = True
            for opaque, size in [(1, 0), (2, 1_000_000)]:
                writer.write(encode_request(ECHO, opaque, {}))
                assert len((await read_frame(reader)).body) == size
            writer.close()

    run(main())


def test_who_reads_is_served_on_when_there_is_room_again() -> None:
    """A connection that stopped with requests unhandled while the server was crowded is not forgotten."""

    async def main() -> None:
        handlers = Handlers()
        # Less than 8 connections leave unsent whose peers do not read (a quarter of `outbound_high_water`).
        async with pair(handlers.table, limits=ServerLimits(max_unsent=1_500_000)) as p:
            readers = [await raw(p.address) for _ in range(8)]
            frames = b"".join(
                encode_request(ECHO, number, {}, 60_000) + bytes(60_000) for number in range(100)
            )
            for _, writer in readers:
                writer.write(frames)
            await until(lambda: p.server.crowded)
            for reader, _ in readers:
                for number in range(100):
                    assert (await read_frame(reader)).opaque == number
            await until(lambda: not p.server.crowded)
            for _, writer in readers:
                writer.close()

    run(main())


def test_too_much_unanswered_pauses_reading_until_it_is_answered() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table, limits=ServerLimits(max_inflight=200_000)) as p:
            reader, writer = await raw(p.address)
            frame = encode_request(LATER, 1, {}, 50_000) + bytes(50_000)
            for _ in range(100):
                writer.write(frame)
            await until(lambda: len(handlers.waiting) >= 4)
            await asyncio.sleep(0.05)
            assert len(handlers.waiting) < 20
            answered = 0
            while answered < 100:
                while handlers.waiting:
                    connection, request = handlers.waiting.pop()
                    connection.respond(request, 0)
                    answered += 1
                await asyncio.sleep(0)
            for _ in range(100):
                await read_frame(reader)
            writer.close()

    run(main())


def test_a_peer_that_never_reads_is_cut_off_at_the_limit() -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(outbound_high_water=1000, max_outbound=1_000_000)
        async with pair(handlers.table, limits=limits) as p:
            _, writer = await raw(p.address)
            writer.write(b"".join(encode_request(LATER, n, {}) for n in range(100)))
            await until(lambda: len(handlers.waiting) == 100)
            for connection, request in handlers.waiting:
                connection.respond(request, 0, body=bytes(500_000))
                await asyncio.sleep(0)
            await until(lambda: not p.server.connections)
            assert p.server.stats.errors == {"peer does not read its responses": 1}
            writer.close()

    run(main())


def test_an_answer_larger_than_a_frame_becomes_an_error() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table, limits=ServerLimits(max_frame_size=1000)) as p:
            call = asyncio.ensure_future(p.client.invoke(p.address, LATER))
            await until(lambda: len(handlers.waiting) == 1)
            connection, request = handlers.waiting[0]
            connection.respond(request, 0, body=[bytes(600), bytes(600)])
            response = await call
            assert (response.code, response.remark) == (1, "the response has 1200 bytes; the limit is 1000")

    run(main())


def test_the_peer_is_known_by_address_and_host_field() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as p:
            reader, writer = await raw(p.address)
            writer.write(encode_request(ECHO, 1, {}))
            await read_frame(reader)
            port = writer.get_extra_info("sockname")[1]
            (connection,) = handlers.connections
            assert connection.peer == f"127.0.0.1:{port}"
            assert connection.peer_host == bytes([127, 0, 0, 1]) + port.to_bytes(4, "big")
            writer.close()

    run(main())


def test_closing_tells_the_application_and_late_answers_are_dropped() -> None:
    async def main() -> None:
        handlers = Handlers()
        gone: list[Connection] = []
        async with pair(handlers.table, on_close=gone.append) as p:
            _, writer = await raw(p.address)
            writer.write(encode_request(LATER, 1, {}))
            await until(lambda: len(handlers.waiting) == 1)
            connection, request = handlers.waiting[0]
            connection.attributes["client"] = "c"
            writer.close()
            await until(lambda: connection.closed)
            assert gone == [connection]
            connection.respond(request, 0)
            connection.send_oneway(40, {})
            await asyncio.sleep(0)
            assert p.server.stats.responses == 0

    run(main())


def test_a_server_initiated_oneway_request_is_json() -> None:
    async def main() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as p:
            reader, writer = await raw(p.address)
            writer.write(encode_request(LATER, 1, {}, serialize=SerializeType.ROCKETMQ))
            await until(lambda: len(handlers.waiting) == 1)
            handlers.waiting[0][0].send_oneway(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"}, b"x"
            )
            notice = await read_frame(reader)
            assert notice.oneway and not notice.is_response
            assert notice.serialize is SerializeType.JSON
            assert (notice.code, notice.ext(), notice.body) == (40, {"consumerGroup": "CG"}, b"x")
            writer.close()

    run(main())


def test_a_port_in_use_is_named() -> None:
    async def main() -> None:
        async with pair() as p:
            env = production_env("test")
            second = RemotingServer(env, handlers={}, limits=ServerLimits(), name="s")
            host, port = p.server.addresses[0]
            with pytest.raises(OSError, match=f"cannot listen on {host}:{port}: .*in use"):
                await second.start(host, port)

    run(main())


def test_errors_of_one_cause_are_logged_once_and_counted() -> None:
    async def main() -> None:
        async with pair(Handlers().table) as p:
            lines: list[str] = []

            class Log:
                def warning(self, event: str, **fields: object) -> None:
                    lines.append(f"{event} {fields['count']} {'trace' in fields}")

            p.server._log = Log()  # type: ignore[assignment]
            for _ in range(12):
                await p.client.invoke(p.address, FAIL)
            cause = "handler of request code 3 failed: KeyError"
            assert lines == [f"{cause} 1 True", f"{cause} 10 True"]
            assert p.server.stats.errors == {cause: 12}

    run(main())


class Slow:
    """A handler of 1 ms, and in which turn of the loop each request reached it."""

    def __init__(self) -> None:
        self.turn = 0
        self.seen: list[tuple[int, int, int]] = []
        """(turn, connection, opaque)"""

    def handle(self, connection: Connection, request: Request) -> None:
        self.seen.append((self.turn, connection.serial, request.opaque))
        until_s = time.monotonic() + 0.001
        while time.monotonic() < until_s:
            pass
        connection.respond(request, 0)

    async def count(self, requests: int) -> None:
        """Turns, until so many have come."""
        while len(self.seen) < requests:
            self.turn += 1
            await asyncio.sleep(0)

    @property
    def most(self) -> int:
        """Requests in one turn."""
        return max(Counter(turn for turn, _, _ in self.seen).values())


@pytest.mark.parametrize(("connections", "each"), [(1, 40), (40, 1), (8, 8)])
def test_a_turn_of_the_loop_handles_requests_for_a_few_milliseconds(connections: int, each: int) -> None:
    async def test() -> None:
        slow = Slow()
        async with pair({ECHO: slow.handle}) as here:
            streams = [await raw(here.address) for _ in range(connections)]
            await until(lambda: len(here.server.connections) == connections)
            for _, writer in streams:
                writer.write(b"".join(encode_request(ECHO, n, None, 0) for n in range(each)))
            await slow.count(connections * each)
            assert slow.most <= TURN_S / 0.001 + 1
            assert here.server.stats.late > 0
            for serial in {serial for _, serial, _ in slow.seen}:
                assert [n for _, one, n in slow.seen if one == serial] == list(range(each))
            for reader, writer in streams:
                assert [(await read_frame(reader)).opaque for _ in range(each)] == list(range(each))
                writer.close()

    run(test())


def test_connections_that_wait_for_a_turn_take_turns() -> None:
    async def test() -> None:
        slow = Slow()
        async with pair({ECHO: slow.handle}) as here:
            _, greedy = await raw(here.address)
            reader, modest = await raw(here.address)
            greedy.write(b"".join(encode_request(ECHO, n, None, 0) for n in range(60)))
            await slow.count(1)
            modest.write(encode_request(ECHO, 7, None, 0))
            await slow.count(60)
            place = [serial for _, serial, _ in slow.seen].index(2)
            assert place < 40, "it did not wait for all requests of the other one"
            assert (await read_frame(reader)).opaque == 7
            greedy.close()
            modest.close()

    run(test())


def test_what_comes_while_a_read_waits_for_its_turn_does_not_spoil_it() -> None:
    """Not every transport stops at once when it is told to pause."""

    async def test() -> None:
        handlers = Handlers()
        async with pair(handlers.table) as here:
            server = here.server
            connection = Connection(server)
            taken: dict[str, Any] = {
                "get_extra_info": lambda name: None,
                "is_closing": lambda: False,
                "get_write_buffer_size": lambda: 0,
            }
            connection.connection_made(Mock(**taken))

            def read(data: bytes) -> None:
                connection.get_buffer(0)[: len(data)] = data
                connection.buffer_updated(len(data))

            while server.in_time():
                await hold()
            frames = [encode_request(ECHO, number, None, 0) for number in range(5)]
            read(frames[0] + frames[1][:7])
            read(frames[1][7:] + frames[2])
            read(frames[3][:3])
            read(frames[3][3:] + frames[4])
            assert handlers.seen == []
            await until(lambda: len(handlers.seen) == 5)
            assert handlers.seen == [0, 1, 2, 3, 4]
            connection.connection_lost(None)

    async def hold() -> None:
        """Use the time of this turn up, without an end of the turn."""
        time.sleep(0.006)  # noqa: ASYNC251

    run(test())


def test_a_bad_frame_behind_requests_that_wait_closes_the_connection_after_them() -> None:
    async def test() -> None:
        slow = Slow()
        async with pair({ECHO: slow.handle}) as here:
            reader, writer = await raw(here.address)
            frames = [encode_request(ECHO, number, None, 0) for number in range(12)]
            writer.write(b"".join(frames) + b"\xff" * 64)
            for number in range(12):
                assert (await read_frame(reader)).opaque == number
            assert await closed(reader)
            writer.close()

    run(test())
