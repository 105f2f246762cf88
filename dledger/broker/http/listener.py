"""The connections of the HTTP port, with limits on their number, their idle time and their unread answers.

aiohttp has no such limits. There a connection without a request stays for ever, so many of them would use up
all file descriptors of the broker. A client that asks for metrics without reading would fill its memory.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

MAX_CONNECTIONS = 64
"""Open connections; for one more the one that was idle for longest is closed."""
MAX_UNSENT = 16 * 1024 * 1024
"""Bytes of answers that clients have not read, over all connections; beyond this the connections with the
most are closed."""
IDLE_S = 75.0
"""Seconds without a request after which a connection is closed."""


class Listener:
    """Accepts connections for a runner that is set up."""

    def __init__(self, runner: web.AppRunner, *, idle_s: float = IDLE_S) -> None:
        self._runner = runner
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._active: dict[RequestHandler, float] = {}
        """Loop time of the last request of each connection, or of its beginning; the oldest is the first."""

    async def open(self, host: str, port: int) -> None:
        """Start to listen. OSError if that fails."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses (host, port) on which it listens."""
        sockets = () if self._server is None else self._server.sockets
        return [tuple(socket.getsockname()[:2]) for socket in sockets]

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._active)

    @property
    def handlers(self) -> list[RequestHandler]:
        """Handlers of the open connections; the one that was idle for longest is the first."""
        return list(self._active)

    def close(self) -> None:
        """Accept no more connections. Open ones end with the runner."""
        if self._server is not None:
            self._server.close()

    def served(self, request: web.BaseRequest) -> None:
        """A request came: its connection is not idle. Close connections with unread answers if they are above
        the limit."""
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
        """Close a connection that was idle for long enough; else look again when it can be."""
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
            transport.abort()  # else it stays until what it has not taken is sent

    def _forget(self) -> None:
        """Remove connections that the other side has closed."""
        # One that was accepted in this turn of the loop has no transport yet.
        before = asyncio.get_running_loop().time() - 1.0
        gone = [one for one, since in self._active.items() if one.transport is None and since < before]
        for handler in gone:
            del self._active[handler]
