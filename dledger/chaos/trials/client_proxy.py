"""Breaks the links of the client programs to a group that others have started.

The brokers keep their addresses. The event loop of the client programs (`DivertedLoop`) connects to this
proxy whenever a program connects to one of them, so only connections of this process are disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dledger.chaos.trials.network import CLIENTS
from dledger.chaos.trials.proxy import Behind, ProxyNetwork
from dledger.formats.addresses import split_address
from dledger.local.ports import HOST


class DivertedLoop(asyncio.SelectorEventLoop):
    """An event loop that connects to another address instead of some addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.diversions: dict[tuple[str, int], tuple[str, int]] = {}
        """Maps an address (host and port) to the one that is used instead."""

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        """Connect as asyncio does. With TLS the certificate must still be that of the host that was
        given."""
        to = self.diversions.get((host, port))
        if to is not None:
            if more.get("ssl"):
                more.setdefault("server_hostname", host)
            host, port = to
        return await super().create_connection(protocol_factory, host, port, **more)


class ClientProxy(ProxyNetwork):
    """A proxy between the clients of this process and brokers at other addresses."""

    def __init__(self, brokers: Mapping[str, str]) -> None:
        """`brokers` maps each node to the address (host:port) at which clients find it. Raises OSError if the
        proxy cannot listen."""
        self._brokers = {node: split_address(address) for node, address in brokers.items()}
        self._places: dict[str, tuple[str, int]] = {}
        super().__init__({node: [0] for node in brokers}, lambda host: None)

    @property
    def diversions(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Maps the address of each broker to that of the proxy for it."""
        return {address: self._places[node] for node, address in self._brokers.items()}

    def listen_at(self, host: str) -> str:
        """The loopback address; the system chooses the port."""
        return HOST

    def listens(self, host: str, address: tuple[str, int]) -> None:
        """Note where the proxy of a broker listens."""
        self._places[host] = address

    def behind(self, source: str, target: str, port: int) -> Behind:
        """The broker itself."""
        return Behind(*self._brokers[target])

    def host_of(self, port: int, to_port: int) -> str:
        """Whoever connects is a client of this process."""
        return CLIENTS
