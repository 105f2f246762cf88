"""Bulk on a connection between peers: cut into pieces, put together, in order, and behind everything else."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from functools import partial

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.messages import Append, Heartbeat
from dledger.peers.links import PeerConnection
from dledger.peers.outbox import PIECE_BYTES, Outbox, Reassembly
from dledger.peers.wire import (
    PIECE,
    Frame,
    WireError,
    decode_frame,
    decode_message,
    encode_frame,
    encode_message,
)
from dledger.protocol import PROTOCOL_WITH_PIECES

LIMIT = 16 * 1024 * 1024


def push(number: int, size: int) -> Append:
    return Append(1, "n0", number - 1, 1, number, number, 4096 * number, -1, bytes([number % 256]) * size)


@given(st.lists(st.sampled_from([0, 1, 4096, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 7]), max_size=6))
def test_what_is_cut_is_put_together_in_order(sizes: list[int]) -> None:
    outbox, inbox = Outbox(), Reassembly()
    pushes = [push(number, size) for number, size in enumerate(sizes)]
    total = 0
    for message in pushes:
        parts = encode_message(message)
        total += sum(map(len, parts))
        outbox.add(parts)
    arrived = []
    while outbox.bytes:
        before = outbox.bytes
        parts = outbox.take(pieces=True)
        frame = decode_frame(memoryview(b"".join(parts)))
        written = len(frame.payload) if frame.number == PIECE else sum(map(len, parts))
        assert before - outbox.bytes == written <= PIECE_BYTES
        total -= written
        whole = inbox.add(frame, LIMIT) if frame.number == PIECE else frame
        if whole is not None:
            arrived.append(decode_message(whole))
    assert arrived == pushes and total == 0
    assert not outbox.take(pieces=True)


def test_for_who_knows_no_pieces_frames_stay_whole() -> None:
    outbox = Outbox()
    outbox.add(encode_message(push(1, 5 * PIECE_BYTES)))
    (data,) = outbox.take(pieces=False)
    assert decode_message(decode_frame(memoryview(data))) == push(1, 5 * PIECE_BYTES)
    assert outbox.bytes == 0


def test_what_was_begun_is_not_forgotten() -> None:
    outbox, inbox = Outbox(), Reassembly()
    for number in range(3):
        outbox.add(encode_message(push(number, 2 * PIECE_BYTES)))
    pieces = [outbox.take(pieces=True)]
    outbox.forget()
    while parts := outbox.take(pieces=True):
        pieces.append(parts)
    wholes = [inbox.add(decode_frame(memoryview(b"".join(parts))), LIMIT) for parts in pieces]
    assert [decode_message(whole) for whole in wholes if whole is not None] == [push(0, 2 * PIECE_BYTES)]
    outbox.add(encode_message(push(3, 0)))
    outbox.forget()
    assert outbox.bytes == 0 and not outbox.take(pieces=True)


def piece(header: object, payload: bytes = b"x") -> Frame:
    return Frame(PIECE, memoryview(msgpack.packb(header)), memoryview(payload))


@pytest.mark.parametrize(
    "wrong",
    [
        piece([100, 1]),
        piece([0, 0]),
        piece([LIMIT + 1, 0]),
        piece([(1 << 64) - 1, 0]),
        piece([-1, 0]),
        piece([1, 0], b"xx"),
        piece([100, 0], b""),
        piece([100, 0.0]),
        piece([100]),
        piece([100, 0, 0]),
        piece("text"),
        piece({"total": 100}),
        piece(None),
        piece([20, 0], b"x" * 20),
        piece([4, 0], b"\0\0\0\0"),
        piece([3, 0], b"xxx"),
        piece([len(data := encode_frame(PIECE, [1, 0], 1) + b"x"), 0], data),
    ],
)
def test_pieces_of_nothing_are_refused(wrong: Frame) -> None:
    with pytest.raises(WireError):
        Reassembly().add(wrong, LIMIT)


def test_a_piece_must_follow_the_one_before() -> None:
    data = b"".join(encode_message(push(1, 100)))
    for start, rest in ((39, data[39:]), (41, data[41:]), (0, data)):
        inbox = Reassembly()
        assert inbox.add(piece([len(data), 0], data[:40]), LIMIT) is None
        with pytest.raises(WireError):
            inbox.add(piece([len(data), start], rest), LIMIT)


class NarrowTransport(asyncio.Transport):
    """Takes what it is given and sends nothing until it is told to, as behind a link that is full."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.waiting = 0
        self.high = 0
        self.connection: PeerConnection | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        before = self.waiting
        self.written += data
        self.waiting += len(data)
        assert self.connection is not None
        if before <= self.high < self.waiting:
            self.connection.pause_writing()

    def writelines(self, list_of_data: object) -> None:
        self.write(b"".join(list_of_data))  # type: ignore[call-overload]

    def get_write_buffer_size(self) -> int:
        return self.waiting

    async def drain(self) -> None:
        self.waiting = 0
        assert self.connection is not None
        self.connection.resume_writing()
        await asyncio.sleep(0)

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def frames(self) -> list[Frame]:
        frames = []
        data = memoryview(bytes(self.written))
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            frames.append(decode_frame(data[:size]))
            data = data[size:]
        return frames


