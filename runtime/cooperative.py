"""Bytes that come in pieces because making them takes long, put together while others run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

PAUSE_BYTES = 16 * 1024
"""After so many others run; also after an empty piece, which says that it took as long."""
PAUSE_S = 0.001
"""How long they run."""


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
