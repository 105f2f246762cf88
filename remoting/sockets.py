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
