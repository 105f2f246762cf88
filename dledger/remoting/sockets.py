"""Settings of sockets. Transports without a socket are accepted: then nothing happens."""

from __future__ import annotations

import asyncio
import sys

from dledger.runtime.silent_peers import end_when_silent

IPPROTO_TCP = 6
TCP_NODELAY = 1
"""This number of <netinet/tcp.h> is the same everywhere (`socket` is not imported outside runtime)."""
# Those of <sys/socket.h> are not.
SOL_SOCKET, SO_LINGER = (1, 13) if sys.platform == "linux" else (0xFFFF, 0x80)
_AT_ONCE = (1).to_bytes(4, sys.byteorder) + bytes(4)
"""`struct linger`: on, 0 seconds."""


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small frames at once: this layer itself collects the output of a turn."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def watch(transport: asyncio.BaseTransport, vanished_close_s: float) -> None:
    """Make the kernel close the connection when the peer's machine has been silent for this long, while no
    data is in flight to it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        end_when_silent(sock, int(vanished_close_s * 1000), unread=False)


def discard(transport: asyncio.WriteTransport) -> None:
    """Abort, and make the kernel drop the data that it has not sent (RST instead of FIN).

    After an ordinary abort the kernel keeps sending. If the connection is broken for a while, a request that
    waits in the kernel would be executed when it works again, long after its sender gave up on it and asked
    another broker.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
    transport.abort()


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Address of the other end as "ip:port"."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else str(name or "")
