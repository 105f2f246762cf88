"""All limits of the remoting layer: name, unit, and what happens beyond each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dledger.runtime.settings import Setting

MAX_FRAME_SIZE = 16 * 1024 * 1024
"""Largest frame in bytes after its length field (`frameMaxLength` of RocketMQ); a larger one closes the
connection."""

MAX_REQUEST_HEADER = 384 * 1024
"""Largest header of a command in bytes: the properties of a message may take 192 KiB in JSON. A larger one
closes the connection, because decoding it would block the event loop."""
MAX_BODY = 64 * 1024
"""Largest body of a request in bytes, unless its code allows more (sends, heartbeats, registrations)."""

REQUEST_OVERHEAD = 512
"""Bytes that one waiting request counts in the in-flight accounts in addition to its frame."""


LARGE_ANSWER = 64 * 1024
"""Bytes of a body. A larger answer is replaced by SYSTEM_BUSY while all connections of the server together
have more than `ServerLimits.max_unsent` unsent bytes."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server. Sizes in bytes, times in seconds."""

    max_connections: Annotated[int, Setting("maxConnections", 1, 1_000_000)] = 4096
    """Connections of clients at the same time; one more is closed as soon as it is made, and counted."""
    max_frame_size: int = MAX_FRAME_SIZE
    """A longer frame closes its connection."""
    idle_close_s: Annotated[float, Setting("serverChannelMaxIdleTimeSeconds", 1, 86_400, "seconds")] = 120.0
    """Time without traffic after which a connection is closed."""
    idle_sweep_s: float = 5.0
    """Interval at which `run` looks for idle connections."""
    outbound_high_water: int = 1024 * 1024
    """Unsent answers of one connection: above, nothing more is read from it until its peer reads."""
    max_outbound: int = 64 * 1024 * 1024
    """Unsent answers of one connection: above, the connection is aborted (its peer does not read)."""
    max_unsent: Annotated[int, Setting("maxUnsentBytes", 1024 * 1024, 1 << 40, "bytes")] = 1024 * 1024 * 1024
    """Unsent answers of all connections together. Above, until a quarter of it is free again: pulls and pops
    wait, other answers of more than 64 KiB are replaced by SYSTEM_BUSY, and nothing is read from a connection
    that has unsent answers."""
    max_inflight: int = 32 * 1024 * 1024
    """Frames of one connection not yet answered, each plus `REQUEST_OVERHEAD`: above, reading pauses."""
    read_buffer: int = 8 * 1024
    """Size of the read buffer of a new connection."""
    max_read_buffer: int = 256 * 1024
    """Largest size to which the buffer grows when reads fill it (larger frames get their own size)."""
    close_grace_s: float = 1.0
    """How long `close` waits for the last answers to be sent before it aborts."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits of a client. Sizes in bytes, times in seconds."""

    connect_timeout_s: float = 3.0
    """Time-out of a connection attempt."""
    max_frame_size: int = MAX_FRAME_SIZE
    """A longer answer closes the connection; a longer request is refused with TooLarge."""
    max_inflight: int = 65536
    """At most this many requests of one connection are unanswered; one more is refused with Overloaded."""
    max_outbound: int = 64 * 1024 * 1024
    """Bytes of one connection that the transport has not taken; a further request is refused with
    Overloaded."""
    outbound_high_water: int = 1024 * 1024
    """Bytes that the transport accepts before it asks to pause."""
    idle_close_s: float = 120.0
    """A connection without traffic and without requests in flight for this long is closed."""
    idle_sweep_s: float = 5.0
    """Interval at which `run` looks for idle connections."""
    silence_close_s: float = 2.0
    """When a request timed out and nothing at all has arrived for this long, the connection is closed."""
    vanished_close_s: float = 6.0
    """When the peer's machine has given no sign of life for this long, the connection is closed, and
    requests that wait for an answer, such as pulls, fail. This works on Linux, when everything sent was
    acknowledged."""
    timer_grain_s: float = 0.005
    """Time-outs of one connection are checked at most this often."""
    read_buffer: int = 64 * 1024
    """Size of the read buffer of a new connection."""
    max_read_buffer: int = 1024 * 1024
    """Largest size to which the buffer grows when reads fill it (larger frames get their own size)."""
