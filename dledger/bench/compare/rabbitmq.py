"""RabbitMQ, which is measured in two ways.

With a quorum queue, RabbitMQ confirms a message once a majority of nodes has it on disk (class FSYNC).
Messages are published by AMQP 0.9.1 with publisher confirms. With a stream, RabbitMQ leaves syncing to the
operating system (class PAGE_CACHE). Messages are published by RabbitMQ's own protocol for streams.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
from pathlib import Path

from dledger.bench.compare.publishing import Publishing
from dledger.bench.compare.streams import MAX_STREAM_FRAME, stream_sender
from dledger.bench.compare.system import (
    FSYNC,
    PAGE_CACHE,
    START_LIMIT_S,
    CompareError,
    Done,
    Nodes,
    Sender,
    Started,
    one_by_one,
    reachable,
)

PROGRAMS = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/rabbitmq/sbin")
"""Directories that may hold RabbitMQ's own scripts. The scripts of Linux distributions are not used,
because they only run as a special user."""
HOST = "127.0.0.1"
QUEUE = "bench"
METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = b"\xce"
MAX_FRAME = 131_072
COOKIE = "dledgerbench"


class RabbitMq(Started):
    """A group of RabbitMQ servers with either a quorum queue or a stream, as `kind` says.

    Each node uses three ports, and the group one more; the lowest port is `base`.
    """

    def __init__(self, kind: str, base: int, nodes: int) -> None:
        self.name = {"quorum": "RabbitMQ quorum queue", "stream": "RabbitMQ stream"}[kind]
        self.durability = FSYNC if kind == "quorum" else PAGE_CACHE
        self.batch = {"quorum": "32 publishes", "stream": "one Publish frame"}[kind]
        super().__init__(base, nodes)
        self._stream = kind == "stream"
        self._environments: list[dict[str, str]] = []

    @property
    def version(self) -> str:
        """The version that RabbitMQ's `rabbitmqctl version` prints."""
        said = subprocess.run(
            [_program("rabbitmqctl"), "version"], capture_output=True, text=True, check=False
        )
        return said.stdout.strip()

    def start(self, directory: Path) -> None:
        """Start the nodes, as `System.start` explains."""
        self._nodes = nodes = Nodes(directory)
        home = directory / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        (directory / "plugins").write_text("[rabbitmq_stream].\n" if self._stream else "[].\n")
        names = [f"bench{number}@localhost" for number in range(self._members)]
        discovery = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}\n"
            for number, name in enumerate(names, 1)
        )
        (directory / "advanced.config").write_text("[].\n")
        for number, name in enumerate(names):
            conf = directory / f"n{number}.conf"
            conf.write_text(
                f"listeners.tcp.1 = {HOST}:{self._base + number}\nloopback_users = none\n"
                f"{self._stream_settings(number)}"
                "cluster_formation.peer_discovery_backend = classic_config\n" + discovery
            )
            environment = {
                "HOME": str(home),
                "RABBITMQ_NODENAME": name,
                "RABBITMQ_DIST_PORT": str(self._base + self._members + number),
                "RABBITMQ_CONFIG_FILE": str(conf),
                "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
                "RABBITMQ_MNESIA_BASE": str(directory / f"data{number}"),
                "RABBITMQ_LOG_BASE": str(directory / f"log{number}"),
                "RABBITMQ_PID_FILE": str(directory / f"n{number}.rabbit.pid"),
                "ERL_EPMD_PORT": str(self._base + 2 * self._members),
                "ERL_EPMD_ADDRESS": HOST,
            }
            self._environments.append(environment)
            nodes.start(f"n{number}", [_program("rabbitmq-server")], environment)
        asyncio.run(self._ready())

    def stop(self) -> None:
        """End all processes, as `System.stop` explains."""
        try:
            for environment in self._environments:
                self._control(environment, "shutdown")
        finally:
            super().stop()
            self._end_epmd()

    def _end_epmd(self) -> None:
        port = str(self._base + 2 * self._members)
        epmd = shutil.which("epmd")
        if epmd is not None:
            subprocess.run([epmd, "-port", port, "-kill"], capture_output=True, check=False)

    async def connect(self, size: int) -> Sender:
        """Connect a sender to the first node, as `System.connect` explains. This node created the queue,
        and therefore leads it."""
        if self._stream:
            return await stream_sender(HOST, self._stream_port(0), b"x" * size, self._members)
        loop = asyncio.get_running_loop()
        _, sender = await loop.create_connection(lambda: _Sender(b"x" * size), HOST, self._base)
        await sender.open(self._members)
        return sender

    def _stream_port(self, number: int) -> int:
        return self._base + 2 * self._members + 1 + number

    def _stream_settings(self, number: int) -> str:
        if not self._stream:
            return ""
        return (
            f"stream.listeners.tcp.1 = {HOST}:{self._stream_port(number)}\n"
            f"stream.frame_max = {MAX_STREAM_FRAME}\n"
        )

    def _control(self, environment: dict[str, str], *command: str) -> str:
        done = subprocess.run(
            [_program("rabbitmqctl"), *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
            timeout=60,
        )
        return done.stdout

    async def _ready(self) -> None:
        for number in range(self._members):
            await reachable(HOST, self._base + number, START_LIMIT_S)
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while True:
            said = await asyncio.to_thread(
                self._control, self._environments[0], "--formatter", "json", "cluster_status"
            )
            running = said.partition('"running_nodes":[')[2].partition("]")[0]
            if running.count("bench") == self._members:
                return
            if asyncio.get_running_loop().time() > deadline:
                assert self._nodes is not None
                raise CompareError(
                    f"{self.name}: no cluster of {self._members}: {said[-300:]}{self._nodes.output()}"
                )
            await asyncio.sleep(1.0)


def _program(name: str) -> str:
    for directory in PROGRAMS:
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise CompareError(f"{name} is not installed")
    return found


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def _method(channel: int, kind: int, number: int, arguments: bytes) -> bytes:
    return _frame(METHOD, channel, struct.pack(">HH", kind, number) + arguments)


class _Sender(Publishing):
    """One AMQP channel in confirm mode: RabbitMQ confirms each published message."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        parts = [body[at : at + MAX_FRAME - 8] for at in range(0, len(body), MAX_FRAME - 8)]
        self._publish = (
            _method(1, 60, 40, struct.pack(">H", 0) + _short(b"") + _short(QUEUE.encode()) + b"\x00")
            + _frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2))
            + b"".join(_frame(BODY, 1, part) for part in parts)
        )
        self._tag = 0
        self._lowest = 1
        self._expected: tuple[int, int] = (0, 0)

    async def open(self, members: int) -> None:
        """Sign in, open a channel, declare the queue, and switch confirms on."""
        await self._exchange(b"AMQP\x00\x00\x09\x01", (10, 10))
        answer = _long(b"") + _short(b"PLAIN") + _long(b"\x00guest\x00guest") + _short(b"en_US")
        await self._exchange(_method(0, 10, 11, answer), (10, 30))
        tune = _method(0, 10, 31, struct.pack(">HIH", 16, MAX_FRAME, 0))
        await self._exchange(tune + _method(0, 10, 40, _short(b"/") + _short(b"") + b"\x00"), (10, 41))
        await self._exchange(_method(1, 20, 10, _short(b"")), (20, 11))
        arguments = _long(
            _short(b"x-queue-type")
            + b"S"
            + _long(b"quorum")
            + _short(b"x-quorum-initial-group-size")
            + b"I"
            + struct.pack(">i", members)
        )
        declare = struct.pack(">H", 0) + _short(QUEUE.encode()) + b"\x02" + arguments
        await self._exchange(_method(1, 50, 10, declare), (50, 11))
        await self._exchange(_method(1, 85, 10, b"\x00"), (85, 11))

    async def _exchange(self, data: bytes, expected: tuple[int, int]) -> None:
        self._come = asyncio.get_running_loop().create_future()
        self._expected = expected
        self._transport.write(data)
        await asyncio.wait_for(self._come, 30.0)

    def send(self, done: Done) -> None:
        """Send one message, as `Sender.send` explains."""
        self._tag = tag = self._tag + 1
        self._waiting[tag] = done
        self._put(self._publish)

    def send_batch(self, done: Done) -> None:
        """Send a batch, as `Sender.send_batch` explains."""
        one_by_one(self.send, done)

    def data_received(self, data: bytes) -> None:
        """Read the methods that the server sends. A client that only publishes receives nothing else."""
        data = self._data + data
        at, end = 0, len(data)
        while end - at >= 7:
            kind, _, size = struct.unpack_from(">BHI", data, at)
            stop = at + 8 + size
            if stop > end:
                break
            if kind == METHOD:
                self._take(struct.unpack_from(">HH", data, at + 7), data[at + 11 : stop - 1])
            at = stop
        self._data = data[at:]

    def _take(self, method: tuple[int, ...], arguments: bytes) -> None:
        if method in ((60, 80), (60, 120)):
            tag, bits = struct.unpack_from(">QB", arguments)
            self._told(tag, bool(bits & 1), method == (60, 80))
        elif method == self._expected and self._come is not None and not self._come.done():
            self._come.set_result(None)
        elif method in ((10, 50), (20, 40)):
            self.lost = arguments[3:].decode(errors="replace")
            self._transport.close()

    def _told(self, tag: int, multiple: bool, ok: bool) -> None:
        if multiple:
            for one in range(self._lowest, tag):
                done = self._waiting.pop(one, None)
                if done is not None:
                    done(ok)
            self._lowest = tag
        self._waiting.pop(tag)(ok)

    async def close(self) -> None:
        """Close the connection."""
        self._transport.close()
