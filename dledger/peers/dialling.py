"""Connects to a peer by name, which may have several addresses. A refused connection can prove that the
peer's process is gone (safety.md S17)."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable

from dledger.formats.addresses import split_address
from dledger.peers.links import PeerConnection
from dledger.runtime.tls import PeerTls


class Dialler:
    """Connects to one peer. It remembers the addresses of the peer's name, so that a new attempt need not
    wait for the name to be resolved."""

    def __init__(self, address: str, tls: PeerTls | None, timeout_s: float) -> None:
        self.address = address
        self._port = 0
        self._tls = tls
        self._timeout_s = timeout_s
        self._known: tuple[str, ...] = ()

    async def connect(self, make: Callable[[], PeerConnection]) -> PeerConnection:
        """Connect to the first address that answers. Raises ConnectionRefusedError if no process listens at
        any address of the name. Raises OSError or TimeoutError if no address answers but a process may still
        listen at one of them.
        """
        refused: ConnectionRefusedError | None = None
        silent: TimeoutError | None = None
        failed: OSError | None = None
        for place, host in enumerate(self._known or await self._resolve()):
            try:
                async with asyncio.timeout(self._timeout_s):
                    connection = await self._connect(make, host)
            except ConnectionRefusedError as error:
                refused = error
            except TimeoutError as error:
                silent = error
            except OSError as error:  # no route, or no such address family; the other addresses may work
                failed = error
            else:
                if place:
                    self._known = (host, *(other for other in self._known if other != host))
                return connection
        self._known = ()  # the name may belong to another machine now
        raise silent or refused or failed or OSError(f"{self.address} has no address")

    async def _connect(self, make: Callable[[], PeerConnection], host: str) -> PeerConnection:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            return (await loop.create_connection(make, host, self._port))[1]
        self._tls.refresh()
        _, connection = await loop.create_connection(
            make,
            host,
            self._port,
            ssl=self._tls.client,
            ssl_handshake_timeout=self._timeout_s,
            ssl_shutdown_timeout=self._timeout_s,
        )
        return connection

    async def _resolve(self) -> tuple[str, ...]:
        try:
            host, self._port = split_address(self.address)
            if _is_ip(host):
                self._known = (host,)
                return self._known
            async with asyncio.timeout(self._timeout_s):
                found = await asyncio.get_running_loop().getaddrinfo(host, self._port)
        except ValueError as error:
            # Addresses are checked, but a log may contain an invalid one already. It cannot be reached.
            raise OSError(f"{self.address}: {error}") from error
        # Several socket types give an address several times.
        self._known = tuple(dict.fromkeys(str(info[4][0]) for info in found))
        return self._known


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
