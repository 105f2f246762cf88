"""Checks whether the ports of a server are free, before the server opens its store. Blocks.

If a port is in use, the check waits, because it may be in use only for a moment. If the port stays in use,
the error names the process that has it. Without this check a start would fail with "address in use" after it
had opened its store, and so after it had touched files of a node that may still run on this store.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

WAIT_S = 5.0
"""Time, in seconds, to wait for a port in use. A connection may have it, or a process that is about to
end."""
LOOK_S = 0.1
MAX_NAME = 120
"""Limit, in characters, of the command line that is shown; the rest is cut off."""
EPHEMERAL_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


class WantedPort(NamedTuple):
    """An address at which a server will listen, and the setting that names it."""

    setting: str
    host: str
    port: int


class PortInUse(OSError):
    """A port stays in use. The text names the setting, the address and, if the system reports it, the process
    that has the port."""


def wait_for_ports(wanted: Iterable[WantedPort], wait_s: float | None = None) -> None:
    """Return when a server can listen on all of these ports. Raises PortInUse if one of them stays in use for
    `wait_s`. Other errors of a bind are ignored here, because the server reports them with better texts.
    """
    deadline = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    for one in wanted:
        while is_in_use(one.host, one.port):
            if time.monotonic() >= deadline:
                raise PortInUse(
                    errno.EADDRINUSE,
                    f"cannot listen on {one.host or '0.0.0.0'}:{one.port}: {os.strerror(errno.EADDRINUSE)}"
                    f"{holder_text(one.port)}. The setting is {one.setting}",
                )
            time.sleep(LOOK_S)


def is_in_use(host: str, port: int) -> bool:
    """Whether a bind fails because the port is in use. A port of a connection that is closing does not count
    as in use."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def is_here(host: str) -> bool:
    """Whether this machine has the address."""
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return True
    except OSError:
        return False


def holder_text(port: int) -> str:
    """Return ` by process 17 (python -m dledger broker ...)` if this user may know the process that has the
    port; otherwise an empty text."""
    inodes = _inodes(port)
    if not inodes:
        return ""
    for pid in _pids():
        if _has_one(pid, inodes):
            return f" by process {pid} ({_program(pid)})"
    return " by a process of another user or container"


def ephemeral_ports() -> tuple[int, int] | None:
    """Return the first and the last port that the system uses for outgoing connections; None if it does not
    report them."""
    try:
        with open(EPHEMERAL_RANGE, encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return first, last


def _inodes(port: int) -> list[str]:
    """Return the inodes of the sockets with this local port. Those of listening sockets come first."""
    found: list[tuple[bool, str]] = []
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                found.append((fields[3] != "0A", fields[9]))
    return [inode for _, inode in sorted(found)]


def _pids() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []


def _has_one(pid: int, inodes: list[str]) -> bool:
    wanted = [f"socket:[{inode}]" for inode in inodes]
    try:
        return any(_link(f"/proc/{pid}/fd/{name}") in wanted for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "ended"
    shown = "".join(character if character.isprintable() else "?" for character in words)
    return shown if len(shown) <= MAX_NAME else f"{shown[:MAX_NAME]}..."
