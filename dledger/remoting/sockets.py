"""The little that is asked of a socket itself. Not every transport has one: all tolerate that."""

from __future__ import annotations

import asyncio
import sys

from dledger.runtime.silent_peers import end_when_silent

IPPROTO_TCP = 6
TCP_NODELAY = 1
"""Numbers of <netinet/tcp.h>, the same everywhere (`socket` is not imported outside runtime)."""
# Those of <sys/socket.h> are not.
SOL_SOCKET, SO_LINGER = (1, 13) if sys.platform == "linux" else (0xFFFF, 0x80)
_AT_ONCE = (1).to_bytes(4, sys.byteorder) + bytes(4)
"""`struct linger`: on, 0 seconds."""


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small frames at once: we gather a turn's output ourselves."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def watch(transport: asyncio.BaseTransport, vanished_close_s: float) -> None:
    """Have the kernel end the connection when the machine at its other end says nothing for so long, while
    nothing is on the way there."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        end_when_silent(sock, int(vanished_close_s * 1000), unread=False)


def discard(transport: asyncio.WriteTransport) -> None:
    """Abort, and have the kernel send nothing more of what it took (RST instead of FIN).

    After an ordinary abort the kernel goes on: a request that waited there for a cut link would be executed
    when it heals, long after its sender gave it up and asked elsewhere.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
    transport.abort()


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Address of the other end as "ip:port"."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name or "")
