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
BLOCKS = 3
"""How many blocks of `CLAIM` ports a process claims: a port comes again after some hundred others."""


def _ports() -> Iterator[int]:
    """The ports of this process, again and again. Blocks are claimed when they are needed."""
    own: list[int] = []
    for block in range(FIRST, LAST, CLAIM):
        if len(own) < BLOCKS and claim([block]):
            own.append(block)
            yield from range(block, block + CLAIM)
    if not own:
        raise AssertionError(f"all ports from {FIRST} to {LAST} are claimed: do as many tests run here?")
    while True:
        for block in own:
            yield from range(block, block + CLAIM)


_next = _ports()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens, in rising order and next to each other."""
    found: list[int] = []
    for _ in range(2 * BLOCKS * CLAIM):
        port = next(_next)
        if port_taken(port):
            found.clear()
        elif found and port != found[-1] + 1:
            found = [port]
        else:
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports in a row among those of this process")


__all__ = ["free_ports"]
