"""NATS JetStream: a stream whose three replicas are kept in files. By default `nats-server` syncs the
files every two minutes, so its class of durability is PAGE_CACHE."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from dledger.bench.compare.system import (
    PAGE_CACHE,
    START_LIMIT_S,
    CompareError,
    Done,
    Nodes,
    Started,
    one_by_one,
    reachable,
)

PROGRAM = "nats-server"
STREAM, SUBJECT, INBOX = "BENCH", "bench.m", "_INBOX.bench"
HOST = "127.0.0.1"


class NatsStream(Started):
    """A group of NATS servers. The program `nats-server` must be in the PATH. Each node uses two ports;
    the lowest port is `base`."""

    name = "NATS JetStream"
    durability = PAGE_CACHE
    batch = "32 publishes"

    @property
    def version(self) -> str:
        """The version that `nats-server --version` prints."""
        said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        return said.strip().rpartition("v")[2]

    def start(self, directory: Path) -> None:
        """Start the nodes, as `System.start` explains."""
        self._nodes = nodes = Nodes(directory)
        routes = ",".join(
            f"nats://{HOST}:{self._base + self._members + number}" for number in range(self._members)
        )
        for number in range(self._members):
            conf = directory / f"n{number}.conf"
            conf.write_text(
                f'server_name: n{number}\nlisten: "{HOST}:{self._base + number}"\n'
                f'jetstream {{ store_dir: "{directory}/n{number}" }}\n'
                f'cluster {{ name: bench, listen: "{HOST}:{self._base + self._members + number}",'
                f" routes: [{routes}] }}\n"
            )
            nodes.start(f"n{number}", [PROGRAM, "-c", str(conf)])
        asyncio.run(self._make_stream())

    async def connect(self, size: int) -> _Sender:
        """Connect a sender, as `System.connect` explains."""
        leader = (await self._ask(0, "STREAM.INFO", {}))["cluster"]["leader"]
        return await _connect(self._base + int(leader[1:]), size)

    async def _make_stream(self) -> None:
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        for number in range(self._members):
            await reachable(HOST, self._base + number, START_LIMIT_S)
        wanted = {
            "name": STREAM,
            "subjects": [SUBJECT],
            "num_replicas": self._members,
            "storage": "file",
            "retention": "limits",
        }
        while True:
            found = await self._ask(0, "STREAM.CREATE", wanted)
            if "error" not in found and found.get("cluster", {}).get("leader"):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise CompareError(f"{self.name}: no stream: {found}")
            await asyncio.sleep(0.5)

    async def _ask(self, number: int, what: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        sender = await _connect(self._base + number, 0)
        try:
            text = json.dumps(body).encode() if body else b""
            answer = await asyncio.wait_for(sender.ask(f"$JS.API.{what}.{STREAM}", text), 5.0)
            found: dict[str, dict[str, str]] = json.loads(answer)
            return found
        except TimeoutError:
            return {"error": {"description": "no answer"}}
        finally:
            await sender.close()


async def _connect(port: int, size: int) -> _Sender:
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_connection(lambda: _Sender(b"x" * size), HOST, port)
    return sender


class _Sender(asyncio.Protocol):
    """Publishes messages, each with a number in its reply subject. An answer on that subject reports that
    the message is stored."""

    def __init__(self, body: bytes) -> None:
        self._tail = b" %d\r\n%b\r\n" % (len(body), body)
        self._next = 0
        self._waiting: dict[int, Done] = {}
        self._asked: asyncio.Future[bytes] | None = None
        self._out: list[bytes] = []
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this client, and subscribe to the answers."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b.* 1\r\n' % INBOX.encode())

    def send(self, done: Done) -> None:
        """Send one message, as `Sender.send` explains."""
        self._next = number = self._next + 1
        self._waiting[number] = done
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(b"PUB %b %b.%d" % (SUBJECT.encode(), INBOX.encode(), number) + self._tail)

    def send_batch(self, done: Done) -> None:
        """Send a batch, as `Sender.send_batch` explains."""
        one_by_one(self.send, done)

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Send one request of the API and return the answer."""
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"PUB %b %b.ask %d\r\n%b\r\n" % (subject.encode(), INBOX.encode(), len(body), body)
        )
        return await self._asked

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        """Read the answers that arrive."""
        data = self._data + data
        at = 0
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            line = data[at:end]
            if line.startswith(b"MSG "):
                parts = line.split()
                stop = end + 2 + int(parts[-1]) + 2
                if stop > len(data):
                    break
                self._told(parts[1].rpartition(b".")[2], data[end + 2 : stop - 2])
                at = stop
                continue
            if line == b"PING":
                self._transport.write(b"PONG\r\n")
            at = end + 2
        self._data = data[at:]

    def _told(self, name: bytes, body: bytes) -> None:
        if name == b"ask":
            if self._asked is not None and not self._asked.done():
                self._asked.set_result(body)
        else:
            self._waiting.pop(int(name))(b'"seq"' in body)

    async def close(self) -> None:
        """Close the connection."""
        self._transport.close()
