"""Ports of the loopback address: who listens, and who is about to.

A program that looks for free ports uses them a moment later. What it found is noted as its own in a file of
the temporary directory, for as long as it runs, so that groups which are made at the same moment do not meet.
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
"""Ports that are claimed together, from a multiple of it on."""
RECORD_BYTES = 512


def port_taken(port: int) -> bool:
    """Whether somebody listens on this port of the loopback address (a closing connection does not count)."""
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
    """Whether no other running program of this user has claimed one of these; then they are this process's.

    Other programs need not ask: a claim keeps nobody from listening.
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
    """The pid, and what tells the process from another one that had it before. Differs when it has ended."""
    return f"{pid} {start_mark(pid)} {boot_mark()}"


__all__ = ["CLAIM", "HOST", "claim", "port_taken"]
