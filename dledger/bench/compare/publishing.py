"""Common base of the connections that publish to RabbitMQ, for both protocols of RabbitMQ."""

from __future__ import annotations

import asyncio

from dledger.bench.compare.system import CompareError, Done


class Publishing(asyncio.Protocol):
    """Collects the bytes of one turn of the event loop and writes them together. While the connection is
    being opened, it waits for each answer."""

    def __init__(self) -> None:
        self._waiting: dict[int, Done] = {}
        """Maps the number in a confirm to the function that is called when the confirm arrives."""
        self._out: list[bytes] = []
        self._data = b""
        self._come: asyncio.Future[None] | None = None
        self.lost = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Nothing is sent before `open` is called."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Make the answer that `open` waits for fail."""
        if self._come is not None and not self._come.done():
            self._come.set_exception(CompareError(f"RabbitMQ hung up: {self.lost or error}"))

    def _put(self, *parts: bytes) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += parts

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()
