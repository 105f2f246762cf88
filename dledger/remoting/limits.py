"""Every bound of the remoting layer: its name, unit and what happens there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dledger.runtime.settings import Setting

MAX_FRAME_SIZE = 16 * 1024 * 1024
"""Bytes of one frame after its length field (`frameMaxLength` of RocketMQ): more closes the connection."""

MAX_REQUEST_HEADER = 384 * 1024
"""Bytes of a command's header: the properties of a message may take 192 KiB in JSON. More closes the
connection: decoding it would hold up the event loop."""
MAX_BODY = 64 * 1024
"""Bytes of a request's body, unless its code takes more (sends, heartbeats, registrations)."""

REQUEST_OVERHEAD = 512
"""Bytes that one waiting request costs besides its frame, for the in-flight accounts."""


LARGE_ANSWER = 64 * 1024
"""Bytes of a body: above, the answer is replaced by SYSTEM_BUSY while all connections of the server together
have more unsent than `ServerLimits.max_unsent`."""


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of a server. Sizes in bytes, times in seconds."""

    max_connections: Annotated[int, Setting("maxConnections", 1, 1_000_000)] = 4096
    """Connections of clients at the same time; one more is closed as soon as it is made, and counted."""
    max_frame_size: int = MAX_FRAME_SIZE
    """A longer frame closes its connection."""
    idle_close_s: Annotated[float, Setting("serverChannelMaxIdleTimeSeconds", 1, 86_400, "seconds")] = 120.0
    """Time without traffic after which a connection is closed."""
    idle_sweep_s: float = 5.0
    """How often `run` looks for idle connections."""
    outbound_high_water: int = 1024 * 1024
    """Unsent answers of one connection: above, nothing more is read from it until its peer reads."""
    max_outbound: int = 64 * 1024 * 1024
    """Unsent answers of one connection: above, the connection is aborted (its peer does not read)."""
    max_unsent: Annotated[int, Setting("maxUnsentBytes", 1024 * 1024, 1 << 40, "bytes")] = 1024 * 1024 * 1024
    """Unsent answers of all connections together. Above, until a quarter of it is free again: pulls and pops
    wait, other answers of more than 64 KiB are replaced by SYSTEM_BUSY, and nothing is read from a connection
    that has unsent answers"""
    max_inflight: int = 32 * 1024 * 1024
    """Frames of one connection not yet answered, each plus `REQUEST_OVERHEAD`: above, reading pauses."""
    read_buffer: int = 8 * 1024
    """What a connection starts to read into."""
    max_read_buffer: int = 256 * 1024
    """What the buffer grows to when reads fill it (frames above it get their own size)."""
    close_grace_s: float = 1.0
    """How long `close` lets the last answers go out before it aborts."""


@dataclass(frozen=True)
class ClientLimits:
    """Bounds of a client. Sizes in bytes, times in seconds."""

    connect_timeout_s: float = 3.0
    """A dial that takes longer has failed."""
    max_frame_size: int = MAX_FRAME_SIZE
    """A longer answer closes the connection; a longer request is refused with TooLarge."""
    max_inflight: int = 65536
    """Requests of one connection without an answer: one more is refused with Overloaded."""
    max_outbound: int = 64 * 1024 * 1024
    """Bytes of one connection not yet taken by the transport: a request more is refused with Overloaded."""
    outbound_high_water: int = 1024 * 1024
    """What the transport takes before it asks to wait."""
    idle_close_s: float = 120.0
    """A connection without traffic and without requests in flight for that long is closed."""
    idle_sweep_s: float = 5.0
    """How often `run` looks for idle connections."""
    silence_close_s: float = 2.0
    """A request timed out and nothing at all arrived for that long: the connection is hung up."""
    vanished_close_s: float = 6.0
    """The machine at the other end did not say for that long that it is there: its connection is over, and
    what waits for an answer, as a pull for messages, hears it (on Linux, and where all that was sent had been
    acknowledged)."""
    timer_grain_s: float = 0.005
    """Time-outs of one connection are looked at no more often than this."""
    read_buffer: int = 64 * 1024
    """What a connection starts to read into."""
    max_read_buffer: int = 1024 * 1024
    """What the buffer grows to when reads fill it (frames above it get their own size)."""
