"""Ports for the servers of tests, which nobody else takes before the server has them, or between two starts.

The system may give a port that it picked (`bind` to port 0) to any connection as soon as it is closed again.
These ports lie below those that systems pick, and each process of a test run claims its own, as the command
`dledger group` does for its groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.local.ports import CLAIM, claim, port_taken

FIRST = 5000
LAST = 10_999
"""From 11 000 on are the ports of the groups that tests start as processes."""


def _ports() -> Iterator[int]:
    """All ports that are this process's, again and again; blocks are claimed when they are needed."""
    while True:
        for block in range(FIRST, LAST, CLAIM):
            if claim([block]):
                yield from range(block, block + CLAIM)


_next = _ports()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens, in rising order and next to each other."""
    found: list[int] = []
    for _ in range(LAST - FIRST):
        port = next(_next)
        if port_taken(port):
            found.clear()
        elif found and port != found[-1] + 1:
            found = [port]
        else:
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports in a row between {FIRST} and {LAST}")


__all__ = ["free_ports"]
