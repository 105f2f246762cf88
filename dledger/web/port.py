"""One HTTP port: an aiohttp application behind a listener with limits."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from dledger.web.listener import Listener

SHUTDOWN_S = 2.0
"""How long requests that are being answered may take to end when the port is closed, in seconds."""


class HttpPort:
    """Serves an application on one port. `application` takes its routes before `start`."""

    def __init__(self) -> None:
        self.application: web.Application = web.Application(middlewares=[self._noted])
        self._runner = web.AppRunner(self.application, access_log=None, shutdown_timeout=SHUTDOWN_S)
        self._listener = Listener(self._runner)

    async def start(self, host: str, port: int) -> None:
        """Start to listen. Raises OSError, which names the address, if that fails."""
        await self._runner.setup()
        try:
            await self._listener.open(host, port)
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Addresses (host, port) on which the port accepts connections."""
        return self._listener.addresses

    def served(self, request: web.BaseRequest) -> None:
        """Note that the connection of a request is in use, so that it is not closed as idle."""
        self._listener.served(request)

    async def close(self) -> None:
        """Accept no more connections, and close the open ones."""
        self._listener.close()
        await self._runner.cleanup()

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.served(request)
        return await handler(request)
