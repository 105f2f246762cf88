"""etcd: to send a message, a new key is put. etcd acknowledges it once a majority has it on disk. A batch
is one transaction of such puts."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from dledger.bench.compare import http2
from dledger.bench.compare.system import (
    BATCH,
    FSYNC,
    START_LIMIT_S,
    CompareError,
    Done,
    Nodes,
    Started,
    reachable,
)

PROGRAM = "etcd"
HOST = "127.0.0.1"
WINDOW_SIZE = 1 << 30
SUCCESS, REQUEST_PUT = b"\x12", b"\x12"
"""Protobuf tags of two fields: in a transaction, an operation that is run if the transaction's conditions
hold; in an operation, a put."""
MAX_REQUEST_BYTES = 4 << 20
"""Limit, in bytes, of a request. The servers are started with this limit, because their default allows
little more than 1 MiB."""


class Etcd(Started):
    """A group of etcd servers. The program `etcd` must be in the PATH. Each node uses two ports; the
    lowest port is `base`."""

    name = "etcd"
    durability = FSYNC
    batch = "a transaction of 32 puts"

    @property
    def version(self) -> str:
        """The version that `etcd --version` prints."""
        said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        return said.split()[2]

    def start(self, directory: Path) -> None:
        """Start the nodes, as `System.start` explains."""
        self._nodes = nodes = Nodes(directory)
        peers = [f"http://{HOST}:{self._base + self._members + number}" for number in range(self._members)]
        members = ",".join(f"n{number}={url}" for number, url in enumerate(peers))
        for number, peer in enumerate(peers):
            own = f"http://{HOST}:{self._base + number}"
            options = {
                "name": f"n{number}",
                "data-dir": str(directory / f"n{number}"),
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "listen-client-urls": own,
                "advertise-client-urls": own,
                "initial-cluster": members,
                "quota-backend-bytes": str(8 << 30),
                "max-request-bytes": str(MAX_REQUEST_BYTES),
                "log-level": "error",
            }
            command = [PROGRAM, *(f"--{name}={value}" for name, value in options.items())]
            nodes.start(f"n{number}", command)
        asyncio.run(self._ready())

    async def connect(self, size: int) -> _Sender:
        """Connect a sender, as `System.connect` explains."""
        port = self._base + await self._leader()
        loop = asyncio.get_running_loop()
        _, sender = await loop.create_connection(lambda: _Sender(HOST, port, b"x" * size), HOST, port)
        return sender

    async def _ready(self) -> None:
        for number in range(self._members):
            await reachable(HOST, self._base + number, START_LIMIT_S)
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while True:
            try:
                await self._leader()
                return
            except (CompareError, OSError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise CompareError(f"{self.name}: no leader: {error}") from error
                await asyncio.sleep(0.5)

    async def _leader(self) -> int:
        for number in range(self._members):
            status = await asyncio.to_thread(self._status, number)
            if status["header"]["member_id"] == status.get("leader"):
                return number
        raise CompareError("no member reports that it leads")

    def _status(self, number: int) -> dict[str, Any]:
        url = f"http://{HOST}:{self._base + number}/v3/maintenance/status"
        with urlopen(Request(url, data=b"{}", method="POST"), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def _headers(host: str, port: int, method: bytes) -> bytes:
    return b"".join(
        http2.text(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/etcdserverpb.KV/" + method),
            (b":authority", f"{host}:{port}".encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )


class _Sender(asyncio.Protocol):
    """Sends puts by gRPC, which is encoded by hand. Each request has its own HTTP/2 stream. An answer has
    a body only if the request succeeded."""

    def __init__(self, host: str, port: int, body: bytes) -> None:
        self._put_headers = _headers(host, port, b"Put")
        self._txn_headers = _headers(host, port, b"Txn")
        self._value = _field(b"\x12", body)
        self._stream = -1
        self._key = 0
        self._waiting: dict[int, Done] = {}
        self._answered: set[int] = set()
        self._flow = http2.Flow(self._put)
        self._out: list[bytes] = []
        self._data = b""
        self._taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the HTTP/2 preface, and set a flow-control window that is too large to become full."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        wanted = struct.pack(">HIHI", http2.MAX_STREAMS, 1 << 20, http2.INITIAL_WINDOW, WINDOW_SIZE)
        room = struct.pack(">I", WINDOW_SIZE - http2.FIRST_WINDOW)
        transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + http2.frame(http2.SETTINGS, 0, 0, wanted)
            + http2.frame(http2.WINDOW, 0, 0, room)
        )

    def send(self, done: Done) -> None:
        """Send one message, as `Sender.send` explains."""
        self._ask(self._put_headers, self._new_put(), done)

    def send_batch(self, done: Done) -> None:
        """Send a batch, as `Sender.send_batch` explains."""
        puts = [_field(SUCCESS, _field(REQUEST_PUT, self._new_put())) for _ in range(BATCH)]
        self._ask(self._txn_headers, b"".join(puts), done)

    def _new_put(self) -> bytes:
        """Return an encoded PutRequest with a new key."""
        self._key += 1
        return b"\x0a\x11m%016d" % self._key + self._value

    def _ask(self, headers: bytes, message: bytes, done: Done) -> None:
        self._stream = stream = self._stream + 2
        self._waiting[stream] = done
        self._put(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, headers))
        self._flow.send(stream, b"\x00" + struct.pack(">I", len(message)) + message)

    def _put(self, frame: bytes) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        """Read answers, and the other HTTP/2 frames between them."""
        self._taken += len(data)
        if self._taken > WINDOW_SIZE // 2:
            room = struct.pack(">I", self._taken)
            self._transport.write(http2.frame(http2.WINDOW, 0, 0, room))
            self._taken = 0
        data = self._data + data
        at, end = 0, len(data)
        while end - at >= http2.FRAME_HEAD:
            kind, flags, stream, stop = http2.head(data, at)
            if stop > end:
                break
            self._take(kind, flags, stream, data[at + http2.FRAME_HEAD : stop])
            at = stop
        self._data = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.DATA:
            self._answered.add(stream)
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            found = http2.settings(payload)
            if http2.INITIAL_WINDOW in found:
                self._flow.begin_with(found[http2.INITIAL_WINDOW])
            self._transport.write(http2.frame(http2.SETTINGS, http2.ACK, 0, b""))
        elif kind == http2.PING and not flags & http2.ACK:
            self._transport.write(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.WINDOW:
            self._flow.more(stream, struct.unpack(">I", payload)[0])
        elif kind == http2.GOAWAY:
            self._transport.close()
        if kind == http2.RST or (kind in (http2.HEADERS, http2.DATA) and flags & http2.END_STREAM):
            ok = stream in self._answered
            self._answered.discard(stream)
            self._flow.forget(stream)
            self._waiting.pop(stream)(ok)

    async def close(self) -> None:
        """Close the connection."""
        self._transport.close()


def _field(tag: bytes, value: bytes) -> bytes:
    """Encode a length-delimited field of protobuf."""
    return tag + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
