"""A remoting client that behaves like clients of other projects (Java before 5.0, C++, Go).

These clients do not notice that a connection is lost before they write to it again, and wait for their own
time-out. They find the request of an answer by its number alone, even if the answer comes over another
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from dledger.remoting.codes import LanguageCode
from dledger.remoting.commands import Request
from dledger.remoting.frames import Fields, FrameReader, encode_request
from dledger.runtime.env import Env

CONNECT_S, TIMEOUT_S = 3.0, 3.0


class _Link(asyncio.BufferedProtocol):
    """One connection to a broker. The client notices that the connection has ended only when it next writes
    to it."""

    def __init__(self, client: UnawareClient) -> None:
        self._client = client
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None

    @property
    def up(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Write data to the connection."""
        assert self._transport is not None
        self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for command in self._reader.received(nbytes):
            if command.is_response:
                self._client.came(command, self)
        if self._reader.error is not None:
            raise self._reader.error


@dataclass(slots=True)
class Asked:
    """A request that has no answer yet."""

    code: int
    link: _Link
    answer: asyncio.Future[tuple[Request, bool]]
    """The answer, and whether it came over a different connection than the one on which the request was sent.
    """
    since: float
    """Time of the event loop when the request was sent."""

    def age(self) -> float:
        """Seconds since the request was sent."""
        return self.answer.get_loop().time() - self.since


class UnawareClient:
    """Sends requests. It finds the request of an answer by its number alone."""

    def __init__(self, env: Env) -> None:
        self._links: dict[str, _Link] = {}
        self._opaque = env.random.getrandbits(16)
        self.asked: dict[int, Asked] = {}

    def links(self, addresses: Sequence[str]) -> tuple[object, ...]:
        """The connections to these brokers. Empty if one of them is not open, as far as this client knows."""
        found = tuple(self._links[address] for address in addresses if address in self._links)
        return found if len(found) == len(addresses) and all(link.up for link in found) else ()

    def came(self, answer: Request, link: _Link) -> None:
        """Handle an answer that arrived over `link`. It is ignored if no request waits for it."""
        asked = self.asked.get(answer.opaque)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result((answer, link is not asked.link))

    async def ask(
        self, address: str, code: int, header: Fields = None, body: bytes = b"", timeout_s: float = TIMEOUT_S
    ) -> tuple[Request, bool]:
        """Send a request. Returns the answer, and whether it came over another connection. Raises OSError,
        including TimeoutError, if there is no answer."""
        link = self._links.get(address)
        loop = asyncio.get_running_loop()
        if link is None or not link.up:
            host, _, port = address.rpartition(":")
            async with asyncio.timeout(CONNECT_S):
                _, link = await loop.create_connection(lambda: _Link(self), host, int(port))
            self._links[address] = link
        self._opaque += 1
        opaque = self._opaque
        asked = self.asked[opaque] = Asked(code, link, loop.create_future(), loop.time())
        head = encode_request(code, opaque, header, len(body), language=LanguageCode.GO)
        try:
            link.send(head + body)
            async with asyncio.timeout(timeout_s):
                return await asked.answer
        finally:
            del self.asked[opaque]
