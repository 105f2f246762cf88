"""The peers of a node as seen by the shell: who is connected, with which identity, over which connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from dledger.config import NodeConfig
from dledger.election.configuration import MAX_MEMBERS
from dledger.election.membership import (
    Hello,
    HelloRefused,
    check_hello,
    decode_hello,
    encode_hello,
)
from dledger.errors import EXIT_CONFIG, NodeFailed
from dledger.links import PeerConnection, split_address
from dledger.messages import REPLIES, Message
from dledger.wire import CLIENT_REQUEST, ERROR, HELLO, Frame, WireError, decode_message, encode_message
from runtime import Env


class PeerEvents(Protocol):
    """What the node does with what happens on the connections."""

    def my_hello(self) -> Hello:
        """The hello to send now."""

    def welcome(self, hello: Hello) -> Mapping[str, str]:
        """Ids of those who may connect, given who asks."""

    def addresses(self) -> Mapping[str, str]:
        """Peer ports of the members, by id."""

    def on_hello(self, hello: Hello) -> None:
        """A peer introduced itself (either direction)."""

    def on_peer_up(self, peer: str) -> None:
        """The dialled connection to a peer is ready for requests."""

    def on_peer_down(self, peer: str) -> None:
        """It is gone."""

    def on_refused(self, peer: str) -> None:
        """Nobody listens at the peer's address."""

    def on_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """A message from a peer."""

    def on_client_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """A request of the DLedger client protocol."""


