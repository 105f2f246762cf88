"""Slow work in steps, between which other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

PAUSE_BYTES = 16 * 1024
"""Number of bytes after which other tasks run. An empty piece counts as this many bytes, because making it
took as long as making a full one."""
PAUSE_S = 0.001
"""Time, in seconds, for which other tasks then run."""


class Pace:
    """Counts the steps of a long piece of work; other tasks run after every `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """Count steps that are done."""
        self._steps += count
        if self._steps >= self._every:
            self._steps = 0
            await asyncio.sleep(PAUSE_S)


def at_once(work: Generator[None, None, T]) -> T:
    """Run work that is a generator of steps to its end now, without letting other tasks run, and return its
    result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def gathered(pieces: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Join the pieces of each part. `pieces` yields pairs: the name of a part, and the next bytes of this
    part. Return the bytes of each part by its name."""
    parts: dict[str, bytearray] = {}
    size = 0
    for name, piece in pieces:
        parts.setdefault(name, bytearray()).extend(piece)
        size += len(piece) or PAUSE_BYTES
        if size >= PAUSE_BYTES:
            size = 0
            await asyncio.sleep(PAUSE_S)
    return {name: bytes(data) for name, data in parts.items()}
