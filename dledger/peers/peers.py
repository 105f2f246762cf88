"""The peers of a node, as its shell (the code that does I/O) sees them: which peers are connected, with which
identity, over which connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, get_args

import msgspec

from dledger.config import NodeConfig
from dledger.election.configuration import MAX_ID
from dledger.election.identity import (
    Hello,
    HelloRefused,
    check_certificate,
    check_hello,
    decode_hello,
    encode_hello,
)
from dledger.formats.addresses import split_address
from dledger.messages import BULK, REPLIES, SINCE_2, Message
from dledger.peers.dialling import Dialler
from dledger.peers.doubles import Doubles
from dledger.peers.doubles import text as double_text
from dledger.peers.links import MAX_ERROR_TEXT, PeerConnection, Unsent
from dledger.peers.listener import MAX_STRANGER_FRAME, MAX_STRANGERS, PeerPort
from dledger.peers.proofs import SECRET_BYTES, Proofs
from dledger.peers.refusals import Refusals
from dledger.peers.sources import Sources
from dledger.peers.wire import (
    CLIENT_REQUEST,
    ERROR,
    HELLO,
    PIECE,
    PROOF,
    Frame,
    WireError,
    decode_message,
    encode_message,
)
from dledger.protocol import PROTOCOL_WITH_PIECES
from dledger.runtime import Env
from dledger.runtime.tls import PeerTls, TlsError

P = ParamSpec("P")

MAX_NONCE = 64
REACHED_BACK_S = 5.0
"""Time, in seconds, after which this node reports a peer that has connected to this node, but to which this
node cannot connect."""
MOVED = (
    "if it has a new address, record it with `dledger member remove` and `dledger member add`; "
    "otherwise check its port and dLegerPeers"
)
SHORT_S = 1.0
"""Time, in seconds. A connection that lasted less counts as short; after two short ones in a row the next
attempt waits."""
_SENDERS: dict[type[Any], str] = {
    type_: field.name
    for type_ in get_args(Message)
    for field in msgspec.structs.fields(type_)
    if field.name in ("leader", "candidate", "node")
}
"""The field of a message that names its sender."""
ONE_SIDED = " (is TLS, tls.peer.*, enabled on one side only?)"


class PeerEvents(Protocol):
    """What `Peers` asks, and reports, about its connections; implemented by `dledger.node.inbox.Inbox`."""

    def my_hello(self) -> Hello:
        """Return the hello to send now."""

    def welcome(self, hello: Hello) -> Mapping[str, str]:
        """Return the ids of the nodes that may connect, given the hello of the node that asks."""

    def addresses(self) -> Mapping[str, str]:
        """Return the peer ports of the members, by id."""

    def elsewhere(self, peer: str) -> tuple[str, str] | None:
        """Return another address than the recorded one, at which a peer may be, and the only store that may
        answer there."""

    def on_hello(self, hello: Hello) -> None:
        """Note that a peer introduced itself, on a connection of either direction."""

    def on_peer_up(self, peer: str) -> None:
        """Note that the connection which this node made to a peer is ready for requests."""

    def on_peer_down(self, peer: str) -> None:
        """Note that the connection which this node made to a peer is gone."""

    def on_refused(self, peer: str) -> None:
        """Note that no process listens at the peer's address."""

    def on_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """Handle a message from a peer."""

    def on_read(self) -> None:
        """Note that all messages which arrived together from a peer were given to `on_message`."""

    def on_client_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """Handle a request of the DLedger client protocol."""


