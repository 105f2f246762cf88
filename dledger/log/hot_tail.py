"""Batches of sealed entries in memory, before they are on the disk and with the followers. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dledger.formats.entry import unpack_header


class Batch(NamedTuple):
    """Sealed entries `first..last` of one term, back to back, in one segment."""

    first: int
    last: int
    term: int
    pos: int
    end_pos: int
    data: bytes | memoryview
    sizes: list[int]
    remaining: list[int] | None
    """`batch_remaining` of each entry; None when all are 0."""
    chain: int
    """Chain value of the last entry."""


def cut_batch(batch: Batch, first: int, max_bytes: int) -> tuple[int, int]:
    """Return (last index, bytes) of about `max_bytes` of entries from `first` on. A client batch is not split
    (S11)."""
    if first == batch.first and batch.end_pos - batch.pos <= max_bytes:
        return batch.last, batch.end_pos - batch.pos
    size = 0
    last = first
    for offset in range(first - batch.first, len(batch.sizes)):
        inside = offset > 0 and batch.remaining is not None and batch.remaining[offset - 1] > 0
        if size and size + batch.sizes[offset] > max_bytes and not inside:
            break
        size += batch.sizes[offset]
        last = batch.first + offset
    return last, size


def first_part(batch: Batch, last: int) -> Batch:
    """Return the part of a `Batch` up to entry `last`, where a client batch must end."""
    count = last - batch.first + 1
    size = sum(batch.sizes[:count])
    data = memoryview(batch.data)[:size]
    chain = unpack_header(data, size - batch.sizes[count - 1]).chain_crc
    remaining = None if batch.remaining is None else batch.remaining[:count]
    return Batch(
        batch.first,
        last,
        batch.term,
        batch.pos,
        batch.pos + size,
        data,
        batch.sizes[:count],
        remaining,
        chain,
    )
