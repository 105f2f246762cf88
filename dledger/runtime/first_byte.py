"""A port for connections with and without TLS. The first byte of a connection decides which it is.

The byte is only peeked at and stays in the kernel's buffer, so that the socket is passed on with all its
data.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from dledger.runtime.turns import ACCEPTED, BACKLOG

TLS_HANDSHAKE = 0x16
"""First byte of a TLS record that begins a handshake. A frame of the remoting protocol that began with it
would have more than 352 MiB, so no such frame exists."""
DECIDE_WITHIN_S = 10.0
"""Time, in seconds, after which a connection that has sent nothing continues without TLS. The code that waits
for its first request has its own limits for silent connections."""
MAX_UNDECIDED = 1000
"""Largest number of connections that have sent nothing yet. With one more, the oldest of them continues
without TLS at once."""
MAX_HANDSHAKES = 256
"""Largest number of handshakes in progress; each takes up to 2 ms of CPU. One more connection is closed."""
ACCEPT_PAUSE_S = 1.0
"""Pause, in seconds, of accepting when the system has no descriptor or memory for another connection. Without
a pause the system would report this without end."""

REFUSED = b"\x15\x03\x03\x00\x02\x02\x46"
"""A fatal TLS alert (protocol_version). It is the answer to a client without TLS if TLS is required."""
REFUSED_LINGER_S = 1.0
"""Largest time, in seconds, for which data of a refused client is still read. If the connection were closed
earlier, the answer might not reach the client."""
DRAINED = 64 * 1024
"""Number of bytes of such data that are read at once."""

_Undecided = tuple[socket.socket, asyncio.TimerHandle]


class FirstByteListener:
    """Listens, examines the first byte of each connection, and passes the connection on. Works only while
    `run` is running."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        handshake_timeout_s: float,
        on_failed: Callable[[str], None],
        *,
        on_plain: Callable[[], None] | None = None,
    ) -> None:
        """`context` is called before each handshake. `on_failed` is called with the reason when a connection
        fails. `on_plain` is given if TLS is required; it is called for each client without TLS, which gets an
        alert and is closed."""
        self._on_plain = on_plain
        self._factory = factory
        self._context = context
        self._timeout_s = handshake_timeout_s
        self._on_failed = on_failed
        self._undecided: dict[int, _Undecided] = {}
        self._decided: asyncio.Queue[tuple[socket.socket, bool]] = asyncio.Queue()
        self._handshakes = 0
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int) -> None:
        """Start listening. Raises OSError if that is not possible."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                self.sockets.append(listener)
                listener.setblocking(False)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
                listener.listen(BACKLOG)
                loop.add_reader(listener.fileno(), self._accept, listener)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Accept no more connections. The connections that were passed on stay open."""
        loop = asyncio.get_running_loop()
        for listener in self.sockets:
            loop.remove_reader(listener.fileno())
            listener.close()
        self.sockets = []
        for number in list(self._undecided):
            self._take(number).close()
        while not self._decided.empty():
            self._decided.get_nowait()[0].close()

    async def run(self) -> None:
        """Pass connections on, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                connection, secure = await self._decided.get()
                if secure and self._handshakes >= MAX_HANDSHAKES:
                    self._on_failed(f"{self._handshakes} handshakes are in flight")
                    connection.close()
                    continue
                self._handshakes += secure
                tasks.create_task(self._hand_over(connection, secure), name="accept")

    async def _hand_over(self, connection: socket.socket, secure: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            if secure:
                await loop.connect_accepted_socket(
                    self._factory,
                    connection,
                    ssl=self._context(),
                    ssl_handshake_timeout=self._timeout_s,
                    ssl_shutdown_timeout=self._timeout_s,
                )
            else:
                await loop.connect_accepted_socket(self._factory, connection)
        except OSError as error:  # also a handshake that failed, or took too long
            self._on_failed(str(error) or type(error).__name__)
            connection.close()
        finally:
            self._handshakes -= secure

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._on_failed(f"cannot accept: {error}")
                loop.remove_reader(listener.fileno())
                loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listener)
                return
            connection.setblocking(False)
            if len(self._undecided) >= MAX_UNDECIDED:
                self._make_room()
            number = connection.fileno()
            timer = loop.call_later(DECIDE_WITHIN_S, self._decide, number, False)
            self._undecided[number] = connection, timer
            loop.add_reader(number, self._look, number)

    def _make_room(self) -> None:
        oldest = next(iter(self._undecided))
        if self._on_plain is None:
            self._decide(oldest, secure=False)
        else:
            self._forget(oldest)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self.sockets:  # not closed meanwhile
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _look(self, number: int) -> None:
        connection, _ = self._undecided[number]
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first:
            self._decide(number, secure=first[0] == TLS_HANDSHAKE)
        else:
            self._forget(number)

    def _decide(self, number: int, secure: bool) -> None:
        if secure or self._on_plain is None:
            self._decided.put_nowait((self._take(number), secure))
        else:
            self._on_plain()
            self._refuse(number)

    def _refuse(self, number: int) -> None:
        connection = self._take(number)
        try:
            connection.recv(DRAINED)
            connection.send(REFUSED)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it sent nothing, or is gone
            connection.close()
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(REFUSED_LINGER_S, self._forget, number)
        self._undecided[number] = connection, timer
        loop.add_reader(number, self._drain, number)

    def _drain(self, number: int) -> None:
        try:
            if self._undecided[number][0].recv(DRAINED):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._take(number).close()

    def _take(self, number: int) -> socket.socket:
        connection, timer = self._undecided.pop(number)
        timer.cancel()
        asyncio.get_running_loop().remove_reader(number)
        return connection
