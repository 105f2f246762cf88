"""Bytes that come in pieces because making them takes long, put together while others run."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

PAUSE_BYTES = 16 * 1024
"""After so many others run; also after an empty piece, which says that it took as long."""
PAUSE_S = 0.001
"""How long they run."""


class Pace:
    """Counts the steps of a long piece of work; others run after every so many of them."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """So many more are done."""
        self._steps += count
        if self._steps >= self._every:
            self._steps = 0
            await asyncio.sleep(PAUSE_S)


def at_once(work: Generator[None, None, T]) -> T:
    """The result of work that comes in pieces, all of it now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def gathered(pieces: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """The whole of each part, from (part, next piece of it)."""
    parts: dict[str, bytearray] = {}
    size = 0
    for name, piece in pieces:
        parts.setdefault(name, bytearray()).extend(piece)
        size += len(piece) or PAUSE_BYTES
        if size >= PAUSE_BYTES:
            size = 0
            await asyncio.sleep(PAUSE_S)
    return {name: bytes(data) for name, data in parts.items()}