class Peers:
    """Listens, connects to every other peer, exchanges hellos, and passes messages on.

    The accepting side puts a nonce into its hello. It trusts nothing before the other side has sent the nonce
    back. So somebody who replays the bytes of an old connection achieves nothing. (Version 1 of the protocol
    has no such frame.)
    """

    def __init__(
        self,
        env: Env,
        config: NodeConfig,
        fail: Callable[[BaseException], None],
        *,
        port: PeerPort | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self._env = env
        self._log = env.log.child("peers")
        self._config = config
        self._events: PeerEvents
        self._heard = False
        """Whether `listen` was called, so that `events` can be notified."""
        self._fail = fail
        self._tls = tls
        self._port = port
        self._own_port = port is None
        self._outbound: dict[str, PeerConnection] = {}
        self._inbound: dict[str, PeerConnection] = {}
        self._settled: dict[str, None] = {}
        """Peers whose connection has lasted for `REACHED_BACK_S`."""
        self._accepted: list[PeerConnection] = []
        self._redial: dict[str, asyncio.Event] = {}
        self._strayed: dict[str, str] = {}
        self.hellos: dict[str, Hello] = {}
        """Last hello of each peer that is connected in some direction."""
        self.too_new: int = 0
        """Number of messages that were not sent because the peer's version of the protocol does not know
        them."""
        self.sources: Sources = Sources(env, config, self, tls=tls is not None)
        self.unsent: Unsent = Unsent()
        """Counts the bytes of answers that clients of the port have not read."""
        self._refusals = Refusals(self._log)
        self._doubles = Doubles()
        self.proofs: Proofs = Proofs(config.self_id, env.secret_bytes(SECRET_BYTES))
        """Makes and checks proofs that requests between brokers of the group come from members."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.refusals: dict[str, str] = {}
        """The last refusal or error about a connection to each peer, shown to the operator. It is removed
        when a connection is made."""

    # Life

    async def listen(self, events: PeerEvents) -> None:
        """Open the peer port, or join the shared one. Raises NodeFailed with the port in its text, if the
        port is in use.

        No connection to a peer is made before this call. From now on `events` is notified of everything."""
        self._events = events
        self._heard = True
        self._loop = asyncio.get_running_loop()
        config = self._config
        if self._port is None:
            _, port = split_address(config.peers[config.self_id])
            self._port = PeerPort(
                self._env,
                config.peer_bind or config.bind_host,
                port,
                tls=self._tls,
                hello_timeout_s=config.hello_timeout_s,
                peers=None if config.peer_bind else config.peers,
                self_id=config.self_id,
            )
            await self._port.open()
        self._port.join(config.group, self)

    async def dial(self, peer: str, address: str) -> None:
        """Keep a connection to one peer until cancelled.

        This method connects to the recorded address. When that has failed for `redial_max_s`, it alternates
        between this address and another address at which the peer may be.

        If the connection is refused at the address where the peer was last, this proves that the peer's
        process is gone, and is reported (S17). A refusal at the other address proves nothing: the peer may
        have left that address, or may not have moved to it yet.
        """
        now = asyncio.get_running_loop().time
        diallers: dict[str, Dialler] = {}
        reached, failing_since = "", now()
        pause = self._config.redial_min_s
        again = self._redial.setdefault(peer, asyncio.Event())
        self.proofs.revoke(peer)  # a store that was removed from the group may have had this id before
        self.refusals.pop(peer, None)  # it may be about another address
        short = 0
        while True:
            again.clear()
            places = self._places(peer, address, reached)
            both = now() - failing_since >= self._config.redial_max_s
            for place, store in places if both else places[:1]:
                dialler = diallers.setdefault(place, Dialler(place, self._tls, self._config.dial_timeout_s))
                try:
                    lived = await self._stay(peer, dialler, store, place if place != address else None)
                    break
                except ConnectionRefusedError:
                    if place == reached or len(places) == 1:
                        self.refusals.pop(peer, None)  # the refusal holds no longer
                        self._guard(self._events.on_refused, peer)
                except TlsError as error:
                    self._refusals.note("tls", peer, str(error))
                    self._keep(peer, f"no TLS connection to {peer} at {place}: {error}")
                except (OSError, TimeoutError) as error:
                    if isinstance(error, ConnectionResetError) and peer not in self.refusals:
                        said = str(error) or "no TLS handshake"
                        self._keep(peer, f"{peer} at {place} closes each connection: {said}{ONE_SIDED}")
                    self._log.debug("cannot reach peer", peer=peer, error=repr(error))
            else:
                pause = await self._rest(again, pause)
                continue
            reached, failing_since, pause = place, now(), self._config.redial_min_s
            short = short + 1 if lived < SHORT_S else 0
            if short >= 2:
                # The peer closes each connection: it has too many, or another store has its id.
                await self._rest(again, min(pause * 2 ** min(short - 2, 10), self._config.redial_max_s))
            # Otherwise dial at once: a refused connection shows that the process is gone (S17).

    async def _rest(self, again: asyncio.Event, pause: float) -> float:
        """Wait for `pause` seconds, or until the peer connects to this node. Return how long to wait the next
        time."""
        try:
            async with asyncio.timeout(pause):
                await again.wait()
        except TimeoutError:
            return min(pause * 2, self._config.redial_max_s)
        return self._config.redial_min_s

    async def _stay(self, peer: str, dialler: Dialler, store: str | None, strayed: str | None) -> float:
        """Connect, wait until the connection is lost, and return how many seconds it lasted. Raises OSError
        or TlsError if no connection was made."""
        loop = asyncio.get_running_loop()
        try:
            connection = await dialler.connect(lambda: self._dialled(peer, dialler.address, store))
        except (ConnectionRefusedError, ConnectionResetError):
            raise
        except OSError:  # or a time-out: the peer is not reached, and its refusal may hold no longer
            self.refusals.pop(peer, None)
            raise
        try:
            async with asyncio.timeout(self._config.hello_timeout_s):
                await connection.ready
            began = loop.time()
            if strayed is not None:
                self._strayed[peer] = strayed
            await connection.lost
        finally:
            self._strayed.pop(peer, None)
            connection.close("peer is no longer dialled")
        return loop.time() - began

    def _places(self, peer: str, address: str, reached: str) -> list[tuple[str, str | None]]:
        """Return the addresses at which to look for a peer. Each comes with the only store that may answer
        there (None: any store). The address where the peer was last comes first, because the other one may
        not answer at all."""
        places: list[tuple[str, str | None]] = [(address, None)]
        elsewhere = self._events.elsewhere(peer)
        if elsewhere is not None and elsewhere[0] != address:
            places.insert(0 if elsewhere[0] == reached else 1, elsewhere)
        return places

    def doubled(self) -> list[str]:
        """Return warnings about peers of which two processes run with copies of one store."""
        now = self._loop.time() if self._loop is not None else 0.0
        return [double_text(node) for node in self._doubles.told(now)]

    def reached_by(self, peer: str) -> bool:
        """Whether a connection that the peer made to this node is open."""
        return peer in self._inbound

    def not_reached_back(self) -> dict[str, str]:
        """Return the peers that have been connected to this node for `REACHED_BACK_S`, but that this node
        cannot reach at their known addresses; by id, with these addresses."""
        known = self.addresses()
        return {
            peer: known[peer] for peer in sorted(self._settled) if peer in known and not self.connected(peer)
        }

    def _check_reached_back(self, connection: PeerConnection) -> None:
        peer = connection.peer
        if peer is None or self._inbound.get(peer) is not connection:
            return
        self._settled[peer] = None
        if peer in self.not_reached_back():
            text = f"it reaches this node from {connection.host}, but is not reached at"
            self._refusals.note("not reached", peer, f"{text} {self.addresses()[peer]}: {MOVED}")

    def strayed(self) -> dict[str, str]:
        """Return the peers that are connected now at another address than their recorded one; by id, with
        this other address."""
        return dict(self._strayed)

    async def close(self) -> None:
        """Close all connections, and the port unless it is shared."""
        if self._port is not None:
            self._port.leave(self._config.group)
            if self._own_port:
                await self._port.close()
        for connection in [*self._accepted, *self._outbound.values()]:
            connection.close("shutting down")

    def refused(self) -> dict[str, int]:
        """Return how many connections and frames were refused, by cause. Those of the port are included."""
        counts = dict(self._refusals.counts)
        if self._port is not None:
            for cause, count in self._port.refusals.counts.items():
                counts[cause] = counts.get(cause, 0) + count
        return dict(sorted(counts.items()))

    # Sending

    def connected(self, peer: str) -> bool:
        """Whether requests can be sent to the peer now."""
        return peer in self._outbound

    def version(self, peer: str) -> int:
        """Return the protocol version used with a peer; 0 while it is not connected in any direction."""
        connection = self._outbound.get(peer) or self._inbound.get(peer)
        return connection.version if connection else 0

    def backlog(self, peer: str) -> int:
        """Return the number of unsent bytes of requests to a peer."""
        connection = self._outbound.get(peer)
        return connection.backlog if connection else 0

    def answer_backlog(self, peer: str) -> int:
        """Return the number of unsent bytes of answers to a peer."""
        connection = self._inbound.get(peer)
        return connection.backlog if connection else 0

    def send(self, peer: str, message: Message) -> None:
        """Send a message: requests on the connection that this node made, replies on the connection that the
        peer made.

        The message is lost if there is no such connection. A message that the peer's version of the protocol
        does not know is dropped and counted (`too_new`).
        """
        if isinstance(message, REPLIES):
            connection = self._inbound.get(peer)
            compress = False
        else:
            connection = self._outbound.get(peer)
            # A link that cannot send what was written is slow, so LZ4 is worth its time.
            compress = connection is not None and connection.backlog > 4 * 1024 * 1024
        if connection is None:
            return
        if connection.version < 2 and isinstance(message, SINCE_2):
            self.too_new += 1
            return
        send = connection.send_bulk if isinstance(message, BULK) else connection.send
        send(encode_message(message, compress=compress, version=connection.version))

    def forget_pushes(self) -> None:
        """Drop the pushes that wait to be sent and of which nothing was sent yet."""
        for connection in self._outbound.values():
            connection.forget_bulk()

    def founders(self) -> dict[str, Hello]:
        """Return the hellos of the nodes that answer at the addresses of the peers. If two processes have the
        same id, only the process at that address is included."""
        return {peer: hello for peer in self._outbound if (hello := self.dialled_hello(peer)) is not None}

    def without_proofs(self) -> list[str]:
        """Return the peers whose program makes no proofs, according to the hello of the node that answers at
        their address. Hellos on accepted connections do not count. Anybody could send a hello without a
        secret, and so pretend to be a member with an older program."""
        return [peer for peer, hello in self.founders().items() if hello.secret is None]

    def dialled_hello(self, peer: str) -> Hello | None:
        """Return the hello of the node that answers on the connection which this node made to the peer. The
        peer's acknowledgements and votes come back on this connection."""
        connection = self._outbound.get(peer)
        return connection.hello if connection else None

    def tell_clients(self, addresses: Mapping[str, str]) -> None:
        """Send the addresses of the members to all connected clients, so that a client can ask any of these
        members."""
        for connection in self._accepted:
            if connection.client and not connection.closed:
                self._tell_client(connection, addresses)

    def _tell_client(self, connection: PeerConnection, addresses: Mapping[str, str]) -> None:
        """Send a client no more than it needs. If it knew the stores and the cluster id, it could pretend to
        be a member."""
        config = self._config
        known = {"group": config.group, "node": config.self_id, "addresses": dict(addresses)}
        connection.send_frame(HELLO, known)

    def addresses(self) -> Mapping[str, str]:
        """Peer ports of the members, by id."""
        return self._events.addresses() if self._heard else self._config.peers

    def prune(self, keeps: Callable[[Hello], bool]) -> None:
        """Close the connections with peers whose hello `keeps` rejects, because the group has removed these
        peers."""
        for connection in [*self._outbound.values(), *self._accepted]:
            hello = connection.hello
            if hello is not None and not connection.closed and not keeps(hello):
                text = f"{hello.node} is no longer a member of the group"
                self.refuse(connection, "removed", text)

    def refresh(self) -> None:
        """Close the connections with peers, because this node's identity changed and hellos must be exchanged
        again. Connections of clients stay open."""
        for connection in [*self._outbound.values(), *self._accepted]:
            if not connection.client:
                connection.close("identity changed")

    # Connections

    def _dialled(self, peer: str, place: str, store: str | None) -> PeerConnection:
        connection = PeerConnection(
            self._on_frame,
            self._on_lost,
            self._config.max_frame_bytes,
            dialled=peer,
            on_made=self._say_hello,
        )
        connection.secret = self.proofs.tell(peer)
        connection.place, connection.store = place, store
        return connection

    def _say_hello(self, connection: PeerConnection) -> None:
        hello = replace(self._events.my_hello(), secret=connection.secret)
        connection.send_frame(HELLO, encode_hello(hello))

    def adopt(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Take over an accepted connection whose hello names this group.

        Anybody can repeat the hello of a peer. So the connection stays a stranger until its nonce has come
        back.
        """
        if hello.get("client"):
            if sum(1 for other in self._accepted if other.client) >= self._config.max_client_connections:
                text = f"more than {self._config.max_client_connections} client connections"
                self.refuse(connection, "clients", text)
                return
            connection.client = True
            connection.unsent = self.unsent
            if not self.sources.admits(connection.host):
                self.sources.look()
            connection.hand_to(self._on_client_frame, self._on_lost, self._config.max_frame_bytes)
            self._tell_client(connection, self._events.addresses())
        else:
            peers = [one for one in self._accepted if not one.client]
            strangers = [one for one in peers if one.peer is None and not one.closed]
            if len(strangers) >= MAX_STRANGERS:
                text = f"more than {MAX_STRANGERS} connections without their nonce"
                self.refuse(strangers[0], "strangers", text)
            connection.hand_to(self._on_frame, self._on_lost, MAX_STRANGER_FRAME)
            loop = asyncio.get_running_loop()
            loop.call_later(self._config.hello_timeout_s, self._check_introduced, connection)
            self.sources.decide(connection, hello)
        if not connection.closed:
            self._accepted.append(connection)

    def turn_away(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Refuse a peer's hello that came from an address to which no member belongs."""
        node = str(hello.get("node"))[:MAX_ID]
        self.refuse(
            connection,
            "source",
            f"{node} is not a member of group {self._config.group} at {connection.host}: add it "
            "(dledger member add). If members connect from other addresses than the recorded ones, "
            "add those to peerAllowedSources, or use TLS (tls.peer.*)",
        )

    def admit(self, connection: PeerConnection, header: Mapping[str, object]) -> None:
        """Answer the hello of a peer that connected to this node."""
        hello = self._check(connection, header)
        if hello is None:
            return
        mine = encode_hello(self._events.my_hello())
        if connection.version < 2:
            connection.send_frame(HELLO, mine)
            self._introduced(connection, hello)
            return
        connection.hello = hello
        connection.nonce = self._env.ids.uuid()
        connection.send_frame(HELLO, mine | {"nonce": connection.nonce})

    def _check_introduced(self, connection: PeerConnection) -> None:
        if not connection.closed and connection.peer is None:
            self.refuse(connection, "silent", "the nonce was not sent back in time")

    def _check(self, connection: PeerConnection, header: object) -> Hello | None:
        """Return the hello of the other side if it may connect. Otherwise refuse the connection and return
        None."""
        try:
            hello = decode_hello(header)
            version = check_hello(self._events.my_hello(), hello, self._events.welcome(hello))
            if connection.dialled is not None and hello.node != connection.dialled:
                raise HelloRefused(
                    f"{connection.dialled} was dialled, but {hello.node} answers: check dLegerPeers",
                    "other node",
                )
            if connection.store not in (None, hello.incarnation):
                raise HelloRefused(
                    f"at the address in dLegerPeers {hello.node} answers with another store than the "
                    "recorded one",
                    "other node",
                )
            if self._tls is not None:
                check_certificate(hello, connection.names)
            self._check_store(connection, hello)
        except HelloRefused as refusal:
            self.refuse(connection, refusal.cause, str(refusal))
            return None
        connection.version = version
        return hello

    def _check_store(self, connection: PeerConnection, hello: Hello) -> None:
        """Refuse a node that connects with the id of a peer, if another store answers at that peer's address.

        Otherwise two processes with one id would replace each other's connections again and again, and
        answers to one would go to the other. There is one exception. The address that this node knows may be
        an old one, at which a removed store still runs. So a connecting node is accepted if it knows a newer
        configuration than both this node and that store; it brings this configuration.
        """
        standing = self._outbound.get(hello.node) if connection.dialled is None else None
        if standing is None or standing.closed or standing.hello is None:
            return
        if hello.shows_newer(self._events.my_hello()) and hello.shows_newer(standing.hello):
            return
        if standing.hello.incarnation != hello.incarnation:
            raise HelloRefused(
                f"two nodes use the id {hello.node}: another store answers at its address. Stop one "
                "of them, or check dLegerSelfId",
                "same id",
            )

    def _on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        peer = connection.peer
        if frame.number == ERROR:
            text = str(frame.header())[:MAX_ERROR_TEXT]
            self._refusals.note("refused by peer", _sender(connection), text)
            if connection.dialled is not None:
                self._keep(
                    connection.dialled,
                    f"{connection.dialled} at {connection.place} refuses this node: {text}",
                )
            connection.close(text)
        elif peer is not None:
            try:
                if frame.number == PIECE and connection.version >= PROTOCOL_WITH_PIECES:
                    whole = connection.pieces.add(frame, connection.max_frame)
                    if whole is None:
                        return
                    frame = whole
                message = decode_message(frame)
                if connection.version < 2 and isinstance(message, SINCE_2):
                    raise WireError(f"unknown message type {frame.number} in protocol {connection.version}")
                self._check_message(connection, peer, message)
            except WireError as error:
                connection.send_error(str(error))
                raise
            self._guard(self._events.on_message, connection, peer, message)
        elif connection.dialled is not None and frame.number == HELLO:
            self._on_answer(connection, frame.header())
        elif connection.hello is not None and frame.number == PROOF:
            if frame.header() != connection.nonce:
                self.refuse(connection, "replay", "another nonce than the one asked for: a replay")
                return
            self._introduced(connection, connection.hello)
        else:
            raise WireError(f"frame {frame.number} before the hello is complete")

    def _on_read(self) -> None:
        self._guard(self._events.on_read)

    def _on_answer(self, connection: PeerConnection, header: object) -> None:
        """Handle the hello with which a peer answers on a connection that this node made."""
        hello = self._check(connection, header)
        if hello is None:
            return
        nonce = header.get("nonce") if isinstance(header, dict) else None
        if isinstance(nonce, str):
            connection.send_frame(PROOF, nonce[:MAX_NONCE])
        self._introduced(connection, hello)

    def _introduced(self, connection: PeerConnection, hello: Hello) -> None:
        """Note that both sides have accepted each other, so that messages may be sent."""
        connection.peer = hello.node
        connection.on_read = self._on_read
        connection.hello = hello
        connection.max_frame = self._config.max_frame_bytes
        self.hellos[hello.node] = hello
        loop = asyncio.get_running_loop()
        if self._doubles.hear(hello, loop.time()):
            self._log.error(double_text(hello.node), heard_from=connection.host)
        self._refusals.forget(hello.node)
        if connection.dialled is None:
            self._refusals.forget(connection.host)
            if self._port is not None:
                self._port.welcomed(connection.host)
            loop.call_later(REACHED_BACK_S, self._check_reached_back, connection)
            self.proofs.hear(hello.node, hello.secret)
            older = self._inbound.get(hello.node)
            self._inbound[hello.node] = connection
            self._settled.pop(hello.node, None)
            if older is not None:
                older.abort()
            if hello.node in self._redial:
                self._redial[hello.node].set()
            self._guard(self._events.on_hello, hello)
        else:
            self._outbound[hello.node] = connection
            self.proofs.introduced(hello.node, connection.secret)
            self.refusals.pop(hello.node, None)
            if not connection.ready.done():
                connection.ready.set_result(None)
            self._guard(self._events.on_hello, hello)
            if not connection.closed:
                self._guard(self._events.on_peer_up, hello.node)

    def _check_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """Check that a peer names only itself as the sender, and sends requests only on connections that it
        made."""
        if isinstance(message, REPLIES) is (connection.dialled is None):
            raise WireError(f"{type(message).__name__} came on a connection of the other direction")
        sender = _SENDERS.get(type(message))
        if sender is not None and getattr(message, sender) != peer:
            raise WireError(f"{type(message).__name__} of {peer} names another node")

    def _on_client_frame(self, connection: PeerConnection, frame: Frame) -> None:
        if frame.number != CLIENT_REQUEST:
            raise WireError(f"frame {frame.number} is not a request of a client")
        self._guard(self._events.on_client_frame, connection, frame)

    def _on_lost(self, connection: PeerConnection) -> None:
        if connection in self._accepted:
            self._accepted.remove(connection)
        peer = connection.peer
        if connection.garbage:
            self._note(connection, "message" if peer else "garbage", connection.error)
        if peer is None:
            return
        if self._inbound.get(peer) is connection:
            del self._inbound[peer]
            self._settled.pop(peer, None)
        if self._outbound.get(peer) is connection:
            del self._outbound[peer]
            self._guard(self._events.on_peer_down, peer)
        if peer not in self._inbound and peer not in self._outbound:
            self.hellos.pop(peer, None)
            self.proofs.forget(peer)

    def refuse(self, connection: PeerConnection, cause: str, reason: str) -> None:
        """End a connection. The reason is sent to the other side and logged; `cause` is a constant for
        metrics."""
        self._note(connection, cause, reason)
        connection.send_error(reason)
        connection.close(reason)

    def _note(self, connection: PeerConnection, cause: str, reason: str) -> None:
        """Record that this node refuses a connection, or data that came on it."""
        self._refusals.note(cause, _sender(connection), reason)
        if connection.dialled is not None:
            self._keep(
                connection.dialled, f"this node refuses {connection.dialled} at {connection.place}: {reason}"
            )

    def _keep(self, peer: str, text: str) -> None:
        self.refusals[peer] = text[:MAX_ERROR_TEXT]

    def _guard(self, call: Callable[P, None], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a protocol callback. Nothing above it handles errors, so any error except WireError ends the
        node through `run` (architecture rule 7). A WireError is raised to the connection."""
        try:
            call(*args, **kwargs)
        except WireError:
            raise
        except Exception as error:
            self._fail(error)

    def meta(self, peer: str) -> Mapping[str, str]:
        """Return the `meta` of a connected peer's hello."""
        hello = self.hellos.get(peer)
        return hello.meta if hello else {}


def _sender(connection: PeerConnection) -> str:
    """Return the name of the sender for a refusal: the id of the node if it is known from the hello or from
    the connection that this side made, otherwise the host."""
    return connection.peer or connection.dialled or connection.host