def narrow() -> tuple[PeerConnection, NarrowTransport]:
    """A connection that knows pieces, on such a transport."""
    connection, transport = PeerConnection(lambda *_: None, lambda _: None, LIMIT), NarrowTransport()
    transport.connection = connection
    connection.connection_made(transport)
    connection.version = PROTOCOL_WITH_PIECES
    return connection, transport


def test_a_heartbeat_waits_for_no_more_than_what_the_transport_holds() -> None:
    async def scenario() -> None:
        connection, transport = narrow()
        entries = [push(number, 1_000_000) for number in range(4)]
        for message in entries:
            connection.send_bulk(encode_message(message))
        assert connection.backlog >= 4_000_000, "what waits is counted"
        assert transport.waiting <= transport.high + PIECE_BYTES + 100
        before = len(transport.written)
        connection.send(encode_message(Heartbeat(1, "n0", 7)))
        assert len(transport.written) - before < 100, "written at once"
        connection.send_bulk(encode_message(push(4, 10)))
        for _ in range(200):
            await transport.drain()
        assert connection.backlog == 0
        inbox = Reassembly()
        arrived = []
        for frame in transport.frames():
            whole = inbox.add(frame, LIMIT) if frame.number == PIECE else frame
            if whole is not None:
                arrived.append(decode_message(whole))
        assert arrived == [Heartbeat(1, "n0", 7), *entries, push(4, 10)]

    asyncio.run(scenario())


def test_a_connection_that_closes_sends_no_bulk_any_more() -> None:
    async def scenario() -> None:
        connection, transport = narrow()
        connection.send_bulk(encode_message(push(1, 1_000_000)))
        connection.close("done")
        before = len(transport.written)
        await transport.drain()
        connection.send_bulk(encode_message(push(2, 1_000_000)))
        assert len(transport.written) == before

    asyncio.run(scenario())


class SlowReader:
    """Takes frames at `rate` bytes a second, and notes where among them each heartbeat came."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.taken = 0
        """Bytes."""
        self.came: dict[int, int] = {}
        """Heartbeat -> bytes that were taken when it came."""

    def read(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        data, inbox, began = bytearray(), Reassembly(), time.monotonic()
        with connection:
            while chunk := connection.recv(8192):
                data += chunk
                self.taken += len(chunk)
                self.look(data, inbox)
                time.sleep(max(0.0, began + self.taken / self.rate - time.monotonic()))

    def look(self, data: bytearray, inbox: Reassembly) -> None:
        while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
            frame: Frame | None = decode_frame(memoryview(bytes(data[:size])))
            del data[:size]
            if frame is not None and frame.number == PIECE:
                frame = inbox.add(frame, LIMIT)
            message = None if frame is None else decode_message(frame)
            if isinstance(message, Heartbeat):
                self.came[message.round] = self.taken


def test_a_real_kernel_takes_little_ahead_of_a_narrow_link() -> None:
    reader = SlowReader(2.5e6)
    sent: list[int] = []
    """Bytes that were taken when each heartbeat was handed over."""

    async def scenario(port: int) -> None:
        loop = asyncio.get_running_loop()
        make = partial(PeerConnection, lambda *_: None, lambda _: None, LIMIT)
        _, connection = await loop.create_connection(make, "127.0.0.1", port)
        connection.version = PROTOCOL_WITH_PIECES
        for number in range(4):
            connection.send_bulk(encode_message(push(number, 1_000_000)))
        while connection.backlog:
            connection.send(encode_message(Heartbeat(1, "n0", len(sent))))
            sent.append(reader.taken)
            await asyncio.sleep(0.05)
        connection.close()
        await connection.lost

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        thread = threading.Thread(target=reader.read, args=(listener,), daemon=True)
        thread.start()
        asyncio.run(asyncio.wait_for(scenario(listener.getsockname()[1]), 60))
        thread.join(60)
    assert sent and len(reader.came) == len(sent)
    behind = max(reader.came[number] - taken for number, taken in enumerate(sent))
    assert behind < 400_000, "of 4 MB, of which the kernel would have taken most"


def test_a_peer_that_resets_under_bulk_ends_the_connection_once() -> None:
    """A write within the transport's own writing would find the reset there, and end it twice."""

    def reset(listener: socket.socket) -> None:
        for number in range(30):
            connection, _ = listener.accept()
            with connection:
                until = time.monotonic() + 0.004 + 0.0005 * number
                while time.monotonic() < until:
                    connection.recv(1 << 16)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    contexts: list[dict[str, object]] = []

    async def scenario(port: int) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        data = encode_message(push(1, 1_000_000))
        for _ in range(30):
            make = partial(PeerConnection, lambda *_: None, lambda _: None, LIMIT)
            _, connection = await loop.create_connection(make, "127.0.0.1", port)
            connection.version = PROTOCOL_WITH_PIECES
            while not connection.lost.done():
                for _ in range(8 if connection.backlog < 8_000_000 else 0):
                    connection.send_bulk(data)
                await asyncio.sleep(0)
            assert connection.error, "the reason is told"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = threading.Thread(target=reset, args=(listener,), daemon=True)
        peer.start()
        asyncio.run(asyncio.wait_for(scenario(listener.getsockname()[1]), 60))
        peer.join(60)
    assert not contexts