class Peers:
    """Listens, dials every other peer, says hello, routes messages."""

    def __init__(
        self, env: Env, config: NodeConfig, events: PeerEvents, fail: Callable[[BaseException], None]
    ) -> None:
        self._log = env.log.child("peers")
        self._config = config
        self._events = events
        self._fail = fail
        self._server: asyncio.AbstractServer | None = None
        self._outbound: dict[str, PeerConnection] = {}
        self._inbound: dict[str, PeerConnection] = {}
        self._accepted: list[PeerConnection] = []
        self._redial: dict[str, asyncio.Event] = {}
        self.hellos: dict[str, Hello] = {}
        """Last hello of each peer that is connected in some direction."""
        self._complaints: dict[str, str] = {}

    # Life

    async def listen(self) -> None:
        """Open the peer port; NodeFailed names the address when it is in use."""
        host, port = split_address(self._config.peers[self._config.self_id])
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, self._config.bind_host or host, port)
        except OSError as error:
            raise NodeFailed(f"cannot listen for peers on port {port}: {error}", EXIT_CONFIG) from error

    async def dial(self, peer: str, address: str) -> None:
        """Keep a connection to one peer, until cancelled."""
        host, port = split_address(address)
        pause = self._config.redial_min_s
        again = self._redial.setdefault(peer, asyncio.Event())
        loop = asyncio.get_running_loop()
        while True:
            again.clear()
            connection: PeerConnection | None = None
            try:
                async with asyncio.timeout(self._config.dial_timeout_s):
                    _, connection = await loop.create_connection(lambda: self._dialled(peer), host, port)
                async with asyncio.timeout(self._config.hello_timeout_s):
                    await connection.ready
            except ConnectionRefusedError:
                self._guard(lambda: self._events.on_refused(peer))
            except (OSError, TimeoutError) as error:
                self._log.debug("cannot reach peer", peer=peer, error=repr(error))
            else:
                pause = self._config.redial_min_s
                try:
                    await connection.lost
                finally:
                    connection.close("no longer dialled")
                continue  # dial at once: a refusal tells that the process is gone (S17)
            if connection is not None:
                self._complain(peer, connection.error)
                connection.close()
            try:
                async with asyncio.timeout(pause):
                    await again.wait()
                pause = self._config.redial_min_s
            except TimeoutError:
                pause = min(pause * 2, self._config.redial_max_s)

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for connection in [*self._accepted, *self._outbound.values()]:
            connection.close("shutting down")

    # Sending

    def connected(self, peer: str) -> bool:
        """Whether requests reach the peer now."""
        return peer in self._outbound

    def backlog(self, peer: str) -> int:
        """Unsent bytes towards a peer."""
        connection = self._outbound.get(peer)
        return connection.backlog if connection else 0

    def send(self, peer: str, message: Message) -> None:
        """Requests go out on the dialled connection, replies on the accepted one; lost if there is none."""
        if isinstance(message, REPLIES):
            connection = self._inbound.get(peer)
            compress = False
        else:
            connection = self._outbound.get(peer)
            # A link that cannot drain what was written is slow: there LZ4 pays.
            compress = connection is not None and connection.backlog > 4 * 1024 * 1024
        if connection is not None:
            connection.send(encode_message(message, compress=compress))

    def dialled_hello(self, peer: str) -> Hello | None:
        """Who answers on the dialled connection: whose acknowledgements and votes come back on it."""
        connection = self._outbound.get(peer)
        return connection.hello if connection else None

    def tell_clients(self, addresses: Mapping[str, str]) -> None:
        """Clients learn whom else they can ask."""
        for connection in self._accepted:
            if connection.client and not connection.closed:
                self._tell_client(connection, addresses)

    def _tell_client(self, connection: PeerConnection, addresses: Mapping[str, str]) -> None:
        hello = encode_hello(self._events.my_hello())
        connection.send_frame(HELLO, {**hello, "addresses": dict(addresses)})

    def prune(self, keeps: Callable[[Hello], bool]) -> None:
        """Close the connections of peers that may not connect any more."""
        for connection in [*self._outbound.values(), *self._accepted]:
            hello = connection.hello
            if hello is not None and not connection.closed and not keeps(hello):
                text = f"{hello.node} is no member of the group any more"
                self._complain(hello.node, text)
                connection.send_frame(ERROR, text)
                connection.close(text)

    def refresh(self) -> None:
        """This node's identity changed: connections must say hello anew."""
        for connection in [*self._outbound.values(), *self._accepted]:
            if not connection.client:
                connection.close("identity changed")

    # Connections

    def _accept(self) -> PeerConnection:
        return PeerConnection(
            self._on_frame, self._on_lost, self._config.max_frame_bytes, on_made=self._on_accepted
        )

    def _dialled(self, peer: str) -> PeerConnection:
        return PeerConnection(
            self._on_frame,
            self._on_lost,
            self._config.max_frame_bytes,
            dialled=peer,
            on_made=lambda connection: connection.send_frame(HELLO, encode_hello(self._events.my_hello())),
        )

    def _on_accepted(self, connection: PeerConnection) -> None:
        limit = self._config.max_client_connections + 2 * MAX_MEMBERS
        if len(self._accepted) >= limit:
            connection.close(f"more than {limit} connections")
            return
        self._accepted.append(connection)
        loop = asyncio.get_running_loop()
        loop.call_later(self._config.hello_timeout_s, self._check_introduced, connection)

    def _check_introduced(self, connection: PeerConnection) -> None:
        if not connection.closed and connection.peer is None and not connection.client:
            connection.close("no hello in time")

    def _on_lost(self, connection: PeerConnection) -> None:
        if connection in self._accepted:
            self._accepted.remove(connection)
        peer = connection.peer
        if peer is None:
            return
        if self._inbound.get(peer) is connection:
            del self._inbound[peer]
        if self._outbound.get(peer) is connection:
            del self._outbound[peer]
            self._guard(lambda: self._events.on_peer_down(peer))
        if peer not in self._inbound and peer not in self._outbound:
            self.hellos.pop(peer, None)

    def _on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        if frame.number == HELLO:
            self._on_hello(connection, frame.header)
        elif frame.number == CLIENT_REQUEST and connection.client:
            self._guard(lambda: self._events.on_client_frame(connection, frame))
        elif frame.number == ERROR:
            connection.close(str(frame.header))
        elif connection.peer is None:
            raise WireError("the first frame must be a hello")
        else:
            peer = connection.peer
            try:
                message = decode_message(frame)
            except WireError as error:
                connection.send_frame(ERROR, str(error))
                raise
            self._guard(lambda: self._events.on_message(connection, peer, message))

    def _on_hello(self, connection: PeerConnection, header: object) -> None:
        if isinstance(header, dict) and header.get("client"):
            connection.client = True
            self._tell_client(connection, self._events.addresses())
            return
        mine = self._events.my_hello()
        try:
            hello = decode_hello(header)
            check_hello(mine, hello, self._events.welcome(hello))
            if connection.dialled is not None and hello.node != connection.dialled:
                raise HelloRefused(
                    f"{connection.dialled} was dialled, but {hello.node} answers: check dLegerPeers"
                )
        except HelloRefused as refusal:
            self._complain(connection.dialled or connection.remote, str(refusal))
            connection.send_frame(ERROR, str(refusal))
            connection.close(str(refusal))
            return
        connection.peer = hello.node
        connection.hello = hello
        self.hellos[hello.node] = hello
        if connection.dialled is None:
            older = self._inbound.get(hello.node)
            self._inbound[hello.node] = connection
            if older is not None and older is not connection:
                older.abort()
            connection.send_frame(HELLO, encode_hello(mine))
            if hello.node in self._redial:
                self._redial[hello.node].set()
            self._guard(lambda: self._events.on_hello(hello))
        else:
            self._outbound[hello.node] = connection
            if not connection.ready.done():
                connection.ready.set_result(hello)
            self._guard(lambda: self._events.on_hello(hello))
            if not connection.closed:
                self._guard(lambda: self._events.on_peer_up(hello.node))

    def _complain(self, peer: str, text: str) -> None:
        if text and self._complaints.get(peer) != text:
            self._complaints[peer] = text
            self._log.warning("peer connection refused", peer=peer, reason=text)

    def _guard(self, call: Callable[[], None]) -> None:
        """Protocol callbacks have no caller: whatever they raise ends the node through `run` (rule 7)."""
        try:
            call()
        except WireError:
            raise
        except Exception as error:
            self._fail(error)

    def meta(self, peer: str) -> Mapping[str, str]:
        """What a connected peer told of itself."""
        hello = self.hellos.get(peer)
        return hello.meta if hello else {}
