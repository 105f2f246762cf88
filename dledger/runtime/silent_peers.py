"""Detection by the kernel that the other end of a connection is gone, whatever is sent over it (RFC 1122, RFC
5482)."""

from __future__ import annotations

import sys
from typing import Any

_SOL_SOCKET, _SO_KEEPALIVE = 1, 9
_TCP, _KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT = 6, 4, 5, 6, 18
"""Numbers of Linux, because `socket` may be imported only by the few modules of runtime that open one."""
_PROBES = 3
"""Number of probes, one a second; after them the connection is closed."""


def end_when_silent(sock: Any, after_ms: int, *, unread: bool) -> None:
    """Close a connection when its other end has not answered the kernel's probes for `after_ms`: its machine
    vanished, or is cut off. For a stopped process its kernel still answers. On Linux only.

    `unread`: also close a connection when sent data is not acknowledged, or not read, for this time, as with
    a stopped process. Without it, the kernel sends probes only when everything sent was
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
