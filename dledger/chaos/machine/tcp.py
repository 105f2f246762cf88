"""TCP of the simulated kernels: flows of packets, endpoints, listening sockets.

* An endpoint belongs to the machine's kernel, so it stays when the process is killed. Data that the kernel
  had accepted still arrives. After the data the peer gets FIN, or RST if unread data was thrown away (as
  Linux does at close).
* A flow delivers packets in order, and each packet is one event. At a cut of the network or a machine without
  power the first packet waits. It arrives later, when it is sent again.
* One direction of a connection holds at most `window` bytes; bytes in flight and unread bytes count together.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dledger.chaos.machine.settings import MS, US

if TYPE_CHECKING:
    import asyncio

    from dledger.chaos.machine.link import Link
    from dledger.chaos.machine.network import Network
    from dledger.chaos.machine.node import Node, Process
    from dledger.chaos.machine.transport import SimTransport

Address = tuple[str, int]
ANY = ("", "0.0.0.0", "::")


class Flow:
    """The packets in flight from one machine to another, for one direction of one connection."""

    __slots__ = ("_last", "_network", "closed", "link", "queue", "stalled", "stranded")

    def __init__(self, network: Network, link: Link) -> None:
        self._network = network
        self._last = 0
        self.link: Link = link
        self.queue: deque[tuple[int, Callable[[Any], None], Any]] = deque()
        self.stalled: bool = False
        self.stranded: bool = False  # for ever
        self.closed: bool = False

    @property
    def target(self) -> Node:
        """The machine to which the packets go."""
        return self.link.target

    def send(self, now: int, deliver: Callable[[Any], None], payload: Any, delay_ns: int = 0) -> None:
        """Add a packet at the end of the queue. `deliver(payload)` is called when the packet arrives."""
        if self.closed:
            return
        network, link = self._network, self.link
        low, high = link.latency_ns
        at = now + delay_ns + low + int(network.random() * (high - low))
        if link.impaired:
            at += link.extra_ns(self, now, payload, network.random)
        if at <= self._last:
            at = self._last + 1
        self._last = at
        self.queue.append((at, deliver, payload))
        if len(self.queue) == 1 and not self.stalled:
            network.world.push(at, self._arrive, None)

    def clear(self) -> None:
        """Drop all packets in flight. Packets that are sent later are ignored."""
        self.queue.clear()
        self.closed = True

    def passes(self) -> bool:
        """Whether packets of the sender's kernel reach the receiver's kernel."""
        link = self.link
        return link.source.powered and link.target.powered and not (link.blocked or self.stranded)

    def resume(self) -> None:
        """Continue after an obstacle has gone: the first packet is sent again and arrives."""
        self.stalled = False
        network = self._network
        if self.queue:
            at = network.world.now + network.between(network.world.settings.retransmit_ns)
            network.world.push(at, self._arrive, None)

    def hurry(self) -> None:
        """Deliver the packets in flight very soon and in order. Called when the link's bandwidth is no longer
        limited."""
        now = self._network.world.now
        soon = now + self.link.latency_ns[0]
        at = now
        for place, (planned, deliver, payload) in enumerate(self.queue):
            at = max(at + 1, min(planned, soon))
            self.queue[place] = (at, deliver, payload)
        if self.queue:
            self._last = at
            if not self.stalled:
                self._network.world.push(self.queue[0][0], self._arrive, None)

    def _arrive(self, argument: None) -> None:
        if not self.queue or self.stalled or self.queue[0][0] > self._network.world.now:
            return  # the queue is empty, or this event was planned before `hurry` changed the times
        link = self.link
        if link.blocked or link.silent or self.stranded or not link.target.powered:
            obstacle = self._network.obstacle(self)
            if obstacle is not None:
                self.stalled = True
                obstacle.append(self)
                return
        _, deliver, payload = self.queue.popleft()
        if self.queue:
            world = self._network.world
            world.push(max(self.queue[0][0], world.now + 1), self._arrive, None)
        deliver(payload)


class Endpoint:
    """One side of a TCP connection, in the kernel of its machine."""

    def __init__(self, network: Network, process: Process, local: Address, remote: Address, to: Node) -> None:
        self.network = network
        self.process = process
        self.node: Node = process.node
        self.local = local
        self.remote = remote
        self.number: int = network.next_number()
        self.flow: Flow = Flow(network, network.link(process.node, to))
        self.peer: Endpoint | None = None
        self.transport: SimTransport | None = None
        self.space: int = network.world.settings.window
        self.starved: bool = False  # the program waits for space
        self.taken: int = 0  # bytes that the peer read
        self.eof: bool = False
        self.broken: bool = False  # reset by the peer
        self.closed: bool = False  # by the program, or because the program ended
        self.gone: bool = False  # the kernel does not know the connection (any more)
        self.watched = False  # whether keepalive watches it
        self.discards = False  # a linger time of 0: data that is not delivered at the close is discarded
        self._error: OSError | None = None
        self.inbox: deque[bytes] = deque()
        self._unread = 0
        self._fin_sent = False
        process.endpoints[self.number] = self

    # -- system calls of the program ----------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """Whether `recv` would not block."""
        return bool(self.inbox) or self.eof or self.broken or self.gone

    def send(self, data: bytes) -> int:
        """Take as many bytes of `data` as the window has room for. Returns their number, which is 0 if the
        window is full. Raises ConnectionResetError or BrokenPipeError."""
        if self._error is not None:
            self._raise_error()
        if self.broken or self.gone or self._fin_sent:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        count = min(len(data), self.space)
        if count == 0:
            self.starved = True
            return 0
        if not self.process.effect():
            return len(data)
        self.space -= count
        if self.network.world.trace is not None:
            self.network.trace(self, "send", f"{count}")
        self._transmit(data if count == len(data) else data[:count])
        return count

    def recv(self, limit: int) -> bytes:
        """Return up to `limit` bytes, or nothing at the end of the stream. Raises ConnectionResetError after
        a reset."""
        inbox = self.inbox
        if not inbox:
            self._raise_error()
            return b""
        if len(inbox) == 1 and self._unread <= limit:
            data = inbox.popleft()
        else:
            whole = b"".join(inbox)
            inbox.clear()
            data = whole[:limit]
            if len(whole) > limit:
                inbox.append(whole[limit:])
        self._unread -= len(data)
        self._credit_peer(len(data))
        return data

    def shutdown_write(self) -> None:
        """Half-close: send FIN after the data."""
        if self._fin_sent or self.broken or self.gone or self.closed or not self.process.effect():
            return
        self._send_fin()

    def close(self) -> None:
        """Close the connection. The program calls this, or the kernel when the process ends.

        Sends FIN. Sends RST instead if unread data is thrown away, or if undelivered data is to be discarded
        (a linger time of 0).
        """
        if self.closed or self.gone:
            return
        self.closed = True
        self.process.endpoints.pop(self.number, None)
        unread, self._unread = self._unread, 0
        self.inbox.clear()
        if self.broken or self.peer is None:
            return
        if self.discards and (self.flow.stalled or not self.flow.passes()):
            # RST is sent only once, so it is lost as well.
            self.gone = True
            self.flow.clear()
        elif unread or self.discards:
            self.send_reset()
        elif not self._fin_sent:
            self._send_fin()

    def abandon(self) -> None:
        """Let the kernel close a connection that no program accepted. Sends RST."""
        if not self.closed and not self.gone:
            self.closed = True
            self.process.endpoints.pop(self.number, None)
            self.send_reset()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # -- the kernel's side --------------------------------------------------------------------------

    def _transmit(self, data: bytes) -> None:
        network, peer = self.network, self.peer
        assert peer is not None
        now = self.process.loop.now_ns()
        if len(data) > 1 and network.random() < network.world.settings.split_chance:
            cut = 1 + int(network.random() * (len(data) - 1))
            self.flow.send(now, peer.on_data, data[:cut])
            self.flow.send(now, peer.on_data, data[cut:], delay_ns=network.between((0, 100 * US)))
        else:
            self.flow.send(now, peer.on_data, data)

    def _send_fin(self) -> None:
        self._fin_sent = True
        if self.peer is not None:
            self.network.trace(self, "fin", "")
            self.flow.send(self.process.loop.now_ns(), self.peer.on_fin, None)

    def send_reset(self) -> None:
        """Send RST to the peer."""
        if self.peer is None or self.broken:
            return
        self.network.trace(self, "reset", "")
        flow = Flow(self.network, self.flow.link) if self.gone else self.flow
        flow.send(max(self.process.loop.now_ns(), self.network.world.now), self.peer.on_reset, None)

    def on_data(self, data: bytes) -> None:
        """Handle data that arrived. If the connection is closed or forgotten, answer RST."""
        if self.closed or self.gone:
            self.send_reset()
            return
        if self.broken:
            return
        self.inbox.append(data)
        self._unread += len(data)
        if self.network.world.trace is not None:
            self.network.trace(self, "recv", f"{len(data)}")
        if self.transport is not None:
            self.transport.on_readable()

    def on_fin(self, _: None) -> None:
        """Handle a FIN: the peer will send no more."""
        if self.closed or self.broken:
            return
        if self.gone:
            self.send_reset()
            return
        self.eof = True
        self.network.trace(self, "recv", "fin")
        if self.transport is not None:
            self.transport.on_readable()

    def on_reset(self, _: None) -> None:
        """Handle an RST of the peer's kernel. Data that arrived before can still be read."""
        if self.closed or self.gone or self.broken:
            return
        self.broken = True
        code = errno.EPIPE if self.eof else errno.ECONNRESET
        self._error = OSError(code, os.strerror(code))
        self.flow.clear()
        self.network.trace(self, "recv", "reset")
        if self.transport is not None:
            self.transport.on_readable()
            self.transport.on_writable()

    def vanish(self, code: int) -> None:
        """Drop the connection in this kernel only. The program gets the error number `code`, and the peer
        gets no notice."""
        if self.closed or self.gone or self.broken:
            return
        self.gone = True
        self._error = OSError(code, os.strerror(code))
        self.process.endpoints.pop(self.number, None)
        self.flow.clear()
        if self.transport is not None:
            self.transport.on_readable()
            self.transport.on_writable()

    def _credit_peer(self, count: int) -> None:
        sender = self.peer
        if sender is None or sender.closed or sender.gone:
            return
        link, now = self.flow.link, self.process.loop.now_ns()
        if link.blocked:
            link.credits.append((sender, count))
        # the reader stalled: the sender must not know before that time
        elif now > self.network.world.now + MS:
            self.network.world.push(now, self._credit_late, (sender, count))
        else:
            sender.credit(count, now)

    def _credit_late(self, credit: tuple[Endpoint, int]) -> None:
        sender, count = credit
        sender.credit(count, self.network.world.now)

    def credit(self, count: int, now: int) -> None:
        """Note that the peer read `count` bytes. If the program waits for room, it is notified after the
        latency of the network."""
        self.space += count
        self.taken += count
        if self.starved:
            self.starved = False
            at = now + self.network.between(self.network.world.settings.latency_ns)
            self.network.world.push(at, self._on_space, None)

    def _on_space(self, _: None) -> None:
        if not self.closed and not self.gone and self.transport is not None:
            self.transport.on_writable()


