"""Additive digest of a block of entries: the number of entries, and the XOR of two 64-bit mixes of each. A
mix is a hash over the fields of one entry.

Entries of a block may be read in any order, in several segments and tasks, because digests are merged by
adding the counts and by XOR of the mixes.

The mix covers what must be equal on all replicas: index, term, size, channel and the CRC *computed* from the
body; a stored CRC is a claim, not evidence. The mix is not linear (multiplications and shifts, as in
SplitMix64), so that exchanged bodies do not cancel out as they would in a sum or a CRC.

**What it can miss.** Two different blocks have equal digests by chance once in 2^128. Two different bodies of
one size have an equal CRC-32 once in 2^32, and never if they differ only within 32 consecutive bits. A digest
is no defence against deliberately forged entries, because neither the CRC nor the mix is secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dledger.audit.entries import Array, Columns
from dledger.audit.findings import BlockRow

DIGEST_VERSION = 2
"""Version of the digests. It is raised whenever equal entries would get a different digest."""
BLOCK_ENTRIES = 1024
"""Number of entries in a block. Measurements showed that smaller blocks need more digest rows, larger ones
more entries to read again."""

_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Start values of the two mixes: the golden ratio and the plastic number, in 64 bits."""
_FACTORS = ((0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53))
"""Factors of SplitMix64 and of the last step of MurmurHash3."""
_SIGNED = 1 << 63


class BlockDigests:
    """Computes the digests of the blocks that one walk reads."""

    def __init__(self, replica: str, block_entries: int = BLOCK_ENTRIES) -> None:
        self._replica = replica
        self._size = block_entries
        self._blocks: dict[int, list[int]] = {}

    def add(self, columns: Columns) -> None:
        """Add entries to the digests of their blocks."""
        if not len(columns):
            return
        block = columns.index // self._size
        starts = np.concatenate(([0], np.flatnonzero(np.diff(block)) + 1))
        counts = np.diff(np.append(starts, len(columns)))
        mixed = [np.bitwise_xor.reduceat(lane, starts).tolist() for lane in mixes(columns)]
        for number, count, mix_a, mix_b in zip(block[starts].tolist(), counts.tolist(), *mixed, strict=True):
            known = self._blocks.get(number)
            if known is None:
                self._blocks[number] = [count, mix_a, mix_b]
            else:
                known[0] += count
                known[1] ^= mix_a
                known[2] ^= mix_b

    def rows(self) -> Iterator[BlockRow]:
        """Yield the digests, in order of index."""
        for number in sorted(self._blocks):
            count, mix_a, mix_b = self._blocks[number]
            yield BlockRow(self._replica, number, count, _signed(mix_a), _signed(mix_b))


def mixes(columns: Columns) -> tuple[Array, Array]:
    """Return two 64-bit mixes of each entry, as two arrays."""
    sizes = columns.size.astype(np.uint64) << np.uint64(32)
    words = (
        columns.index.astype(np.uint64),
        columns.term.astype(np.uint64),
        sizes | columns.channel.astype(np.uint64),
        columns.crc.astype(np.uint64),
    )
    return _mix(words, 0), _mix(words[::-1], 1)


def _mix(words: tuple[Array, ...], lane: int) -> Array:
    first, second = (np.uint64(factor) for factor in _FACTORS[lane])
    state = np.full(len(words[0]), _SEEDS[lane], np.uint64)
    for word in words:
        state ^= word
        state ^= state >> np.uint64(30)
        state *= first
        state ^= state >> np.uint64(27)
        state *= second
        state ^= state >> np.uint64(31)
    return state


def _signed(value: int) -> int:
    """A value as a signed 64-bit number, as SQL engines store it."""
    return value - (1 << 64) if value & _SIGNED else value


def merge(rows: Iterable[BlockRow]) -> dict[int, dict[str, tuple[int, int, int]]]:
    """Add up the parts of each block. Returns block -> replica -> (count, mix, mix)."""
    result: dict[int, dict[str, tuple[int, int, int]]] = {}
    for replica, block, count, mix_a, mix_b in rows:
        of_block = result.setdefault(block, {})
        old = of_block.get(replica)
        of_block[replica] = (
            (count, mix_a, mix_b) if old is None else (old[0] + count, old[1] ^ mix_a, old[2] ^ mix_b)
        )
    return result


def differing(blocks: dict[int, dict[str, tuple[int, int, int]]]) -> list[int]:
    """Return the blocks for which two replicas have different digests, ascending."""
    return [block for block in sorted(blocks) if len(set(blocks[block].values())) > 1]
