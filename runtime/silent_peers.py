"""The kernel's own look at the other end of a connection, whatever travels over it (RFC 1122, RFC 5482)."""

from __future__ import annotations

import sys
from typing import Any

_SOL_SOCKET, _SO_KEEPALIVE = 1, 9
_TCP, _KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT = 6, 4, 5, 6, 18
"""Numbers of Linux (`socket` is not imported outside runtime's few modules that open one)."""
_PROBES = 3
"""One a second; then the connection is over."""


def end_when_silent(sock: Any, after_ms: int) -> None:
    """Give a connection up whose other end acknowledges nothing for so long: a machine that vanished without
    a word, or that is cut off. The kernel would take hours, or minutes where something was sent. A process
    that is stopped acknowledges all the same. On Linux only."""
    if sys.platform != "linux":
        return
    sock.setsockopt(_SOL_SOCKET, _SO_KEEPALIVE, 1)
    idle_s = max(after_ms // 1000 - _PROBES, 1)
    for option, value in ((_KEEPIDLE, idle_s), (_KEEPINTVL, 1), (_KEEPCNT, _PROBES)):
        sock.setsockopt(_TCP, option, value)
    sock.setsockopt(_TCP, _USER_TIMEOUT, after_ms)
