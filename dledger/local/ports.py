"""Ports of the loopback address: which are in use, and which another program is about to use.

A program that looks for free ports uses them a moment later. Meanwhile it records them as its own in a file
of the temporary directory, for as long as it runs. So groups that are made at the same time get different
ports.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dledger.local.processes import boot_mark, start_mark

HOST = "127.0.0.1"
CLAIM = 100
"""Ports are claimed in blocks of this size, each from a multiple of it on."""
RECORD_BYTES = 512


def port_taken(port: int) -> bool:
    """Whether a process listens on this port of the loopback address (a closing connection does not
    count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return True
            raise
    return False


def claim(ports: Iterable[int]) -> bool:
    """Claim ports for this process; False when another running program of this user has claimed one of them.

    Programs are not forced to ask: a claim prevents no process from listening.
    """
    return all(_claim(number) for number in sorted({port // CLAIM for port in ports}))


def _claim(number: int) -> bool:
    place = Path(tempfile.gettempdir()) / f"dledger-ports-{os.getuid()}-{number * CLAIM}"
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for this look only
        ours = _mark(os.getpid())
        owner = os.pread(descriptor, RECORD_BYTES, 0).decode("ascii", "replace")
        if owner == ours:
            return True
        pid = owner.partition(" ")[0]
        if pid.isdigit() and owner == _mark(int(pid)):
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, ours.encode("ascii"), 0)
        return True
    finally:
        os.close(descriptor)


def _mark(pid: int) -> str:
    """A text that identifies a process: its pid, and what distinguishes it from earlier processes with that
    pid. It changes when the process has ended."""
    return f"{pid} {start_mark(pid)} {boot_mark()}"


__all__ = ["CLAIM", "HOST", "claim", "port_taken"]
