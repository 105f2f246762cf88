"""Entries of a window as columns (numpy), and the fast part of a walk: runs of entries without any
irregularity. Pure.

A window is the part of a segment that is read in one step. Python code runs for each entry only to get its
length and the CRC of its body; all other checks are made on whole columns. Any irregularity ends a run, and
`walk` checks the entries there one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dledger.formats.checksum import crc32
from dledger.formats.entry import APACHE_MAGICS, COVERED, HEADER_SIZE, MAGIC, MAX_ENTRY_SIZE

BODY_DAMAGED = 1
"""Flag of an entry: the computed CRC of the body differs from the stored one."""
CHAIN_BROKEN = 2
"""Flag of an entry: the stored chain value does not continue that of the previous entry."""
CHAIN_UNKNOWN = 4
"""Flag of an entry: the previous entry is not known (at the start of a segment, or after damage)."""
UNREADABLE = 8
"""Flag of a row that is not an entry, but says that a segment could not be read (index -1)."""

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

_HEADERS = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("pos", ">i8"),
        ("channel", ">u4"),
        ("chain", ">u4"),
        ("stored", ">u4"),
        ("body", ">i4"),
    ]
)
_SIZE = Struct(">i")
_REMAINING = 0xFFFFFF


class Entry(NamedTuple):
    """An entry as it was read. `crc` is computed from the body; `stored_crc` and `chain` are from the
    header."""

    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    term: int
    pos: int
    size: int
    channel: int
    crc: int
    stored_crc: int
    chain: int
    damage: int


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Entries as columns: one array of 64-bit signed integers for each field of `Entry`, in order of the
    log."""

    index: Array
    term: Array
    pos: Array
    size: Array
    channel: Array
    crc: Array
    stored_crc: Array
    chain: Array
    damage: Array

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: slice | Array) -> Columns:
        """Select some of the entries, by a slice, a mask or numbers."""
        chosen = to_pick(chosen)
        return Columns(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def entry(self, number: int) -> Entry:
        """One entry."""
        return Entry(*(int(getattr(self, field.name)[number]) for field in fields(self)))

    def entries(self) -> list[Entry]:
        """All entries as a list."""
        lists = [getattr(self, field.name).tolist() for field in fields(self)]
        return list(map(Entry._make, zip(*lists, strict=True)))


def to_pick(chosen: slice | Array) -> slice | Array:
    """Convert a selection for use with many columns. A mask becomes numbers, or a slice if it selects all."""
    if isinstance(chosen, slice) or chosen.dtype != np.bool_:
        return chosen
    return slice(None) if chosen.all() else np.flatnonzero(chosen)


def columns_of(entries: Sequence[Entry]) -> Columns:
    """Make columns from single entries."""
    if not entries:
        return Columns(*(np.empty(0, np.int64) for _ in Entry._fields))
    return Columns(*np.array(entries, np.int64).T.copy())


def join(parts: Sequence[Columns]) -> Columns:
    """Join columns one after another."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return columns_of(())
    return Columns(
        *(np.concatenate([getattr(part, field.name) for part in filled]) for field in fields(Columns))
    )


def structs(buffer: Bytes, starts: Array, kind: np.dtype[Any]) -> Array:
    """Read a structure at each start, all at once. Each structure must lie within the buffer."""
    if not len(starts):
        return np.empty(0, kind)
    raw = np.dtype((np.void, kind.itemsize))
    every = np.ndarray((len(buffer) - kind.itemsize + 1,), raw, buffer=buffer.data, strides=(1,))
    found: Array = every[starts].view(kind)
    return found


def body_crcs(data: bytes, starts: Array, ends: Array, channels: Array) -> Array:
    """CRC-32 of the bodies of entries, with the start value that their channels give
    (`formats.entry.COVERED`)."""
    begin = np.where(channels & COVERED != 0, channels, 0)
    if not begin.any():
        return slice_crcs(data, starts, ends)
    view = memoryview(data)
    places = zip(starts.tolist(), ends.tolist(), begin.tolist(), strict=True)
    return np.array([crc32(view[start:end], value) for start, end, value in places], np.int64)


def slice_crcs(data: bytes, starts: Array, ends: Array) -> Array:
    """CRC-32 of each range of `data`."""
    view = memoryview(data)
    # A comprehension takes three quarters of the time of `map`, because it makes no slice objects.
    sums = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(sums, np.int64)


class Before(NamedTuple):
    """What a walk knows about the previous entry.

    * `expect`: the index after it.
    * `term`: its term.
    * `chain`: its chain value, None if it is unknown.
    * `batch`: how many entries of its batch are still to come.
    * `own_crcs`: whether any earlier entry had CRCs, which only programs of this project write.
    """

    expect: int
    term: int
    chain: int | None
    batch: int
    own_crcs: bool


def plain_run(
    data: bytes, at: int, base: int, before: Before, told: Array | None = None
) -> tuple[Columns, int]:
    """Return the longest run of entries without any irregularity, and the offset behind it. The run begins at
    offset `at` of `data`. `base` is the log offset of `data`.

    `told` has offsets of entries according to the index files; they are checked. Without it, the sizes of the
    entries are followed one by one.
    """
    offsets = _follow_sizes(data, at) if told is None else told[told <= len(data) - HEADER_SIZE]
    if not len(offsets) or offsets[0] != at or (offsets < at).any():
        return columns_of(()), at
    headers = structs(np.frombuffer(data, np.uint8), offsets, _HEADERS)
    index, term, pos, size, channel, chain, stored = (
        headers[name].astype(np.int64)
        for name in ("index", "term", "pos", "size", "channel", "chain", "stored")
    )
    ours = bool(stored[0] or chain[0] or before.own_crcs)
    ends = offsets + size
    fits = (
        (index == before.expect + np.arange(len(offsets)))
        & (pos == base + offsets)
        & (size == headers["body"].astype(np.int64) + HEADER_SIZE)
        & (size >= HEADER_SIZE)
        & (size <= MAX_ENTRY_SIZE)
        & (ends <= len(data))
        & (offsets == _behind(at, ends))
        & (term >= _behind(before.term, term))
    )
    batch_before = _behind(before.batch, channel & _REMAINING)
    fits &= (batch_before == 0) | (channel & _REMAINING == batch_before - 1)
    if ours:
        if before.chain is None:
            return columns_of(()), at
        fits &= headers["magic"] == MAGIC
        fits &= _chain_crcs(headers, _behind(before.chain, chain)) == chain
    else:
        fits &= (stored == 0) & (chain == 0)
        fits &= (headers["magic"] >= APACHE_MAGICS[0]) & (headers["magic"] <= APACHE_MAGICS[-1])
    count = _leading(fits)
    crc = body_crcs(data, offsets[:count] + HEADER_SIZE, ends[:count], channel[:count])
    if ours:
        count = _leading(crc == stored[:count])
    damage = np.full(count, 0 if ours else CHAIN_UNKNOWN, np.int64)
    found = (index, term, pos, size, channel, crc, stored, chain)
    cut = [*(column[:count] for column in found), damage]
    return Columns(*cut), int(ends[count - 1]) if count else at


def _follow_sizes(data: bytes, at: int) -> Array:
    """Offsets at which entries begin, according to their sizes."""
    unpack = _SIZE.unpack_from
    last = len(data) - HEADER_SIZE
    found = []
    while at <= last:
        found.append(at)
        (size,) = unpack(data, at + 4)
        if size < HEADER_SIZE:
            break
        at += size
    return np.array(found, np.int64)


def _behind(first: int, values: Array) -> Array:
    """Move each value to the next position, with `first` at the beginning."""
    return np.concatenate(([first], values[:-1]))


def _leading(fits: Array) -> int:
    """Number of true values before the first one that is false."""
    return len(fits) if fits.all() else int(fits.argmin())


# --- the chain, for all entries at once -------------------------------------------------------------
#
# CRC-32 without its two inversions is linear: the value of a text is the XOR of a value for each byte and its
# place. `chain_crc` runs over 20 bytes, so 20 tables are enough; the previous value goes into the first 4.

_CHAIN_BYTES = (*range(8, 24), *range(40, 44))
"""Offsets of the bytes of index, term and body CRC in the header."""
_ALL = 0xFFFFFFFF


def _tables(length: int) -> npt.NDArray[np.uint32]:
    """Table [place, byte] of what each byte adds to the CRC of a text of this length, if the CRC is computed
    without inversions."""
    single = np.array([crc32(bytes([value])) ^ crc32(b"\0") for value in range(256)], np.uint32)
    tables = np.empty((length, 256), np.uint32)
    tables[length - 1] = single
    for place in range(length - 2, -1, -1):
        behind = tables[place + 1]
        tables[place] = (behind >> np.uint32(8)) ^ single[behind & np.uint32(255)]
    return tables


_CHAIN_TABLES = _tables(len(_CHAIN_BYTES))


def _chain_crcs(headers: Array, before: Array) -> Array:
    """Compute `formats.entry.chain_crc` for each header. `before` has the chain values of the previous
    entries."""
    raw = headers.view(np.uint8).reshape(len(headers), HEADER_SIZE)
    words = headers.view(np.uint64).reshape(len(headers), -1)
    index_and_term = (words[:, 1], words[:, 2])
    varying = b"".join(np.bitwise_or.reduce(word ^ word[0]).tobytes() for word in index_and_term)
    state = before ^ _ALL
    same = _ALL  # of all headers: more than half of the places
    result = np.zeros(len(headers), np.uint32)
    for number, place in enumerate(_CHAIN_BYTES):
        byte, table = raw[:, place], _CHAIN_TABLES[number]
        if number < 4:
            result ^= table.take(byte ^ (state >> (8 * number)).astype(np.uint8))
        elif number < len(varying) and not varying[number]:
            same ^= int(table[byte[0]])
        else:
            result ^= table.take(byte)  # half the time of `table[byte]`
    result ^= np.uint32(same)
    return result.astype(np.int64)
