"""Checks of the entries that a leader pushed, before any byte of them reaches the log (safety.md S7, S11).
Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger._fast import FAST
from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    CHAIN,
    COVERED,
    HEADER,
    HEADER_SIZE,
    KIND_MASK,
    MAGIC,
    MAX_ENTRY_SIZE,
    CorruptEntry,
    Kind,
)
from dledger.log.hot_tail import Batch


@dataclass
class Run:
    """A checked frame: consecutive entries, of which `first` is the first index."""

    first: int
    pos: int
    data: bytes
    sizes: list[int] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    configs: list[int] = field(default_factory=list)
    """Indexes of configuration entries."""

    @property
    def last(self) -> int:
        """Index of the last entry."""
        return self.first + len(self.sizes) - 1

    def batches(self, first: int) -> list[Batch]:
        """Return the entries from `first` on as one `Batch` for each term."""
        result = []
        start = first - self.first
        while start < len(self.sizes):
            term = self.terms[start]
            stop = start + 1
            while stop < len(self.sizes) and self.terms[stop] == term:
                stop += 1
            begin = sum(self.sizes[:start])
            size = sum(self.sizes[start:stop])
            whole = begin == 0 and size == len(self.data)
            remaining = self.remaining[start:stop]
            result.append(
                Batch(
                    self.first + start,
                    self.first + stop - 1,
                    term,
                    self.pos + begin,
                    self.pos + begin + size,
                    self.data if whole else self.data[begin : begin + size],
                    self.sizes[start:stop],
                    remaining if any(remaining) else None,
                    self.chains[stop - 1],
                )
            )
            start = stop
        return result

    def body(self, index: int) -> bytes:
        """Body of one entry."""
        begin = sum(self.sizes[: index - self.first])
        return self.data[begin + HEADER_SIZE : begin + self.sizes[index - self.first]]


def check_run(
    data: bytes, first: int, last: int, pos: int, min_term: int, max_term: int, previous_chain: int | None
) -> Run:
    """Parse and check a frame of entries `first..last`, the first of them at `pos`. Raises CorruptEntry if a
    check fails.

    `previous_chain` is the chain value of entry `first - 1`, None when it is not available.
    """
    if FAST is not None:
        run = Run(first, pos, data)
        if FAST.check_run(data, first, last, pos, min_term, max_term, previous_chain, run):
            return run
        # Something is wrong. These checks find out what it is.
    run = Run(first, pos, data)
    view = memoryview(data)
    unpack = HEADER.unpack_from
    pack = CHAIN.pack
    total = len(data)
    offset = 0
    index = first
    term_before = min_term
    chain_before = previous_chain
    left = 0
    while offset < total:
        if total - offset < HEADER_SIZE:
            raise CorruptEntry("header cut off", index, pos + offset)
        magic, size, entry_index, term, entry_pos, channel, chain, body_crc, body_size = unpack(data, offset)
        end = offset + size
        if (
            magic != MAGIC
            or entry_index != index
            or entry_pos != pos + offset
            or size != body_size + HEADER_SIZE
            or body_size < 0
            or size > MAX_ENTRY_SIZE
            or end > total
            or not term_before <= term <= max_term
        ):
            raise CorruptEntry("header does not continue", index, pos + offset)
        if crc32(view[offset + HEADER_SIZE : end], channel if channel & COVERED else 0) != body_crc:
            raise CorruptEntry("body CRC differs", index, pos + offset)
        if chain_before is not None and crc32(pack(index, term, body_crc), chain_before) != chain:
            raise CorruptEntry("chain CRC differs", index, pos + offset)
        kind = channel >> 24 & KIND_MASK
        left = channel & 0xFFFFFF
        if kind == Kind.CONFIG:
            run.configs.append(index)
        run.sizes.append(size)
        run.terms.append(term)
        run.chains.append(chain)
        run.remaining.append(left)
        chain_before = chain
        term_before = term
        index += 1
        offset = end
    if index != last + 1:
        raise CorruptEntry(
            f"the frame ends at entry {index - 1}, but {last} was announced", index, pos + offset
        )
    if left:
        raise CorruptEntry("client batch is split", index, pos + offset)
    return run
