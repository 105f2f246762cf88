"""Lets the kernel detect that the other end of a connection is gone, whatever data is sent over it (RFC 1122,
RFC 5482)."""

from __future__ import annotations

import sys
from typing import Any

_SOL_SOCKET, _SO_KEEPALIVE = 1, 9
_TCP, _KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT = 6, 4, 5, 6, 18
"""Numbers that Linux defines. They are written here because only the few modules of `runtime` that open a
socket may import `socket`."""
_PROBES = 3
"""Number of probes, one a second, that must remain unanswered before the connection is closed."""


def end_when_silent(sock: Any, after_ms: int, *, unread: bool) -> None:
    """Make the kernel close a connection if the other end has not answered its probes for `after_ms`. Then
    the other machine has vanished or is cut off. (The kernel of a stopped process still answers.) Works on
    Linux only.

    With `unread`, the connection is also closed if sent data is not acknowledged, or not read, for this time,
    as with a stopped process. Without it, the kernel sends probes only while everything sent was
    acknowledged.
    """
    if sys.platform != "linux":
        return
    sock.setsockopt(_SOL_SOCKET, _SO_KEEPALIVE, 1)
    idle_s = max(after_ms // 1000 - _PROBES, 1)
    for option, value in ((_KEEPIDLE, idle_s), (_KEEPINTVL, 1), (_KEEPCNT, _PROBES)):
        sock.setsockopt(_TCP, option, value)
    if unread:
        sock.setsockopt(_TCP, _USER_TIMEOUT, after_ms)