class Listener:
    """A listening socket with the methods that `asyncio.Server` uses."""

    def __init__(self, network: Network, process: Process, address: Address) -> None:
        self.process = process
        self._network = network
        self._address = address
        self._backlog = 100
        self._queue: list[Endpoint] = []
        self._handle: asyncio.Handle | None = None
        self.closed: bool = False

    def listen(self, backlog: int) -> None:
        """Set the size of the accept queue, like `socket.listen`."""
        self._backlog = backlog

    def getsockname(self) -> Address:
        """The local address as (ip, port)."""
        return self._address

    def start(self, handle: asyncio.Handle) -> None:
        """Run `handle` on the loop whenever connections wait."""
        self._handle = handle
        if self._queue:
            self.process.loop.post_io(handle)

    def accept(self) -> list[Endpoint]:
        """All connections that wait, in order of arrival."""
        waiting, self._queue = self._queue, []
        return waiting

    def offer(self, endpoint: Endpoint) -> None:
        """Queue a connection whose handshake is done."""
        self._queue.append(endpoint)
        if self._handle is not None and len(self._queue) == 1:
            self.process.loop.post_io(self._handle)

    @property
    def full(self) -> bool:
        """Whether the accept queue is full."""
        return len(self._queue) >= self._backlog

    def listens_on(self, ip: str) -> bool:
        """Whether the socket takes connections to this address of its machine."""
        return self._handle is not None and self._address[0] in (*ANY, ip)

    def close(self) -> None:
        """Free the port. Connections that no program accepted are reset."""
        if self.closed:
            return
        self.closed = True
        self.process.node.listeners.pop(self._address[1], None)
        for endpoint in self.accept():
            endpoint.abandon()
