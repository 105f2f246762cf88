"""All limits of the remoting layer: name, unit, and what happens beyond each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dledger.runtime.settings import Setting

MAX_FRAME_SIZE = 16 * 1024 * 1024
"""Limit, in bytes, of a frame after its length field (`frameMaxLength` of RocketMQ); a larger one closes the
connection."""

MAX_REQUEST_HEADER = 384 * 1024
"""Limit, in bytes, of the header of a command. A larger one closes the connection, because decoding it would
block the event loop. The limit leaves room for the properties of a message, which may take 192 KiB in
JSON."""
MAX_BODY = 64 * 1024
"""Limit, in bytes, of the body of a request, unless its code allows more (sends, heartbeats,
registrations)."""

REQUEST_OVERHEAD = 512
"""Number of bytes that each unanswered request adds to the in-flight accounts, on top of its frame."""


LARGE_ANSWER = 64 * 1024
"""Size, in bytes, above which the body of an answer counts as large. While all connections of the server
together have more than `ServerLimits.max_unsent` unsent bytes, a larger answer is replaced by SYSTEM_BUSY."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server. Sizes are in bytes, times in seconds."""

    max_connections: Annotated[int, Setting("maxConnections", 1, 1_000_000)] = 4096
    """Largest number of connections of clients at the same time; one more is closed as soon as it is made,
    and counted."""
    max_frame_size: int = MAX_FRAME_SIZE
    """Limit of a frame; a longer frame closes its connection."""
    idle_close_s: Annotated[float, Setting("serverChannelMaxIdleTimeSeconds", 1, 86_400, "seconds")] = 120.0
    """Time without traffic after which a connection is closed."""
    idle_sweep_s: float = 5.0
    """Interval at which `run` looks for idle connections."""
    outbound_high_water: int = 1024 * 1024
    """Limit of the unsent answers of one connection. Above it, nothing more is read from the connection until
    its peer reads."""
    max_outbound: int = 64 * 1024 * 1024
    """Limit of the unsent answers of one connection. Above it the connection is aborted, because its peer
    does not read."""
    max_unsent: Annotated[int, Setting("maxUnsentBytes", 1024 * 1024, 1 << 40, "bytes")] = 1024 * 1024 * 1024
    """Limit of the unsent answers of all connections together. Above it, and until a quarter of it is free
    again, pulls and pops wait, other answers of more than 64 KiB are replaced by SYSTEM_BUSY, and nothing is
    read from a connection that has unsent answers."""
    max_inflight: int = 32 * 1024 * 1024
    """Limit of the unanswered requests of one connection: the sizes of their frames, plus `REQUEST_OVERHEAD`
    for each. Above it, reading pauses."""
    read_buffer: int = 8 * 1024
    """Size of the read buffer of a new connection."""
    max_read_buffer: int = 256 * 1024
    """Limit up to which the buffer grows when reads fill it (larger frames get their own size)."""
    close_grace_s: float = 1.0
    """How long `close` waits for the last answers to be sent before it aborts."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits of a client. Sizes are in bytes, times in seconds."""

    connect_timeout_s: float = 3.0
    """Time-out of a connection attempt."""
    max_frame_size: int = MAX_FRAME_SIZE
    """Limit of a frame. A longer answer closes the connection; a longer request is refused with TooLarge."""
    max_inflight: int = 65536
    """Largest number of unanswered requests of one connection; one more is refused with Overloaded."""
    max_outbound: int = 64 * 1024 * 1024
    """Limit, in bytes, of what the transport of one connection has not sent yet; above it, requests are
    refused with Overloaded."""
    outbound_high_water: int = 1024 * 1024
    """Number of unsent bytes at which the transport asks the client to pause."""
    idle_close_s: float = 120.0
    """Time after which a connection without traffic and without requests in flight is closed."""
    idle_sweep_s: float = 5.0
    """Interval at which `run` looks for idle connections."""
    silence_close_s: float = 2.0
    """When a request times out and nothing at all has arrived for this long, the connection is closed."""
    vanished_close_s: float = 6.0
    """If nothing at all has come from the peer's machine for this long, the connection is closed, and
    requests that wait for an answer, such as pulls, fail. This works on Linux, and only while everything sent
    was acknowledged."""
    timer_grain_s: float = 0.005
    """Smallest time between two checks for expired requests of one connection."""
    read_buffer: int = 64 * 1024
    """Size of the read buffer of a new connection."""
    max_read_buffer: int = 1024 * 1024
    """Limit up to which the buffer grows when reads fill it (larger frames get their own size)."""
