"""Additive digest of a block of entries: count and XOR of two 64-bit mixes.

Entries of a block may be met in any order, in several segments and tasks: digests merge by adding counts and
XOR of the mixes. The mix is a keyed-for-nothing BLAKE2b of what must be equal on all replicas, with the CRC
*computed* from the body: a stored CRC is a claim, not evidence. A linear checksum (CRC, sum) in its place
would let two exchanged bodies cancel out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b

from audit.findings import BlockRow
from audit.walk import Entry

BLOCK_ENTRIES = 1024
"""Measured: smaller blocks cost more digest rows, larger ones more entries to read again."""

CONTENT = struct.Struct(">qqiII")
"""Index, term, size of the entry, channel, computed CRC of the body."""
_SIGNED = 1 << 63


class BlockDigests:
    """Digests of the blocks that one walk meets."""

    def __init__(self, replica: str, block_entries: int = BLOCK_ENTRIES) -> None:
        self._replica = replica
        self._size = block_entries
        self._blocks: dict[int, list[int]] = {}

    def add(self, entries: list[Entry]) -> None:
        """Count entries in."""
        pack = CONTENT.pack
        size = self._size
        blocks = self._blocks
        for index, term, _, entry_size, channel, crc, _, _, _ in entries:
            mix = int.from_bytes(
                blake2b(pack(index, term, entry_size, channel, crc), digest_size=16).digest()
            )
            block = blocks.get(index // size)
            if block is None:
                blocks[index // size] = [1, mix]
            else:
                block[0] += 1
                block[1] ^= mix

    def rows(self) -> Iterator[BlockRow]:
        """In order of index."""
        for number in sorted(self._blocks):
            count, mix = self._blocks[number]
            yield BlockRow(
                self._replica, number, count, _signed(mix >> 64), _signed(mix & 0xFFFFFFFFFFFFFFFF)
            )


def _signed(value: int) -> int:
    """As a signed 64-bit number, as SQL engines have it."""
    return value - (1 << 64) if value & _SIGNED else value


def merge(rows: Iterator[BlockRow] | list[BlockRow]) -> dict[int, dict[str, tuple[int, int, int]]]:
    """block -> replica -> (count, mix, mix), parts of one block added up."""
    result: dict[int, dict[str, tuple[int, int, int]]] = {}
    for replica, block, count, mix_a, mix_b in rows:
        of_block = result.setdefault(block, {})
        old = of_block.get(replica)
        of_block[replica] = (
            (count, mix_a, mix_b) if old is None else (old[0] + count, old[1] ^ mix_a, old[2] ^ mix_b)
        )
    return result


def differing(blocks: dict[int, dict[str, tuple[int, int, int]]]) -> list[int]:
    """Blocks on which two holders disagree, ascending."""
    return [block for block in sorted(blocks) if len(set(blocks[block].values())) > 1]
