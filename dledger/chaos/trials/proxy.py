"""A network without root: every connection between the hosts of a trial goes through this proxy.

Each host has a loopback address of its own, at which others find it. There the proxy listens, and connects to
the process behind, which listens at 127.0.0.1 at the same port. Which host has opened a connection is known
from the system's table of sockets, so the proxy needs to know no protocol.

Two things differ from a real network. A connection to a process that does not run is accepted and then reset,
not refused; our nodes take a refusal as a hint that the process is gone, so failovers take longer here. And a
new connection over a link that is cut is accepted and then silent.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, TypeVar

from dledger.chaos.trials.links import Link, Pipe
from dledger.chaos.trials.network import CLIENTS
from dledger.local.placement import Placement
from dledger.local.ports import HOST
from dledger.runtime.program import loop_factory

T = TypeVar("T")


class Behind(NamedTuple):
    """Where the proxy connects to: the process behind it. `own` is the address from which it does."""

    host: str
    port: int
    own: tuple[str, int] | None = None


CALL_LIMIT_S = 10.0
"""Longest time, in seconds, of a change of the network."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a closed connection is reset."""


def address_of(place: int) -> str:
    """The loopback address of a host."""
    return f"127.77.0.{place + 1}"


class _End(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self.out: Pipe | None = None
        """Carries what is read here to the other end."""
        self.into: Pipe | None = None
        """Carries what is read at the other end to here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._relay.made(self)

    def data_received(self, data: bytes) -> None:
        if self.out is not None:
            self.out.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._relay.lost(self)

    def pause_writing(self) -> None:
        if self.into is not None:
            self.into.hold(True)

    def resume_writing(self) -> None:
        if self.into is not None:
            self.into.hold(False)


class _Relay:
    """One connection from a host to another: what was accepted, and the connection to the process behind."""

    def __init__(self, proxy: ProxyNetwork, target: str, port: int) -> None:
        self._proxy = proxy
        self._port = port
        self.source: str = CLIENTS
        self.target: str = target
        self.near: _End = _End(self)
        self.far: _End | None = None
        self._connecting = False

    def made(self, end: _End) -> None:
        """Note that one of the two connections is open."""
        transport = end.transport
        assert transport is not None
        if end is self.near:
            transport.pause_reading()
            self.source = self._proxy.host_of(transport.get_extra_info("peername")[1], self._port)
            self._proxy.relays[self] = None
            self.proceed()
            return
        near = self.near.transport
        assert near is not None
        there = Pipe(self._proxy.link(self.source, self.target), near, transport)
        back = Pipe(self._proxy.link(self.target, self.source), transport, near)
        self.near.out = end.into = there
        self.near.into = end.out = back
        self.far = end
        near.resume_reading()

    def proceed(self) -> None:
        """Connect to the process behind, unless the link is broken in one of the directions."""
        links = (self._proxy.link(self.source, self.target), self._proxy.link(self.target, self.source))
        near = self.near.transport
        assert near is not None
        if self._connecting or near.is_closing() or any(link.cut or link.drops for link in links):
            return
        self._connecting = True
        self._proxy.tasks.create_task(self._connect(), name=f"{self.source}-{self.target}")

    async def _connect(self) -> None:
        near = self.near.transport
        assert near is not None
        loop = asyncio.get_running_loop()
        try:
            host, port, own = self._proxy.behind(self.source, self.target, self._port)
            await loop.create_connection(lambda: _End(self), host, port, local_addr=own)
        except OSError:
            reset(near)  # no process listens
            return
        if near.is_closing() and self.far is not None and self.far.transport is not None:
            self.far.transport.abort()

    def lost(self, end: _End) -> None:
        """Note that one of the two connections is closed. The other one follows when the link allows it."""
        if end.out is not None:
            end.out.end()
        if end is self.near:
            self._proxy.relays.pop(self, None)

    def pump(self) -> None:
        """Continue after a change of a link."""
        if self.far is None:
            self.proceed()
        for pipe in self.pipes():
            pipe.pump()

    def pipes(self) -> list[Pipe]:
        """Both directions; empty before there is a connection to the process behind."""
        return [pipe for pipe in (self.near.out, self.near.into) if pipe is not None]

    def reset(self) -> None:
        """Reset the connection at both ends."""
        for end in (self.near, self.far):
            if end is not None and end.transport is not None:
                reset(end.transport)


def reset(transport: asyncio.Transport) -> None:
    """Close a connection so that the other side sees a reset."""
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


class ProxyNetwork:
    """Implements `ProxiedNetwork`. The proxy runs in a thread of its own."""

    kind: str = "proxy"

    def __init__(self, ports: Mapping[str, Sequence[int]], pid: Callable[[str], int | None]) -> None:
        """`ports` maps each host that listens to its ports. `pid` returns the process of such a host, None if
        it does not run. Raises OSError if a port cannot be used."""
        self._ports = dict(ports)
        self._pid = pid
        self._links: dict[tuple[str, str], Link] = {}
        self.relays: dict[_Relay, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="proxy", daemon=True)
        self._thread.start()
        ready.result(CALL_LIMIT_S)

    @property
    def broker_settings(self) -> dict[str, str]:
        """Properties that the brokers need in this network: none."""
        return {}

    def place(self) -> Placement:
        """Where the processes of the group are found: the proxy's addresses."""
        return Placement(hosts={host: address_of(place) for place, host in enumerate(self._ports)})

    def address(self, host: str) -> str:
        """The loopback address of a host; that of clients is the usual one."""
        return address_of(list(self._ports).index(host)) if host in self._ports else HOST

    # Where the proxy listens, and where it connects to

    def listen_at(self, host: str) -> str:
        """The address at which the proxy listens for connections to a host."""
        return self.address(host)

    def listens(self, host: str, address: tuple[str, int]) -> None:
        """Called when the proxy listens for a host, with the address and the port."""

    def behind(self, source: str, target: str, port: int) -> Behind:
        """Where a connection to a host and port leads."""
        # From the address of the source: our nodes accept peers only from addresses of members.
        return Behind(HOST, port, (self.address(source), 0))

    # Links

    def link(self, source: str, target: str) -> Link:
        """The state of one link."""
        return self._links.setdefault((source, target), Link())

    def cut(self, source: str, target: str) -> None:
        """Hold back everything on this link."""
        self._change(source, target, cut=True)

    def join(self, source: str, target: str) -> None:
        """End a cut of this link."""
        self._change(source, target, cut=False)

    def delay(self, source: str, target: str, ms: int, jitter_ms: int = 0) -> None:
        """Let data arrive later."""
        self._change(source, target, delay_s=ms / 1000, jitter_s=jitter_ms / 1000)

    def rate(self, source: str, target: str, bytes_per_s: int) -> None:
        """Limit what passes."""
        self._change(source, target, bytes_per_s=bytes_per_s)

    def drop(self, source: str, target: str) -> None:
        """Lose everything on this link."""
        self._change(source, target, drops=True)

    def restore(self, source: str, target: str) -> None:
        """End a drop of this link, and reset connections that lost data."""

        def restore() -> None:
            link = self.link(source, target)
            link.drops = False
            for relay in list(self.relays):
                if any(pipe.link is link and pipe.lost_data for pipe in relay.pipes()):
                    relay.reset()
                else:
                    relay.pump()

        self._call(restore)

    def flaky(self, source: str, target: str, seed: int, resets: float, holds: float) -> None:
        """Reset connections and hold back data at random."""
        self._change(source, target, resets=resets, holds=holds, chance=random.Random(seed))

    def reset(self, source: str, target: str) -> int:
        """Reset all connections that one host has opened to another. Returns how many there were."""

        def reset_all() -> int:
            found = [one for one in self.relays if (one.source, one.target) == (source, target)]
            for relay in found:
                relay.reset()
            return len(found)

        return self._call(reset_all)

    def heal(self) -> None:
        """End everything that is wrong with any link."""
        for (source, target), link in list(self._links.items()):
            if link.drops:
                self.restore(source, target)
            clean = Link()
            changes = {name: getattr(clean, name) for name in vars(clean)}
            self._change(source, target, **changes)

    def _change(self, source: str, target: str, **values: object) -> None:
        def change() -> None:
            link = self.link(source, target)
            for name, value in values.items():
                setattr(link, name, value)
            for relay in list(self.relays):
                relay.pump()

        self._call(change)

    def _call(self, action: Callable[[], T]) -> T:
        """Run this in the proxy's thread, and wait for its result."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except BaseException as error:  # whatever it is, the caller gets it
                done.set_exception(error)
                raise

        assert self._loop is not None
        self._loop.call_soon_threadsafe(run)
        return done.result(CALL_LIMIT_S)

    # The thread

    def _run(self, ready: Future[None]) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: Future[None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        servers = []
        async with asyncio.TaskGroup() as self.tasks:
            try:
                for host, ports in self._ports.items():
                    for port in ports:
                        server = await self._loop.create_server(
                            lambda host=host, port=port: _Relay(self, host, port).near,  # type: ignore[misc]
                            self.listen_at(host),
                            port,
                        )
                        servers.append(server)
                        self.listens(host, server.sockets[0].getsockname())
            except OSError as error:
                ready.set_exception(error)
                return
            ready.set_result(None)
            await self._stop.wait()
            for server in servers:
                server.close()
            for relay in list(self.relays):
                relay.reset()

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CALL_LIMIT_S)

    # Who connects

    def host_of(self, port: int, to_port: int) -> str:
        """The host whose process has opened a connection from this local port. A process that belongs to no
        host is a client."""
        inode = _socket_inode(port, to_port)
        if inode:
            for host in self._ports:
                pid = self._pid(host)
                if pid is not None and _has_socket(pid, inode):
                    return host
        return CLIENTS


def _socket_inode(port: int, to_port: int) -> str:
    """Number of the socket with these ports, as the system shows it; empty if there is none."""
    with Path("/proc/self/net/tcp").open(encoding="ascii") as table:
        next(table)
        for line in table:
            fields = line.split()
            local, remote = fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]
            if int(local, 16) == port and int(remote, 16) == to_port:
                return fields[9]
    return ""


def _has_socket(pid: int, inode: str) -> bool:
    directory, wanted = f"/proc/{pid}/fd", f"socket:[{inode}]"
    try:
        names = os.listdir(directory)
    except OSError:  # it has ended
        return False
    for name in names:
        try:
            if os.readlink(f"{directory}/{name}") == wanted:
                return True
        except OSError:  # closed meanwhile
            continue
    return False
