"""The little that is asked of a socket itself. A transport of the simulator has none: all tolerate that."""

from __future__ import annotations

import asyncio

IPPROTO_TCP = 6
TCP_NODELAY = 1
"""Numbers of <netinet/tcp.h>, the same everywhere (`socket` is not imported outside runtime)."""


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small frames at once: we gather a turn's output ourselves."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Address of the other end as "ip:port"."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name or "")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" ("[v6]:port" as well); ValueError when it is not one."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"not an address of the form host:port: {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
