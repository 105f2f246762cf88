"""The peer port: listens, and learns from the hello to which group a connection belongs.

Usually a node opens a port for itself. Nodes of several groups in one process share one port; the code that
starts them opens it and passes it to each `Node`.

A connection is a *stranger* until its hello is understood. Strangers may be few, may send little, and have
little time, so that they cannot prevent peers from connecting.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from typing import Protocol

from dledger.errors import EXIT_CONFIG, EXIT_START, NodeFailed
from dledger.peers.links import MAX_ERROR_TEXT, PeerConnection
from dledger.peers.refusals import Refusals
from dledger.peers.sources import EVERYWHERE, own_places
from dledger.peers.wire import ERROR, HELLO, Frame, WireError
from dledger.runtime import Env
from dledger.runtime.tls import PeerTls

MAX_STRANGERS = 64
"""Largest number of connections without a hello. Also the largest number, for each node, of connections that
have not sent back its nonce. One more closes the oldest."""
MAX_STRANGER_FRAME = 64 * 1024
"""Limit, in bytes, of a frame that comes before the nonce, including the hello."""
_ANYBODY = "?"
"""Name that stands for the sender of a failed handshake, because the sender is not known."""


class PortOwner(Protocol):
    """Owner of the connections of one node."""

    def adopt(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Take over an accepted connection whose hello names this group."""


class PeerPort:
    """One listening address. With `tls` None its connections are not encrypted."""

    def __init__(
        self,
        env: Env,
        host: str,
        port: int,
        *,
        tls: PeerTls | None = None,
        hello_timeout_s: float = 2.0,
        expected: tuple[str, ...] = (),
        peers: Mapping[str, str] | None = None,
        self_id: str = "",
    ) -> None:
        """`expected` are groups whose nodes may still be opening their logs.

        If `peers` and `self_id` are given, there is no TLS and `host` is 0.0.0.0, the port listens only on
        the addresses at which the other nodes find this one."""
        self._say = env.log.child("port")
        self._host = host
        self._port = port
        self._narrow = peers if tls is None and host in EVERYWHERE else None
        self._self_id = self_id
        self._tls = tls
        self._hello_timeout_s = hello_timeout_s
        self._server: asyncio.AbstractServer | None = None
        self._owners: dict[str, PortOwner] = {}
        self._expected = expected
        self._joined: set[str] = set()
        self._failed: set[str] = set()
        self._strangers: dict[PeerConnection, asyncio.TimerHandle] = {}
        """Strangers, oldest first. Each has a timer that closes it if no hello comes in time."""
        self.refusals: Refusals = Refusals(env.log.child("port"))
        """Refusals of connections whose group was not known yet."""

    async def open(self) -> None:
        """Start listening. Raises NodeFailed with the port in its text, if the port is in use."""
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None:
                self._server = await self._open_plain()
            else:
                self._tls.on_refused = lambda reason: self.refusals.note("tls", _ANYBODY, reason)
                self._server = await loop.create_server(
                    self._accept,
                    self._host,
                    self._port,
                    ssl=self._tls.server,
                    ssl_handshake_timeout=self._hello_timeout_s,
                    ssl_shutdown_timeout=self._hello_timeout_s,
                )
        except OSError as error:
            raise NodeFailed(f"cannot listen for peers on port {self._port}: {error}", EXIT_START) from error

    async def _open_plain(self) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        if self._narrow is not None:
            own = self._narrow[self._self_id]
            places = await own_places(own, self._narrow)
            try:
                if places:
                    host = places[0] if len(places) == 1 else places
                    return await loop.create_server(self._accept, host, self._port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
            self._say.warning(
                "listening for peers on all addresses: the address of this node in dLegerPeers is "
                "not one of this machine, or cannot be resolved",
                own=own,
            )
        return await loop.create_server(self._accept, self._host, self._port)

    async def close(self) -> None:
        """Accept no more connections. The connections that a node has adopted stay open."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._strangers):
            connection.close("shutting down")

    def join(self, group: str, owner: PortOwner) -> None:
        """Pass connections for `group` to `owner` from now on. Raises NodeFailed if the group has an owner
        already."""
        if group in self._owners:
            raise NodeFailed(f"two nodes of group {group!r} share a port", EXIT_CONFIG)
        self._owners[group] = owner
        self._joined.add(group)

    def leave(self, group: str) -> None:
        """Note that the node of this group has ended."""
        self._owners.pop(group, None)

    def failed(self, group: str) -> None:
        """Note that the node of this group ended, or could not open its store, and will not come back without
        an operator."""
        self._failed.add(group)

    def welcomed(self, host: str) -> None:
        """Note that a node connected properly from this host, so later errors of the host are logged again.
        Failed handshakes are logged again too, because their sender is never known."""
        self.refusals.forget(host)
        self.refusals.forget(_ANYBODY)

    # Connections

    def _accept(self) -> PeerConnection:
        if self._tls is not None:
            self._tls.refresh()  # the handshake comes after this
        return PeerConnection(self._on_frame, self._on_lost, MAX_STRANGER_FRAME, on_made=self._on_made)

    def _on_made(self, connection: PeerConnection) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self._refuse(oldest, "strangers", f"more than {MAX_STRANGERS} connections without a hello")
        self._strangers[connection] = asyncio.get_running_loop().call_later(
            self._hello_timeout_s, self._refuse, connection, "silent", "no hello in time"
        )

    def _forget(self, connection: PeerConnection) -> None:
        """Remove a connection from the strangers. Also cancel its timer, because the timer would keep the
        connection in memory."""
        self._strangers.pop(connection).cancel()

    def _on_lost(self, connection: PeerConnection) -> None:
        if connection in self._strangers:
            self._forget(connection)
            if connection.garbage:
                self.refusals.note("garbage", connection.host, connection.error)

    def _on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        if frame.number == ERROR:
            connection.close(str(frame.header())[:MAX_ERROR_TEXT])
            return
        header = frame.header() if frame.number == HELLO else None
        if not isinstance(header, dict):
            raise WireError("the first frame must be a hello")
        owner = self._owner(header)
        if owner is None:
            self._turn_away(connection, header)
        else:
            self._forget(connection)
            owner.adopt(connection, header)

    def _owner(self, hello: Mapping[str, object]) -> PortOwner | None:
        if len(self._owners) == 1 and len(self._expected) < 2:
            # The owner's checks give the best reasons, and a client need not know the group's name.
            return next(iter(self._owners.values()))
        group = hello.get("group")
        return self._owners.get(group) if isinstance(group, str) else None

    def _turn_away(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Refuse a connection for which there is no node. A peer tries again by itself; it is sent a reason
        only if waiting will not help."""
        group = hello.get("group")
        if group not in self._expected:
            groups = ", ".join(sorted(self._owners)) or "none yet"
            wrong = "no group is named" if group is None else f"no group {str(group)[:64]!r} at this port"
            hint = " (name one with --group)" if group is None else ""
            self._refuse(connection, "group", f"{wrong}; there are: {groups}{hint}")
        elif group in self._failed:
            self._refuse(connection, "group", f"the node of group {group!r} has failed: see its log")
        else:
            passing = "has ended" if group in self._joined else "is being opened"
            reason = f"the node of group {group!r} {passing}"
            if hello.get("client"):
                connection.send_error(reason)
            connection.close(reason)

    def _refuse(self, connection: PeerConnection, cause: str, reason: str) -> None:
        self._forget(connection)
        self.refusals.note(cause, connection.host, reason)
        connection.send_error(reason)
        connection.close(reason)
