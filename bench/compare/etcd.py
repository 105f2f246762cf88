"""etcd: each message is a put of a new key, which is stored once a majority has it on disk."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from dledger.bench.compare.system import (
    FSYNC,
    NODES,
    START_LIMIT_S,
    CompareError,
    Done,
    Nodes,
    Started,
    reachable,
)

PROGRAM = "etcd"
HOST = "127.0.0.1"
_FRAME = struct.Struct(">BHBBI")
"""HTTP/2: length (24 bits in two fields), type, flags, stream."""
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW_SIZE = 1 << 30


class Etcd(Started):
    """`etcd` from the PATH. Ports: `base` and the five after it."""

    name = "etcd"
    durability = FSYNC

    @property
    def version(self) -> str:
        """As `etcd --version` says."""
        said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        return said.split()[2]

    def start(self, directory: Path) -> None:
        """See `System`."""
        self._nodes = nodes = Nodes(directory)
        peers = [f"http://{HOST}:{self._base + NODES + number}" for number in range(NODES)]
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
                "log-level": "error",
            }
            command = [PROGRAM, *(f"--{name}={value}" for name, value in options.items())]
            nodes.start(f"n{number}", command)
        asyncio.run(self._ready())

    async def connect(self, size: int) -> _Sender:
        """See `System`."""
        port = self._base + await self._leader()
        loop = asyncio.get_running_loop()
        _, sender = await loop.create_connection(lambda: _Sender(HOST, port, b"x" * size), HOST, port)
        return sender

    async def _ready(self) -> None:
        for number in range(NODES):
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
        for number in range(NODES):
            status = await asyncio.to_thread(self._status, number)
            if status["header"]["member_id"] == status.get("leader"):
                return number
        raise CompareError("nobody says that it leads")

    def _status(self, number: int) -> dict[str, Any]:
        url = f"http://{HOST}:{self._base + number}/v3/maintenance/status"
        with urlopen(Request(url, data=b"{}", method="POST"), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def _text(name: bytes, value: bytes) -> bytes:
    """A header field that no table keeps (RFC 7541, 6.2.2)."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


class _Sender(asyncio.Protocol):
    """gRPC by hand: a stream for each put, whose answer has a body exactly when it worked."""

    def __init__(self, host: str, port: int, body: bytes) -> None:
        self._headers = b"".join(
            _text(name, value)
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", b"/etcdserverpb.KV/Put"),
                (b":authority", f"{host}:{port}".encode()),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        self._value = b"\x12" + _varint(len(body)) + body
        self._stream = -1
        self._waiting: dict[int, Done] = {}
        self._answered: set[int] = set()
        self._window = 65_535
        self._held: list[bytes] = []
        self._out: list[bytes] = []
        self._data = b""
        self._taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The preface; a window that is never full."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = struct.pack(">HIHI", 3, 1 << 20, 4, WINDOW_SIZE)
        transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(SETTINGS, 0, 0, settings)
            + _frame(WINDOW, 0, 0, struct.pack(">I", WINDOW_SIZE - 65_535))
        )

    def send(self, done: Done) -> None:
        """See `Sender`."""
        self._stream = stream = self._stream + 2
        self._waiting[stream] = done
        key = b"m%016d" % stream
        message = b"\x0a%c%b%b" % (len(key), key, self._value)
        data = _frame(DATA, END_STREAM, stream, b"\x00" + struct.pack(">I", len(message)) + message)
        self._put(_frame(HEADERS, END_HEADERS, stream, self._headers))
        if self._held or len(data) - 9 > self._window:
            self._held.append(data)
        else:
            self._window -= len(data) - 9
            self._put(data)

    def _put(self, frame: bytes) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        """Answers, and what HTTP/2 has to say besides."""
        self._taken += len(data)
        if self._taken > WINDOW_SIZE // 2:
            self._transport.write(_frame(WINDOW, 0, 0, struct.pack(">I", self._taken)))
            self._taken = 0
        data = self._data + data
        at, end = 0, len(data)
        while end - at >= 9:
            high, low, kind, flags, stream = struct.unpack_from(">BHBBI", data, at)
            stop = at + 9 + (high << 16 | low)
            if stop > end:
                break
            self._take(kind, flags, stream & 0x7FFFFFFF, data[at + 9 : stop])
            at = stop
        self._data = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._answered.add(stream)
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._transport.write(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW and stream == 0:
            self._window += struct.unpack(">I", payload)[0]
            while self._held and len(self._held[0]) - 9 <= self._window:
                held = self._held.pop(0)
                self._window -= len(held) - 9
                self._put(held)
        elif kind == GOAWAY:
            self._transport.close()
        if kind == RST or (kind in (HEADERS, DATA) and flags & END_STREAM):
            ok = stream in self._answered
            self._answered.discard(stream)
            self._waiting.pop(stream)(ok)

    async def close(self) -> None:
        """See `Sender`."""
        self._transport.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
