"""Settings of sockets. For a transport without a socket these functions do nothing."""

from __future__ import annotations

import asyncio
import sys

from dledger.runtime.silent_peers import end_when_silent

IPPROTO_TCP = 6
TCP_NODELAY = 1
"""The number from <netinet/tcp.h>, which is the same on all systems. (Only `runtime` may import `socket`.)"""
# Those of <sys/socket.h> are not.
SOL_SOCKET, SO_LINGER = (1, 13) if sys.platform == "linux" else (0xFFFF, 0x80)
_AT_ONCE = (1).to_bytes(4, sys.byteorder) + bytes(4)
"""A `struct linger` that is on, with 0 seconds."""


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Make the system send small frames at once, because this layer itself collects the output of each
    turn."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def watch(transport: asyncio.BaseTransport, vanished_close_s: float) -> None:
    """Make the kernel close the connection if the peer's machine has been silent for this long while no data
    is in flight to it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        end_when_silent(sock, int(vanished_close_s * 1000), unread=False)


def discard(transport: asyncio.WriteTransport) -> None:
    """Abort the connection, and make the kernel drop the data that it has not sent (RST instead of FIN).

    After an ordinary abort the kernel keeps sending. If the network is interrupted for a while, the kernel
    would send a waiting request when the network works again. The request would then be executed long after
    its sender had asked another broker.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
    transport.abort()


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other end as "ip:port"."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name or "")
