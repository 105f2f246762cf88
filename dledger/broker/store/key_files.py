"""Files of the index by key (store/index/IndexFile): written in batches, verified, searched. Blocking, for
worker jobs.

A file that is written has its slots in memory (4 bytes each). Units go to the file at once, slots and header
by `flush`, in this order: what a crash leaves is a header that promises no more than is there. What a power
loss leaves is looked at by `verify`. A message's units are never divided between two files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dledger._fast import FAST
from dledger.audit.entries import Array, structs
from dledger.audit.entries import Columns as EntryColumns
from dledger.audit.message_keys import MessageKeys, keys_of_records, keys_one_by_one
from dledger.audit.records import property_texts, read_records
from dledger.formats.entry import BLANK, BLANK_MAGIC, KIND_MASK, MIN_BLANK_SIZE, Kind
from dledger.formats.entry import HEADER_SIZE as ENTRY_HEADER
from dledger.formats.index_file import (
    HEADER,
    HEADER_SIZE,
    NAME_DIGITS,
    SLOT_SIZE,
    UNIT_SIZE,
    IndexHeader,
    file_size,
    lookup,
    seconds_after,
    unit_offset,
    unpack_index_header,
)
from dledger.runtime.files import File, Files

_UNITS: Final = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
_SIZE: Final = struct.Struct(">4xi")
"""Of an entry or a blank tail."""
_ENTRIES: Final = np.dtype(
    [("magic", ">i4"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8"), ("pos", ">i8"), ("channel", ">u4")]
)
_PAGE_SLOTS = 1024
"""Slots written together: a page of 4 KiB."""
_MANY_PAGES = 256
"""With more of them, all slots are written, so many pages at a time."""
VERIFY_UNITS = 1 << 16
"""Units that one job verifies, some 5 ms."""
MAX_LINKS = 50_000
"""Units that one search follows, in all files: about 0.1 s of a worker."""

MAX_LINKS_OF_ONE = 2_000
"""The same of each key and file, where many keys are searched for at once: 6 ms. A slot has four units, but
for that of a key which thousands of messages share."""
_EVER = 1 << 62


class DamagedIndex(Exception):
    """A file that cannot be believed: it is built anew from the log."""


@dataclass(slots=True)
class KeyFile:
    """One file. `heads`: its slots while it is written, None for one that is full."""

    path: str
    slots: int
    units: int
    header: IndexHeader = field(default_factory=IndexHeader)
    heads: Array | None = None
    dirty: set[int] = field(default_factory=set)
    """Pages of slots that the file lacks."""

    @property
    def name(self) -> str:
        """Its name in the directory."""
        return self.path.rpartition("/")[2]

    @property
    def room(self) -> int:
        """Units that still fit."""
        return self.units - self.header.count


def is_key_file(name: str) -> bool:
    """Whether a name in the directory is one of an index file."""
    return len(name) == NAME_DIGITS and name.isdigit()


# -- writing ----------------------------------------------------------------------------------------------


def create(files: Files, path: str, slots: int, units: int, before: IndexHeader | None) -> KeyFile:
    """A new file. `before`: the header of the one before, whose end is this one's until it has a unit."""
    header = IndexHeader()
    if before is not None:
        end, at = before.end_ms, before.end_position
        header = IndexHeader(end, end, at, at)
    file = files.open(path, create=True)
    try:
        file.truncate(file_size(slots, units))  # sparse: what is not written takes no room
        file.pwritev([HEADER.pack(*header)], 0)
    finally:
        file.close()
    return KeyFile(path, slots, units, header, np.zeros(slots, np.int32))


def fitting(keys: MessageKeys, room: int) -> int:
    """How many of these keys a file with so much room takes: whole messages. More than a new file has room
    for, of one message, are cut (`MessageKeys` has at most 32 KiB of them)."""
    count = len(keys.position)
    if count <= room:
        return count
    while room > 0 and keys.position[room - 1] == keys.position[room]:
        room -= 1
    return room


