"""The network between the machines: addresses, ports, handshakes, cuts.

* `partition` blocks one direction between two machines: packets wait, and arrive after `heal`, when they are
  sent again. Connections stay open until a program closes them.
* A power cut happens without notice: the peers receive nothing until they send to the restarted machine,
  whose kernel does not know the connection and answers RST.

Delays, loss, bandwidth, resets and connections of foreign programs are in network_faults.py, keepalive in
sockets.py.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from dledger.chaos.machine.link import Link
from dledger.chaos.machine.network_faults import NetworkFaults
from dledger.chaos.machine.tcp import ANY, Address, Endpoint, Flow, Listener

if TYPE_CHECKING:
    from dledger.chaos.machine.node import Node, Process
    from dledger.chaos.machine.world import World

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FIRST_EPHEMERAL_PORT = 32768


class Network(NetworkFaults):
    """The connections and links between all machines."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.links: dict[tuple[str, str], Link] = {}
        self._random = world.stream("network")
        self.random: Callable[[], float] = self._random.random
        self._numbers = 0
        self._ports: dict[str, int] = {}

    def next_number(self) -> int:
        """The next number for an endpoint."""
        self._numbers += 1
        return self._numbers

    def between(self, bounds: tuple[int, int]) -> int:
        """A uniformly distributed number between the bounds, from the network's own random stream."""
        low, high = bounds
        return low + int(self.random() * (high - low))

    def trace(self, endpoint: Endpoint, kind: str, detail: str) -> None:
        """Trace one event of one connection."""
        if self.world.trace is not None:
            now = max(endpoint.process.loop.now_ns(), self.world.now)
            text = f"{_text(endpoint.local)}>{_text(endpoint.remote)} {detail}"
            self.world.trace.add(now, endpoint.node.name, kind, text.rstrip())

    def link(self, source: Node, target: Node) -> Link:
        """The link for one direction between two machines."""
        key = (source.name, target.name)
        link = self.links.get(key)
        if link is None:
            link = self.links[key] = Link(self.world.settings, source, target)
        return link

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """The directions that `heal` has to open, as sorted pairs (source, target)."""
        return sorted(key for key, link in self.links.items() if link.blocked or link.silent)

    def obstacle(self, flow: Flow) -> list[Flow] | None:
        """The list of flows that wait for the obstacle which blocks the first packet of `flow`. None if the
        packet passes."""
        link = flow.link
        if flow.stranded:
            return []
        if link.blocked or (link.silent and not self._is_handshake(flow)):
            return link.flows
        return None if link.target.powered else link.target.waiting

    def _is_handshake(self, flow: Flow) -> bool:
        return flow.queue[0][1] in (self._on_syn, self._on_syn_ack, self._on_refusal)

    def partition(self, source: str, target: str) -> None:
        """Hold everything from `source` to `target`, in this direction only."""
        self.link(self.world.nodes[source], self.world.nodes[target]).blocked = True

    def power_cut(self, node: Node) -> None:
        """Drop the packets of this machine that wait at an obstacle. A machine without power does not send
        them again."""
        held = [link.flows for _, link in sorted(self.links.items())]
        held += [other.waiting for other in self.world.nodes.values()]
        for flows in held:
            for flow in flows:
                if flow.link.source is node:
                    flow.clear()

    def power_on(self, node: Node) -> None:
        """Deliver the packets that waited until this machine had power again, so that their senders get an
        answer."""
        waiting, node.waiting = node.waiting, []
        for flow in waiting:
            flow.resume()

    def heal(self, source: str, target: str) -> None:
        """End a partition in this direction. Packets that were held arrive when they are sent again."""
        link = self.link(self.world.nodes[source], self.world.nodes[target])
        link.blocked = link.silent = False
        flows, link.flows = link.flows, []
        for flow in flows:
            flow.resume()
        credits, link.credits = link.credits, []
        for endpoint, count in credits:
            endpoint.credit(count, self.world.now)

    # -- system calls -------------------------------------------------------------------------------

    def resolve(self, node: Node, host: str | None) -> str:
        """The IP address of a machine that is given by its name or address.

        Raises OSError if there is no such machine. Raises UnicodeError, which is not an OSError, for a text
        that cannot be a name; the real function does so too.
        """
        if host is None or host in ANY:
            return node.address
        if host in _LOOPBACK:
            return "127.0.0.1"
        found = self.world.nodes.get(host)
        if found is not None:
            return found.address
        if any(other.address == host for other in self.world.nodes.values()):
            return host
        host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, f"{host}: name or service not known")

    def bind(self, process: Process, host: str | None, port: int) -> Listener:
        """Take a port of the process's machine. Raises OSError EADDRINUSE or EADDRNOTAVAIL."""
        _check_port("bind", port)
        node = process.node
        ip = "0.0.0.0" if host is None or host in ANY else self.resolve(node, host)
        if ip not in ("0.0.0.0", "127.0.0.1", node.address):
            raise OSError(errno.EADDRNOTAVAIL, f"could not bind on any address out of [{(host, port)!r}]")
        if port == 0:
            port = self._free_port(node)
        if port in node.listeners:
            text = f"error while attempting to bind on address {(ip, port)!r}: address already in use"
            raise OSError(errno.EADDRINUSE, text)
        listener = Listener(self, process, (ip, port))
        node.listeners[port] = listener
        return listener

    def _free_port(self, node: Node) -> int:
        port = self._ports.get(node.name, _FIRST_EPHEMERAL_PORT)
        while port in node.listeners:
            port += 1
        self._ports[node.name] = port + 1
        return port

    async def connect(self, process: Process, host: str, port: int) -> Endpoint:
        """Do a three-way handshake. Raises ConnectionRefusedError, or OSError ETIMEDOUT if no answer comes
        within `connect_timeout_ns`."""
        _check_port("connect", port)
        ip = self.resolve(process.node, host)
        node = process.node
        target = node
        if ip not in ("127.0.0.1", node.address):
            target = next(other for other in self.world.nodes.values() if other.address == ip)
        local = (ip if target is node else node.address, self._free_port(node))
        endpoint = Endpoint(self, process, local, (ip, port), target)
        loop = process.loop
        answer: asyncio.Future[int] = loop.create_future()
        timeout = self.world.settings.connect_timeout_ns / 1e9
        timer = loop.call_later(timeout, _answer, answer, errno.ETIMEDOUT)
        if process.effect():
            self.trace(endpoint, "connect", "")
            endpoint.flow.send(loop.now_ns(), self._on_syn, (endpoint, answer))
        try:
            code = await answer
        except asyncio.CancelledError:
            endpoint.close()
            raise
        finally:
            timer.cancel()
        if code:
            endpoint.close()
            raise OSError(code, f"Connect call failed {(ip, port)!r}")
        return endpoint

    def _on_syn(self, handshake: Handshake) -> None:
        client, answer = handshake
        target, (ip, port) = client.flow.target, client.remote
        listener = target.listeners.get(port)
        if listener is None or not listener.listens_on(ip):
            self.trace(client, "refused", "")
            Flow(self, self.link(target, client.node)).send(self.world.now, self._on_refusal, handshake)
        elif listener.full:
            self.world.push(self.world.now + self.world.settings.backlog_retry_ns, self._on_syn, handshake)
        else:
            server = Endpoint(self, listener.process, client.remote, client.local, client.node)
            server.peer = client
            server.flow.send(self.world.now, self._on_syn_ack, (server, answer))
            listener.offer(server)

    def _on_syn_ack(self, handshake: Handshake) -> None:
        server, answer = handshake
        client = server.peer
        assert client is not None
        client.peer = server
        if client.closed or client.gone:
            client.send_reset()
            return
        self.trace(client, "connected", "")
        _answer(answer, 0)

    def _on_refusal(self, handshake: Handshake) -> None:
        client, answer = handshake
        if not client.closed and not client.gone:
            _answer(answer, errno.ECONNREFUSED)


# An endpoint, and the future of the connecting program: 0 or an errno.
Handshake = tuple[Endpoint, "asyncio.Future[int]"]


def _answer(answer: asyncio.Future[int], code: int) -> None:
    if not answer.done():
        answer.set_result(code)


def _check_port(call: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise OverflowError(f"{call}(): port must be 0-65535.")


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
