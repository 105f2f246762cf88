"""Files of the index by key (store/index/IndexFile): written in batches, verified and searched. All functions
block, so only worker jobs call them.

A unit is one key of one message. A slot holds the number of the newest unit whose key hash falls into the
slot. The slots of the file that is being written are in memory (4 bytes each). Units are written to the file
at once. Slots and header are written by `flush`, first the slots, then the header. So after a crash the
header never promises more units than the file has. After a power loss `verify` checks the file. All units of
a message are in one file.
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
"""Size field of an entry or of a blank tail."""
_ENTRIES: Final = np.dtype(
    [("magic", ">i4"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8"), ("pos", ">i8"), ("channel", ">u4")]
)
_PAGE_SLOTS = 1024
"""Number of slots that are written together: a page of 4 KiB."""
_MANY_PAGES = 256
"""If more pages than this changed, all slots are written, with this many pages in each call."""
VERIFY_UNITS = 1 << 16
"""Number of units of an index file that one job verifies, in about 5 ms."""
MAX_LINKS = 50_000
"""Largest number of units of index files that one search follows. This takes a worker about 0.1 s. A search
that needs more gives an incomplete result."""

MAX_LINKS_OF_ONE = 2_000
"""Largest number of units of an index file that are followed for each key, if many keys are searched for at
once. This takes 6 ms. A slot has four units on average; it has many only if thousands of messages share a
key."""
NOT_WHOLE = -1
"""Stands among the positions of a key if there may be more: too many units share its slot."""
_EVER = 1 << 62


class DamagedIndex(Exception):
    """Raised if a file is damaged or inconsistent. Its keys are then read from the log again."""


@dataclass(slots=True)
class KeyFile:
    """One index file. `heads`: its slots, in memory while the file is being written; None for a full file."""

    path: str
    slots: int
    units: int
    header: IndexHeader = field(default_factory=IndexHeader)
    heads: Array | None = None
    dirty: set[int] = field(default_factory=set)
    """Numbers of the pages of slots that changed in memory and are not in the file yet."""

    @property
    def name(self) -> str:
        """Name of the file in its directory."""
        return self.path.rpartition("/")[2]

    @property
    def room(self) -> int:
        """Number of units (keys) for which the file still has room."""
        return self.units - self.header.count


def is_key_file(name: str) -> bool:
    """Whether a name in the directory is the name of an index file."""
    return len(name) == NAME_DIGITS and name.isdigit()


# -- writing ----------------------------------------------------------------------------------------------


def create(files: Files, path: str, slots: int, units: int, before: IndexHeader | None) -> KeyFile:
    """Create a file. `before`: the header of the previous file. Until the new file has a unit, its header
    repeats the end of the previous one."""
    header = IndexHeader()
    if before is not None:
        end, at = before.end_ms, before.end_position
        header = IndexHeader(end, end, at, at)
    file = files.open(path, create=True)
    try:
        file.truncate(file_size(slots, units))  # a sparse file: parts that are not written take no room
        file.pwritev([HEADER.pack(*header)], 0)
    finally:
        file.close()
    return KeyFile(path, slots, units, header, np.zeros(slots, np.int32))


def fitting(keys: MessageKeys, room: int) -> int:
    """Return how many of these keys, from the first on, fit into a file with `room` for so many units. Keys
    of one message count only if all of them fit. If one message has more keys than an empty file has room
    for, the caller cuts them (`MessageKeys` has at most 32 KiB of keys)."""
    count = len(keys.position)
    if count <= room:
        return count
    while room > 0 and keys.position[room - 1] == keys.position[room]:
        room -= 1
    return room


def append(files: Files, target: KeyFile, keys: MessageKeys) -> None:
    """Write a unit for each of `keys`, which are in the order of the log. The file must have room for all of
    them."""
    heads = target.heads
    assert heads is not None
    header, count = target.header, len(keys.position)
    if not count:
        return
    numbers = np.arange(header.count, header.count + count)
    first_ms, store_ms = int(keys.store_ms[0]), keys.store_ms
    begin_ms = header.begin_ms if header.count > 1 else first_ms
    seconds = np.clip((store_ms - begin_ms) // 1000, 0, 0x7FFFFFFF) if begin_ms > 0 else np.zeros(count)
    if header.count <= 1:  # as in IndexFile.putKey: the first unit counts from the end of the previous file
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
    # Change the header first, because a search finds nothing in a slot whose unit is beyond the header.
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
    """Return three columns: the number of the previous unit in the same slot, for each new unit; the slots
    that change; and the newest unit of each of these slots."""
    order = np.argsort(slot, kind="stable")
    sorted_slot, sorted_numbers = slot[order], numbers[order]
    same = np.concatenate(([False], sorted_slot[1:] == sorted_slot[:-1]))
    links = np.where(same, np.concatenate(([0], sorted_numbers[:-1])), heads[sorted_slot])
    before = np.empty(len(slot), np.int64)
    before[order] = links
    last = np.append(~same[1:], True)
    return before, sorted_slot[last], sorted_numbers[last]


def flush(files: Files, target: KeyFile, *, sync: bool = False) -> None:
    """Write the slots, then the header. `sync`: also make the file durable, because it is full and will not
    be verified again."""
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
    """Yield the ranges of slots that are written, one for each call. They are the given pages or, if more
    than `_MANY_PAGES` are given, all slots in ranges of 1 MiB."""
    if len(pages) <= _MANY_PAGES:
        yield from ((page * _PAGE_SLOTS, (page + 1) * _PAGE_SLOTS) for page in pages)
        return
    step = _MANY_PAGES * _PAGE_SLOTS
    yield from ((first, first + step) for first in range(0, slots, step))


# -- opening ----------------------------------------------------------------------------------------------


def load(files: Files, path: str, slots: int, units: int) -> KeyFile:
    """Open a file and read its header. Raises DamagedIndex if the header is impossible, or if the file does
    not have the size for so many slots and units."""
    file = files.open(path)
    try:
        if file.size() != file_size(slots, units):
            raise DamagedIndex(f"{path}: {file.size()} bytes are not those of {slots} slots, {units} units")
        header = unpack_index_header(file.pread(HEADER_SIZE, 0))
        found = KeyFile(path, slots, units, header)
        if not 1 <= header.count <= units or header.begin_position > header.end_position:
            raise DamagedIndex(f"{path}: the header has impossible values: {header}")
        if header.count > 1:
            ends = ((1, header.begin_position), (header.count - 1, header.end_position))
            for number, position in ends:
                if int(_units(file, slots, number, 1)["position"][0]) != position:
                    raise DamagedIndex(f"{path}: unit {number} is not that of the message at {position}")
        return found
    finally:
        file.close()


def verify(files: Files, target: KeyFile, first: int, position: int) -> tuple[int, int]:
    """Verify the order and the links of `VERIFY_UNITS` units, from number `first` on, and rebuild the slots
    from them. `position`: the position in the unit before `first`. Returns the number and the position with
    which to continue. Raises DamagedIndex if a unit is wrong."""
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
    """Return the key hash of the newest unit (key) of an index file."""
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
    """Return the positions of messages that may have the key, the newest first, at most `most`; and whether
    the search was complete. It is incomplete if it stopped after `MAX_LINKS` units with fewer than `most`
    positions."""
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
    """Return a list of positions for each of these key hashes: the messages that may have the key, the newest
    first, at most `most`. The last one is NOT_WHOLE if there may be more.

    For a key whose slot has more than MAX_LINKS_OF_ONE units the search goes on, as long as all these keys
    together need at most MAX_LINKS.
    """
    found: list[list[int]] = [[] for _ in wanted]
    links = MAX_LINKS
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
                if left <= 0 or positions[-1:] == [NOT_WHOLE]:
                    continue
                some, followed = lookup(read, target.slots, hashed, 0, _EVER, left, MAX_LINKS_OF_ONE)
                if followed == MAX_LINKS_OF_ONE and len(some) < left:
                    some, followed = lookup(read, target.slots, hashed, 0, _EVER, left, links)
                    if followed >= links and len(some) < left:
                        some.append(NOT_WHOLE)
                    links = max(links - followed, 0)
                positions += some
        finally:
            file.close()
    return found


def _reading(file: File, target: KeyFile, header: IndexHeader) -> _Read:
    return _Read(file, target, HEADER.pack(*header))


class _Read:
    """Reads parts of an index file for `lookup`. The header, and the slots of a file that is being written,
    come from memory."""

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
    """Keys of the complete entries in a window of the log.

    * `end`      offset in the window just after the last complete entry
    * `wanted`   if the window is too short for its first entry, the bytes that this entry needs; otherwise 0
    * `blank`    whether the rest of the segment is empty
    """

    keys: MessageKeys | None
    end: int
    wanted: int = 0
    blank: bool = False


def keys_in(data: bytes, base: int) -> LogKeys:
    """Return the keys of the committed entries in `data`; the first entry begins at log offset `base`. Raises
    ValueError if there is no entry where one must begin."""
    if FAST is not None and (found := FAST.index_keys(data, base)) is not None:
        rows, end = found
        return LogKeys(_of_rows(rows) if rows else None, end)
    starts: list[int] = []
    add, unpack, last = starts.append, _SIZE.unpack_from, len(data) - MIN_BLANK_SIZE
    at = 0
    while at <= last:  # as little work as possible for each entry
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
    # The log has checked the entries that it returns as committed, so no CRC is computed again.
    columns = EntryColumns(index, term, pos, size, channel, zero, ones, ones, zero)
    records = read_records(data, base, columns, deep=False)
    if records is None:
        return keys_one_by_one(data, base, columns, tags=False)
    return keys_of_records(data, records, property_texts(data, records), tags=False)


def hashes_at(data: bytes, position: int) -> Iterator[int]:
    """Yield the key hashes of the message whose entry is `data`."""
    found = keys_in(data, position - ENTRY_HEADER).keys
    yield from () if found is None else found.hashed.tolist()
