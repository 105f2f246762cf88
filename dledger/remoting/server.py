"""The server side: one `RemotingServer` per port, one `Connection` per TCP connection.

A request needs no task, future or lock (`remoting.connection` describes its path). The server itself accepts
and counts connections, and closes idle ones.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request, request_name
from dledger.remoting.connection import Bulk, Connection, Handler
from dledger.remoting.errors import RemotingError
from dledger.remoting.limits import MAX_BODY, ServerLimits
from dledger.runtime.cooperative import Pace
from dledger.runtime.env import Env
from dledger.runtime.first_byte import FirstByteListener
from dledger.runtime.freed_memory import give_back_freed
from dledger.runtime.remoting_tls import HANDSHAKE_TIMEOUT_S, ServerTls
from dledger.runtime.standstill import Standstill
from dledger.runtime.turns import listen

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Bulk", "Connection", "Handler", "RemotingServer", "ServerLimits", "ServerStats"]


MAX_ERROR_CAUSES = 256
"""Limit of the different causes of errors that are counted separately; further causes share one count."""
TURN_S = 0.005
"""Time, in seconds, for which requests are handled in one turn of the loop. Connections with more requests
wait for the next turns, in the order of their reads."""
RECOUNT_S = 0.1
"""Interval, in seconds, at which a crowded server checks how much of the answers the system has accepted."""
TRIM_BYTES = 64 * 1024 * 1024
"""When unsent answers have decreased by this much, their memory is returned to the system."""
CLOSED_A_TURN = 100
"""Largest number of connections that are checked, or closed, in one turn of the loop."""


@dataclass
class ServerStats:
    """Counters since the start. `errors` counts errors by their cause: bad frames, failed handlers, refused
    connections."""

    accepted: int = 0
    closed: int = 0
    closed_idle: int = 0
    refused: int = 0
    requests: int = 0
    oneway: int = 0
    responses: int = 0
    stray_responses: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    late: int = 0
    """Number of reads after which some requests had to wait for a later turn of the loop."""
    errors: dict[str, int] = field(default_factory=dict)


class RemotingServer:
    """Listens on one port and passes requests to handlers by their code."""

    loop: asyncio.AbstractEventLoop
    """The event loop on which the server runs; set by `start`."""

    def __init__(
        self,
        env: Env,
        *,
        handlers: Mapping[int, Handler],
        limits: ServerLimits,
        name: str,
        on_connect: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        default: Handler | None = None,
        max_body: Mapping[int, int] | None = None,
        authorize: Callable[[Connection, Request], None] | None = None,
        tls: ServerTls | None = None,
        bulk: Bulk | None = None,
        standstill: Standstill | None = None,
    ) -> None:
        """With `standstill`, all connections are closed after the loop stood still. Requests that these
        connections brought before are not executed, because they may be late.

        `bulk` is called first for the bytes of each read. It must itself leave out the requests for which
        `authorize` has to be called. `max_body` maps codes to the largest size of their bodies; for other
        codes the limit is MAX_BODY. Without `max_body` the size of bodies is not limited. `authorize` raises
        if a request is not allowed.
        """
        self.handlers: dict[int, Handler] = dict(handlers)
        self._max_body = max_body
        self._authorize = authorize
        self.bulk: Bulk | None = bulk
        self.limits = limits
        self.default = default
        self.stats: ServerStats = ServerStats()
        self._log = env.log.child(name)
        self._on_connect = on_connect
        self._on_close = on_close
        self._connections: dict[int, Connection] = {}
        self._serial = 0
        self._opaque = 0
        self._tls = tls
        if tls is not None:
            env.reloads.add("TLS of clients", tls.reload)
        self._listeners: list[asyncio.Server | FirstByteListener] = []
        self._addresses: list[tuple[str, int]] = []
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()
        self._turn_ends: float | None = None
        """Loop time at which this turn ends; None until the first read of a turn."""
        self._late: deque[Connection] = deque()
        self.unsent: int = 0
        """Number of bytes of answers on all connections that the system has not accepted yet, as far as is
        known."""
        self._most_unsent = 0
        """The largest `unsent` since memory was last returned to the system."""
        self.crowded: bool = False
        """Whether more than `max_unsent` bytes are unsent; true until a quarter of that is free again."""
        self.era: int = 0
        """How often the loop stood still since the start. If a connection was made when this number was
        lower, its requests may be late."""
        self.standstill: Standstill | None = standstill
        if standstill is not None:
            standstill.listeners.append(self._stood_still)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The (host, port) pairs on which the server listens."""
        return list(self._addresses)

    @property
    def connections(self) -> list[Connection]:
        """The open connections, oldest first."""
        return list(self._connections.values())

    async def start(self, host: str, port: int) -> None:
        """Listen, or listen on another port as well. Port 0 chooses a free port. Raises OSError with the
        address in its text, for example if the port is in use."""
        self.loop = asyncio.get_running_loop()
        try:
            listener = await self._listen(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {reason}") from error
        self._listeners.append(listener)
        sockets = getattr(listener, "sockets", None) or ()
        self._addresses += [tuple(socket.getsockname()[:2]) for socket in sockets] or [(host, port)]

    async def _listen(self, host: str, port: int) -> asyncio.Server | FirstByteListener:
        tls, loop = self._tls, self.loop
        if tls is None:
            return await listen(lambda: Connection(self), host, port)
        tls.on_refused = lambda reason: self.complain("TLS handshake failed", "", reason=reason)

        def context() -> SSLContext:
            tls.refresh(loop.time())
            return tls.context

        def demanded() -> None:
            tls.on_refused("no TLS, which tls.server.mode=enforcing demands")

        listener = FirstByteListener(
            lambda: Connection(self),
            context,
            HANDSHAKE_TIMEOUT_S,
            lambda reason: self.complain("connection refused", "", reason=reason),
            on_plain=demanded if tls.enforcing else None,
        )
        await listener.listen(host, port)
        return listener

    async def run(self) -> None:
        """Accept connections, and close idle ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for listener in self._listeners:
                if isinstance(listener, FirstByteListener):
                    tasks.create_task(listener.run(), name="accept")
            tasks.create_task(self._sweep(), name="idle sweep")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.limits.idle_sweep_s)
            now = self.loop.time()
            pace = Pace(CLOSED_A_TURN)
            for connection in self.connections:
                await pace.step()
                quiet = now - connection.idle_since()
                if quiet > self.limits.idle_close_s:
                    self.stats.closed_idle += 1
                    connection.close_idle()
                elif quiet > self.limits.idle_sweep_s:
                    connection.release_memory()
            if self._most_unsent - self.unsent > TRIM_BYTES:
                self._most_unsent = self.unsent
                give_back_freed()

    async def close(self) -> None:
        """Stop listening, wait for the last answers to be sent (up to `close_grace_s`), and close all
        connections."""
        while self._listeners:
            self._listeners.pop().close()
        pace = Pace(CLOSED_A_TURN)
        for connection in self.connections:
            connection.close()
            await pace.step()
        try:
            async with asyncio.timeout(self.limits.close_grace_s):
                await self._empty.wait()
        except TimeoutError:
            for connection in self.connections:
                connection.abort()

    def _stood_still(self, paused_s: float) -> None:
        connections = self.connections
        self.era += 1
        if not connections:
            return
        what = "the event loop stood still: connections are closed"
        self._log.warning(what, paused_s=round(paused_s, 3), connections=len(connections))
        self._close_late(deque(connections))

    def _close_late(self, connections: deque[Connection]) -> None:
        for _ in range(min(CLOSED_A_TURN, len(connections))):
            connections.popleft().abort()
        if connections:
            self.loop.call_soon(self._close_late, connections)

    # --- for Connection -------------------------------------------------------------------------------

    def in_time(self) -> bool:
        """Whether another request may be handled in this turn of the loop."""
        now = self.loop.time()
        if self._turn_ends is None:
            self._turn_ends = now + TURN_S
            self.loop.call_soon(self._next_turn)  # runs before the reads of that turn
        return now < self._turn_ends

    def count_unsent(self, more: int) -> None:
        """Add `more`, which may be negative, to the unsent answers of all connections."""
        self.unsent += more
        limit = self.limits.max_unsent
        if self.unsent > self._most_unsent:
            self._most_unsent = self.unsent
        if self.unsent > limit and not self.crowded:
            self.crowded = True
            self.complain("too many answers are not read by clients", "", unsent=self.unsent, limit=limit)
            self.loop.call_later(RECOUNT_S, self._recount)

    def _recount(self) -> None:
        for connection in self.connections:
            connection.recount()
        if self.unsent > self.limits.max_unsent * 3 // 4:
            self.loop.call_later(RECOUNT_S, self._recount)
            return
        self.crowded = False
        for connection in self.connections:
            connection.recount()

    def wait_for_turn(self, connection: Connection) -> None:
        """Queue a connection for a later turn (`Connection.go_on`), because it has requests left. Connections
        that wait already come first."""
        self.stats.late += 1
        self._late.append(connection)
        self.in_time()  # so that there is a next turn, even if nothing was read in this turn

    def _next_turn(self) -> None:
        self._turn_ends = None
        for _ in range(len(self._late)):
            if not self.in_time():
                break
            self._late.popleft().go_on()

    def dispatch(self, connection: Connection, request: Request) -> None:
        """Pass a request to its handler. If the handler raises, the exception becomes the answer (safety.md
        S29)."""
        if len(request.body) > MAX_BODY and self._too_large(connection, request):
            return
        handler = self.handlers.get(request.code, self.default)
        if handler is None:
            remark = f" request type {request.code} not supported"
            connection.respond(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            self.complain("request code not supported", connection.peer, code=request.code)
            return
        try:
            if self._authorize is not None:
                self._authorize(connection, request)
            handler(connection, request)
        except RemotingError as error:
            self.count_error(f"{request_name(request.code)} answered with code {error.code}")
            if request.size:  # it was not answered before it failed
                code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
                connection.respond(request, code, remark=error.remark)
        except Exception as error:  # a failed request must not affect others
            name = type(error).__name__
            cause = f"handler of {request_name(request.code)} failed: {name}"
            self.complain(cause, connection.peer, error=error)
            if request.size:
                connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=f"{name}: {error}")

    def _too_large(self, connection: Connection, request: Request) -> bool:
        """Refuse a body that is too large for its code before it is parsed; returns whether it was
        refused."""
        if self._max_body is None or request.code not in self.handlers:
            return False
        limit = self._max_body.get(request.code, MAX_BODY)
        if len(request.body) <= limit:
            return False
        name = request_name(request.code)
        self.complain(f"{name}: body too large", connection.peer, size=len(request.body), limit=limit)
        remark = f"the body of {name} has {len(request.body)} bytes; the limit is {limit}"
        connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=remark)
        return True

    def next_opaque(self) -> int:
        """Return the correlation number of the next request of ours: 31 bits; after the last number it starts
        again."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def admit(self, connection: Connection) -> bool:
        """Register a new connection. Returns False if there are too many, or if the connection may have
        waited to be accepted while the loop stood still."""
        if len(self._connections) >= self.limits.max_connections:
            self.stats.refused += 1
            self.complain("too many connections", connection.peer, limit=self.limits.max_connections)
            return False
        if self.standstill is not None:
            self.standstill.check()
            if self.standstill.settling:
                self.count_error("connected while the event loop stood still")
                return False
        self.stats.accepted += 1
        self._serial += 1
        connection.serial = self._serial
        self._connections[self._serial] = connection
        self._empty.clear()
        return True

    def opened(self, connection: Connection) -> None:
        """Notify the application of an admitted connection."""
        if self._on_connect is not None:
            self._on_connect(connection)

    def discharge(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.stats.closed += 1
        del self._connections[connection.serial]
        if not self._connections:
            self._empty.set()
        if self._on_close is not None:
            self._on_close(connection)

    def count_error(self, cause: str) -> int:
        """Count an error by cause, and return its count. The number of causes is limited; further causes
        share one count."""
        errors = self.stats.errors
        if cause not in errors and len(errors) >= MAX_ERROR_CAUSES:
            cause = "other"
        errors[cause] = errors.get(cause, 0) + 1
        return errors[cause]

    def complain(self, cause: str, peer: str, error: Exception | None = None, **fields: object) -> None:
        """Count an error by its cause. Log the first, tenth, hundredth ... error of each cause."""
        count = self.count_error(cause)
        if str(count).strip("0") != "1":
            return
        if error is not None:
            fields["trace"] = "".join(traceback.format_exception(error))
        self._log.warning(cause, peer=peer, count=count, **fields)
