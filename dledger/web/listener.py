"""The connections of the HTTP port. Their number, their idle time and the size of their unread answers are
limited.

aiohttp has no such limits. Without limits, idle connections would stay for ever, and many of them would use
up all file descriptors of the broker. The answers to a client that asks for metrics and never reads them
would fill the broker's memory.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

MAX_CONNECTIONS = 64
"""Largest number of open connections. To accept one more, the connection is closed that was idle for the
longest time."""
MAX_UNSENT = 16 * 1024 * 1024
"""Limit, in bytes, of the answers that clients have not read yet, over all connections. Beyond it, the
connections with the largest unread answers are closed."""
IDLE_S = 75.0
"""Seconds without a request after which a connection is closed."""


class Listener:
    """Accepts HTTP connections for an aiohttp runner, which must be set up already, and closes connections
    that exceed the limits in this module."""

    def __init__(self, runner: web.AppRunner, *, idle_s: float = IDLE_S) -> None:
        self._runner = runner
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._active: dict[RequestHandler, float] = {}
        """Maps each connection to the loop time of its last request, or of its beginning if it has had none.
        The connection that was idle for the longest time comes first."""

    async def open(self, host: str, port: int) -> None:
        """Start to listen. Raises OSError if that fails."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Addresses (host, port) on which the listener accepts connections."""
        sockets = () if self._server is None else self._server.sockets
        return [tuple(socket.getsockname()[:2]) for socket in sockets]

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._active)

    @property
    def handlers(self) -> list[RequestHandler]:
        """Handlers of the open connections. The one that was idle for the longest time comes first."""
        return list(self._active)

    def close(self) -> None:
        """Accept no more connections. Open connections stay until the runner is cleaned up."""
        if self._server is not None:
            self._server.close()

    def served(self, request: web.BaseRequest) -> None:
        """Note that a connection has received a request, so that it is not idle. If unread answers exceed
        MAX_UNSENT, close the connections with the largest ones."""
        handler = request.protocol
        if self._active.pop(handler, None) is not None:
            self._active[handler] = asyncio.get_running_loop().time()
        unsent = {
            one: one.transport.get_write_buffer_size() for one in self._active if one.transport is not None
        }
        total = sum(unsent.values())
        for one, size in sorted(unsent.items(), key=lambda item: -item[1]):
            if total <= MAX_UNSENT:
                break
            self._end(one)
            total -= size

    def _accept(self) -> RequestHandler:
        assert self._runner.server is not None
        self._forget()
        if len(self._active) >= MAX_CONNECTIONS:
            self._end(next(iter(self._active)))
        handler = self._runner.server()
        loop = asyncio.get_running_loop()
        self._active[handler] = loop.time()
        loop.call_later(self._idle_s, self._look, handler)
        return handler

    def _look(self, handler: RequestHandler) -> None:
        """Close a connection if it was idle for `idle_s`. If it has received a request meanwhile, check again
        `idle_s` after that request."""
        since = self._active.get(handler)
        if since is None:
            return
        loop = asyncio.get_running_loop()
        left = since + self._idle_s - loop.time()
        if left <= 0:
            self._end(handler)
        else:
            loop.call_later(left, self._look, handler)

    def _end(self, handler: RequestHandler) -> None:
        del self._active[handler]
        transport = handler.transport
        handler.force_close()
        if transport is not None:
            transport.abort()  # otherwise it stays open until all unsent answers are sent

    def _forget(self) -> None:
        """Remove connections that the client has closed."""
        # A connection that was accepted in this turn of the event loop has no transport yet.
        before = asyncio.get_running_loop().time() - 1.0
        gone = [one for one, since in self._active.items() if one.transport is None and since < before]
        for handler in gone:
            del self._active[handler]
