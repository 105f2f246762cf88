"""The options of a simulated socket. Keepalive, the user time-out and a linger time of 0 have an effect.

`Watch` is the kernel's timer for keepalive and the user time-out. It sends no probes. Once a second it looks
at the links and at the peer's machine, which decide whether a probe would be answered. So times are exact to
about a second.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING

from dledger.chaos.machine.settings import MS, SECOND

if TYPE_CHECKING:
    from dledger.chaos.machine.tcp import Address, Endpoint

_USER_TIMEOUT = 18  # TCP_USER_TIMEOUT, which the module of some platforms lacks
_KEEPIDLE, _KEEPINTVL, _KEEPCNT = 4, 5, 6
_DEFAULTS = {_KEEPIDLE: 7200, _KEEPINTVL: 75, _KEEPCNT: 9, _USER_TIMEOUT: 0}


class SimSocket:
    """The parts of a socket that programs use through `transport.get_extra_info("socket")`."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto: int = socket.IPPROTO_TCP

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._options: dict[tuple[int, int], int | bytes] = {}
        self._watch: Watch | None = None

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Remember the option. Start to watch the connection when keepalive is switched on."""
        self._options[level, option] = value
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE) and value and self._watch is None:
            self._watch = Watch(self._endpoint, self)
        elif (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._endpoint.discards = value == struct.pack("ii", 1, 0)

    def getsockopt(self, level: int, option: int) -> int | bytes:
        """The value that was set; 0 by default."""
        return self._options.get((level, option), 0)

    def tcp_option(self, option: int) -> int:
        """The value that was set, or Linux's default."""
        value = self._options.get((socket.IPPROTO_TCP, option), _DEFAULTS[option])
        return value if isinstance(value, int) else 0

    def getsockname(self) -> Address:
        """The local (ip, port)."""
        return self._endpoint.local

    def getpeername(self) -> Address:
        """The remote (ip, port)."""
        return self._endpoint.remote

    def fileno(self) -> int:
        """-1, because there is no file descriptor."""
        return -1


class Watch:
    """Ends a connection whose peer does not answer. Keepalive ends idle connections. TCP_USER_TIMEOUT ends
    connections whose data cannot be sent or is lost again and again."""

    def __init__(self, endpoint: Endpoint, options: SimSocket) -> None:
        self._endpoint = endpoint
        self._options = options
        self._world = endpoint.network.world
        self._heard = self._world.now
        self._full_since: int | None = None
        self._taken = 0  # bytes that the peer had read at the last look
        self._first: object = None  # the first packet in flight at the last look
        self._first_since = 0
        endpoint.watched = True
        self._world.push(self._world.now + SECOND, self._look, None)

    def _look(self, _: None) -> None:
        end, now = self._endpoint, self._world.now
        if end.closed or end.gone or end.broken:
            return
        peer = end.peer
        if peer is not None and self._answered(peer):
            if peer.gone or (peer.closed and not end.eof and not peer.flow.queue):
                end.on_reset(None)
                return
            self._heard = now
        if not end.starved or end.taken != self._taken:
            # data that moves, however slowly, is no reason to end the connection
            self._full_since, self._taken = None, end.taken
        elif self._full_since is None:
            self._full_since = now
        # Packets that wait at an obstacle are left to `_answered`, or count as acknowledged (silence).
        flow = end.flow
        first = flow.queue[0] if flow.queue and not flow.stalled else None
        if first is not self._first:
            self._first, self._first_since = first, now
        silent, full = now - self._heard, now - (now if self._full_since is None else self._full_since)
        unacknowledged = 0 if first is None else now - self._first_since
        user_timeout = self._options.tcp_option(_USER_TIMEOUT) * MS
        if silent >= (user_timeout or self._keepalive_ns()) or (
            user_timeout and max(full, unacknowledged) >= user_timeout
        ):
            end.network.trace(end, "timeout", "")
            end.vanish(errno.ETIMEDOUT)
            return
        self._world.push(now + SECOND, self._look, None)

    def _keepalive_ns(self) -> int:
        option = self._options.tcp_option
        return (option(_KEEPIDLE) + option(_KEEPINTVL) * option(_KEEPCNT)) * SECOND

    def _answered(self, peer: Endpoint) -> bool:
        end = self._endpoint
        if not peer.flow.passes():
            return False
        # If nothing reaches the peer, only probes that the peer itself sends are heard, and only if no data
        # waits for its answer.
        return end.flow.passes() or (peer.watched and not peer.gone and not end.flow.queue)
