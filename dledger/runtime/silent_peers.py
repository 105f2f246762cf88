"""The kernel's own look at the other end of a connection, whatever travels over it (RFC 1122, RFC 5482)."""

from __future__ import annotations

import sys
from typing import Any

_SOL_SOCKET, _SO_KEEPALIVE = 1, 9
_TCP, _KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT = 6, 4, 5, 6, 18
"""Numbers of Linux (`socket` is not imported outside runtime's few modules that open one)."""
_PROBES = 3
"""One a second; then the connection is over."""


def end_when_silent(sock: Any, after_ms: int, *, unread: bool) -> None:
    """Give a connection up whose other end says nothing for so long when it is asked whether it is there: a
    machine that vanished without a word, or that is cut off. A process that is stopped answers all the same,
    by its kernel. On Linux only.

    `unread`: also one of which what was sent is not acknowledged, or not read, for so long, by a process that
    is stopped, too. Without, the kernel asks only where everything sent was acknowledged."""
    if sys.platform != "linux":
        return
    sock.setsockopt(_SOL_SOCKET, _SO_KEEPALIVE, 1)
    idle_s = max(after_ms // 1000 - _PROBES, 1)
    for option, value in ((_KEEPIDLE, idle_s), (_KEEPINTVL, 1), (_KEEPCNT, _PROBES)):
        sock.setsockopt(_TCP, option, value)
    if unread:
        sock.setsockopt(_TCP, _USER_TIMEOUT, after_ms)