def append(files: Files, target: KeyFile, keys: MessageKeys) -> None:
    """Units of keys for which there is room, in order of the log."""
    heads = target.heads
    assert heads is not None
    header, count = target.header, len(keys.position)
    if not count:
        return
    numbers = np.arange(header.count, header.count + count)
    first_ms, store_ms = int(keys.store_ms[0]), keys.store_ms
    begin_ms = header.begin_ms if header.count > 1 else first_ms
    seconds = np.clip((store_ms - begin_ms) // 1000, 0, 0x7FFFFFFF) if begin_ms > 0 else np.zeros(count)
    if header.count <= 1:  # as IndexFile.putKey: the first counts from the end of the file before
        seconds[0] = seconds_after(header.begin_ms, first_ms)
    slot = keys.hashed % target.slots
    before, last_slot, last_number = _links(heads, slot, numbers)
    units = np.empty(count, _UNITS)
    units["hash"], units["position"], units["seconds"] = keys.hashed, keys.position, seconds
    units["before"] = before
    file = files.open(target.path)
    try:
        file.pwritev([units.tobytes()], unit_offset(target.slots, header.count))
    finally:
        file.close()
    begin_position = header.begin_position if header.count > 1 else int(keys.position[0])
    # The header first: a search that meets a slot beyond it finds nothing at all there.
    target.header = IndexHeader(
        begin_ms,
        int(store_ms[-1]),
        begin_position,
        int(keys.position[-1]),
        header.slots_used + count,
        header.count + count,
    )
    heads[last_slot] = last_number
    target.dirty.update((last_slot // _PAGE_SLOTS).tolist())


def _links(heads: Array, slot: Array, numbers: Array) -> tuple[Array, Array, Array]:
    """For each unit the one before it in its slot; and the slots with their newest unit."""
    order = np.argsort(slot, kind="stable")
    sorted_slot, sorted_numbers = slot[order], numbers[order]
    same = np.concatenate(([False], sorted_slot[1:] == sorted_slot[:-1]))
    links = np.where(same, np.concatenate(([0], sorted_numbers[:-1])), heads[sorted_slot])
    before = np.empty(len(slot), np.int64)
    before[order] = links
    last = np.append(~same[1:], True)
    return before, sorted_slot[last], sorted_numbers[last]


def flush(files: Files, target: KeyFile, *, sync: bool = False) -> None:
    """Slots, then the header. `sync`: a full file, which nobody verifies any more, is made durable."""
    if target.heads is None or not (target.dirty or sync):
        return
    pages, target.dirty = sorted(target.dirty), set()
    header, slots = target.header, target.heads
    file = files.open(target.path)
    try:
        for first, last in _runs(pages, len(slots)):
            part = slots[first:last].astype(">i4").tobytes()
            file.pwritev([part], HEADER_SIZE + first * SLOT_SIZE)
        file.pwritev([HEADER.pack(*header)], 0)
        if sync:
            file.fdatasync()
    except OSError:
        target.dirty.update(pages)
        raise
    finally:
        file.close()


def _runs(pages: list[int], slots: int) -> Iterator[tuple[int, int]]:
    """Which slots are written at a time: those pages, or all, 1 MiB each."""
    if len(pages) <= _MANY_PAGES:
        yield from ((page * _PAGE_SLOTS, (page + 1) * _PAGE_SLOTS) for page in pages)
        return
    step = _MANY_PAGES * _PAGE_SLOTS
    yield from ((first, first + step) for first in range(0, slots, step))


# -- opening ----------------------------------------------------------------------------------------------


def load(files: Files, path: str, slots: int, units: int) -> KeyFile:
    """A file as its header has it; DamagedIndex where that cannot be, or the size is another."""
    file = files.open(path)
    try:
        if file.size() != file_size(slots, units):
            raise DamagedIndex(f"{path}: {file.size()} bytes are not those of {slots} slots, {units} units")
        header = unpack_index_header(file.pread(HEADER_SIZE, 0))
        found = KeyFile(path, slots, units, header)
        if not 1 <= header.count <= units or header.begin_position > header.end_position:
            raise DamagedIndex(f"{path}: the header cannot be: {header}")
        if header.count > 1:
            ends = ((1, header.begin_position), (header.count - 1, header.end_position))
            for number, position in ends:
                if int(_units(file, slots, number, 1)["position"][0]) != position:
                    raise DamagedIndex(f"{path}: unit {number} is not that of the message at {position}")
        return found
    finally:
        file.close()


def verify(files: Files, target: KeyFile, first: int, position: int) -> tuple[int, int]:
    """Go over `VERIFY_UNITS` units from number `first` on: their order and links, from which the slots
    follow. `position`: of the unit before. The next number and its position before; DamagedIndex."""
    if target.heads is None:
        target.heads = np.zeros(target.slots, np.int32)
    count = min(VERIFY_UNITS, target.header.count - first)
    if not count:
        return first, position
    file = files.open(target.path)
    try:
        units = _units(file, target.slots, first, count)
    finally:
        file.close()
    hashed = units["hash"].astype(np.int64)
    positions = np.concatenate(([position], units["position"].astype(np.int64)))
    if (np.diff(positions) < 0).any() or (hashed < 0).any():
        raise DamagedIndex(f"{target.path}: units from {first} on are out of order")
    before, slot, newest = _links(target.heads, hashed % target.slots, np.arange(first, first + count))
    if (units["before"] != before).any():
        raise DamagedIndex(f"{target.path}: links from unit {first} on lead elsewhere")
    target.heads[slot] = newest
    target.dirty.update((slot // _PAGE_SLOTS).tolist())
    return first + count, int(positions[-1])


def last_hash(files: Files, target: KeyFile) -> int:
    """Key hash of the newest unit."""
    file = files.open(target.path)
    try:
        return int(_units(file, target.slots, target.header.count - 1, 1)["hash"][0])
    finally:
        file.close()


def _units(file: File, slots: int, first: int, count: int) -> Array:
    data = file.pread(count * UNIT_SIZE, unit_offset(slots, first))
    return np.frombuffer(data.ljust(count * UNIT_SIZE, b"\0"), _UNITS)


# -- searching --------------------------------------------------------------------------------------------


def search(
    files: Files, targets: Sequence[KeyFile], hashed: int, begin_ms: int, end_ms: int, most: int
) -> tuple[list[int], bool]:
    """Positions of messages that may have the key, the newest first, at most `most`; and whether all that
    there are were looked at but for those beyond `most` (else the links were more than `MAX_LINKS`)."""
    found: list[int] = []
    links = MAX_LINKS
    for target in reversed(targets):
        header = target.header
        if header.count <= 1 or header.begin_ms > end_ms or header.end_ms < begin_ms:
            continue
        try:
            file = files.open_read(target.path)
        except FileNotFoundError:
            continue  # retention took it
        try:
            positions, followed = lookup(
                _reading(file, target, header),
                target.slots,
                hashed,
                begin_ms,
                end_ms,
                most - len(found),
                links,
            )
        finally:
            file.close()
        found += positions
        links -= followed
        if len(found) >= most:
            return found, True
        if links <= 0:
            return found, False
    return found, True


def search_many(
    files: Files, targets: Sequence[KeyFile], wanted: Sequence[int], most: int
) -> list[list[int]]:
    """For each of these key hashes the positions of messages that may have the key, the newest first, at most
    `most`."""
    found: list[list[int]] = [[] for _ in wanted]
    for target in reversed(targets):
        header = target.header
        if header.count <= 1:
            continue
        try:
            file = files.open_read(target.path)
        except FileNotFoundError:
            continue  # retention took it
        try:
            read = _reading(file, target, header)
            for hashed, positions in zip(wanted, found, strict=True):
                left = most - len(positions)
                if left > 0:
                    positions += lookup(read, target.slots, hashed, 0, _EVER, left, MAX_LINKS_OF_ONE)[0]
        finally:
            file.close()
    return found


def _reading(file: File, target: KeyFile, header: IndexHeader) -> _Read:
    return _Read(file, target, HEADER.pack(*header))


class _Read:
    """`lookup` reads a file that is written from memory what the file may lack."""

    def __init__(self, file: File, target: KeyFile, header: bytes) -> None:
        self._file = file
        self._target = target
        self._header = header

    def __call__(self, length: int, offset: int) -> bytes:
        heads = self._target.heads
        if offset == 0:
            return self._header
        slot = (offset - HEADER_SIZE) // SLOT_SIZE
        if heads is not None and slot < self._target.slots:
            return int(heads[slot]).to_bytes(SLOT_SIZE, "big", signed=True)
        return self._file.pread(length, offset)


# -- keys of the log --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Keys of whole entries of a window; `end`: offset in it behind the last of them. `wanted`: bytes that
    its first entry takes, where it does not fit. `blank`: the rest of the segment is empty."""

    keys: MessageKeys | None
    end: int
    wanted: int = 0
    blank: bool = False


def keys_in(data: bytes, base: int) -> LogKeys:
    """Keys of the committed entries in `data`, whose first begins at log offset `base`. ValueError where
    there is no entry."""
    if FAST is not None and (found := FAST.index_keys(data, base)) is not None:
        rows, end = found
        return LogKeys(_of_rows(rows) if rows else None, end)
    starts: list[int] = []
    add, unpack, last = starts.append, _SIZE.unpack_from, len(data) - MIN_BLANK_SIZE
    at = 0
    while at <= last:  # as little as can be in a turn: there is one for each entry
        (size,) = unpack(data, at)
        add(at)
        if size < MIN_BLANK_SIZE:
            raise ValueError(f"no entry at {base + at}")
        at += size
    blank = bool(starts) and BLANK.unpack_from(data, starts[-1])[0] == BLANK_MAGIC
    wanted = 0
    places = np.array([*starts, at], np.int64)
    if blank or at > len(data):
        wanted = 0 if blank or len(starts) > 1 else at
        places = places[:-1]
    short = np.flatnonzero(np.diff(places) < ENTRY_HEADER)
    if len(short):
        raise ValueError(f"no entry at {base + int(places[short[0]])}")
    if len(places) < 2:
        return LogKeys(None, 0, wanted, blank)
    headers = structs(np.frombuffer(data, np.uint8), places[:-1], _ENTRIES)
    messages = headers[(headers["channel"] >> 24 & KIND_MASK) == Kind.MESSAGE]
    return LogKeys(_keys_of(data, base, messages) if len(messages) else None, int(places[-1]), 0, blank)


def _of_rows(rows: bytes) -> MessageKeys:
    position, hashed, store_ms, index = np.frombuffer(rows, np.int64).reshape(-1, 4).T
    return MessageKeys(position, hashed, store_ms, index, np.zeros(len(position), bool))


def _keys_of(data: bytes, base: int, headers: Array) -> MessageKeys:
    names = ("index", "term", "pos", "size", "channel")
    index, term, pos, size, channel = (headers[name].astype(np.int64) for name in names)
    zero, ones = np.zeros(len(headers), np.int64), np.ones(len(headers), np.int64)
    # What the log gives out as committed was checked by it: no CRC is worked out again.
    columns = EntryColumns(index, term, pos, size, channel, zero, ones, ones, zero)
    records = read_records(data, base, columns, deep=False)
    if records is None:
        return keys_one_by_one(data, base, columns, tags=False)
    return keys_of_records(data, records, property_texts(data, records), tags=False)


def hashes_at(data: bytes, position: int) -> Iterator[int]:
    """Key hashes of the message whose entry `data` is."""
    found = keys_in(data, position - ENTRY_HEADER).keys
    yield from () if found is None else found.hashed.tolist()
