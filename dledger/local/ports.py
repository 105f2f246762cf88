"""Ports of the loopback address: finds out which ports are in use, and which ports another program is
about to use.

A program that looks for free ports uses them a moment later. Until it ends, a file in the temporary
directory records which ports the program has claimed. So groups that are created at the same time get
different ports.
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
"""Number of ports in a block. Ports are claimed in whole blocks; the first port of each block is a
multiple of this number."""
RECORD_BYTES = 512


def port_taken(port: int) -> bool:
    """Return whether a process listens on this port of the loopback address. A connection that is being
    closed does not count."""
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
    """Claim ports for this process. Returns False if another running program of this user has claimed one
    of them.

    A claim prevents no process from listening: it has an effect only on programs that claim their ports,
    too.
    """
    return all(_claim(number) for number in sorted({port // CLAIM for port in ports}))


def _claim(number: int) -> bool:
    place = Path(tempfile.gettempdir()) / f"dledger-ports-{os.getuid()}-{number * CLAIM}"
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # locked only while the file is read and written
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
    """Return a text that identifies a process: its pid, its start time and the boot of the machine. A
    later process with the same pid has another text, and so has a pid whose process has ended."""
    return f"{pid} {start_mark(pid)} {boot_mark()}"


__all__ = ["CLAIM", "HOST", "claim", "port_taken"]
