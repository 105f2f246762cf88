"""Checks of IndexFiles (messages by key): against the log in both directions, and each file by itself.

* `KeyCheck`: every key of every committed message of a segment has a unit with its hash, position and time.
  In the other direction, every unit that points into the segment belongs to such a key. Messages behind the
  last unit are a lag, not a fault.
* `check_file`: links, slots and header of one file fit together. Memory: 8 bytes per slot (40 MB with
  Apache's defaults) and one chunk of units.

Files of a live broker grow while they are read, so a check uses the header as it was read first. Newer
brokers of Apache RocketMQ (5.4, not 4.9) also index the tag, as `topic#T#tag`. Units for tags are correct,
but not required.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dledger.audit.entries import Array, Columns, to_pick
from dledger.audit.findings import Finding, finding
from dledger.audit.message_keys import MessageKeys, keys_of_records, keys_one_by_one
from dledger.audit.records import PropertyTexts, Records
from dledger.audit.walk import Fault
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER_SIZE as ENTRY_HEADER
from dledger.formats.index_file import (
    HEADER_SIZE,
    MAX_SECONDS,
    NAME_DIGITS,
    SLOT_SIZE,
    SLOTS,
    UNIT_SIZE,
    IndexHeader,
    file_size,
    unit_offset,
    unpack_index_header,
)
from dledger.runtime import File, Files

_UNITS = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
_SLOTS = np.dtype(">i4")
_CHUNK_UNITS = 1 << 18
_FLUSH_UNITS = 1 << 18
"""Number of expected units that are compared at a time. It limits the memory of a scan to about 30 MB."""
_SAMPLE = 64


@dataclass(frozen=True)
class KeyFile:
    """One IndexFile as it was when it was opened."""

    path: str
    header: IndexHeader
    slots: int

    @property
    def units(self) -> int:
        """Number of units in the file."""
        return self.header.count - 1


class DamagedKeyFile(Exception):
    """Raised for a file whose header is invalid."""


def open_key_files(files: Files, root: str) -> tuple[list[KeyFile], list[str]]:
    """Return the files that have units, in order of the log, and the problems of invalid files. Raises
    OSError."""
    found: list[KeyFile] = []
    problems: list[str] = []
    for name in files.listdir(root) if root else ():
        if len(name) != NAME_DIGITS or not name.isdigit():
            continue
        path = f"{root}/{name}"
        try:
            key_file = _open(files, path)
        except FileNotFoundError:
            continue  # a live broker has removed it meanwhile
        except DamagedKeyFile as error:
            problems.append(str(error))
            continue
        if key_file.units > 0:
            found.append(key_file)
    return sorted(found, key=lambda file: (file.header.begin_position, file.path)), problems


def _open(files: Files, path: str) -> KeyFile:
    file = files.open_read(path)
    try:
        size = file.size()
        head = file.pread(HEADER_SIZE, 0)
        if len(head) < HEADER_SIZE:
            raise DamagedKeyFile(f"{path}: {size} bytes are too few for a header")
        header = unpack_index_header(head)
        slots = _slots(file, size, header)
        if slots is None:
            raise DamagedKeyFile(f"{path}: the header does not match the file: {header}")
        return KeyFile(path, header, slots)
    finally:
        file.close()


def _slots(file: File, size: int, header: IndexHeader) -> int | None:
    """Find the number of slots, which no field of the file contains. Tried are Apache's default, the same
    proportion of slots and units, and then a search for the first unit in the file. None if no number
    fits."""
    if header.count <= 1:
        return 0 if header.count >= 0 else None
    for slots in (SLOTS, (size - HEADER_SIZE) // (SLOT_SIZE + 4 * UNIT_SIZE)):
        if (slots != SLOTS or size == file_size()) and slots > 0 and _fits(file, size, header, slots):
            return slots
    first = header.begin_position.to_bytes(8, "big", signed=True)
    at = 0
    while at < size:
        data = file.pread(1 << 20, at)
        found = data.find(first)
        while found >= 0:
            slots, odd = divmod(at + found - 4 - UNIT_SIZE - HEADER_SIZE, SLOT_SIZE)
            if not odd and slots > 0 and _fits(file, size, header, slots):
                return slots
            found = data.find(first, found + 1)
        at += max(len(data) - 7, 1)
    return None


def _fits(file: File, size: int, header: IndexHeader, slots: int) -> bool:
    """Whether the first or the last unit is where it should be with this number of slots. One of the two may
    be damaged."""
    if unit_offset(slots, header.count) > size:
        return False
    ends = ((1, header.begin_position), (header.count - 1, header.end_position))
    return any(_position(file, slots, number) == position for number, position in ends)


def _position(file: File, slots: int, number: int) -> int:
    data = file.pread(8, unit_offset(slots, number) + 4)
    return int.from_bytes(data, "big", signed=True)


# --- one file by itself -----------------------------------------------------------------------------


def check_file(files: Files, replica: str, key_file: KeyFile, *, ours: bool = False) -> Iterator[Finding]:
    """Check the links, slots and header of one file. `ours`: one of our brokers wrote it. (Versions of
    RocketMQ count the slots in use in different ways.) Raises OSError."""
    file = files.open_read(key_file.path)
    try:
        problems = list(_check_links(file, key_file))
        header = key_file.header
        if ours and header.slots_used != key_file.units:
            problems.append(f"the header says {header.slots_used} slots in use for {key_file.units} units")
    except FileNotFoundError:
        return
    finally:
        file.close()
    for problem in problems[:1]:
        more = f" (and {len(problems) - 1} more in this file)" if len(problems) > 1 else ""
        yield finding("KEY_INDEX", replica, f"{key_file.path}: {problem}{more}")


def _check_links(file: File, key_file: KeyFile) -> Iterator[str]:
    header, slots = key_file.header, key_file.slots
    heads = np.zeros(slots, np.int32)
    position = header.begin_position
    for first in range(1, header.count, _CHUNK_UNITS):
        count = min(_CHUNK_UNITS, header.count - first)
        units = _read_units(file, slots, first, count)
        slot = units["hash"].astype(np.int64) % slots
        order = np.argsort(slot, kind="stable")
        numbers = first + order
        same_slot = np.concatenate(([False], np.diff(slot[order]) == 0))
        before = np.where(same_slot, np.concatenate(([0], numbers[:-1])), heads[slot[order]])
        links = units["before"][order]
        for number in np.flatnonzero(links != before).tolist():
            yield f"unit {numbers[number]} is linked to {links[number]}, not {before[number]}"
        last = np.append(~same_slot[1:], True)
        heads[slot[order][last]] = numbers[last]
        positions = np.concatenate(([position], units["position"].astype(np.int64)))
        for number in np.flatnonzero(np.diff(positions) < 0).tolist():
            yield (
                f"unit {first + number} points at {positions[number + 1]}, which is before the "
                "position of the previous unit"
            )
        position = int(positions[-1])
    stored = np.frombuffer(file.pread(slots * SLOT_SIZE, HEADER_SIZE), _SLOTS).astype(np.int32)
    wrong = (stored != heads[: len(stored)]) & (stored < header.count)  # the others are newer than the header
    for slot_number in np.flatnonzero(wrong).tolist():
        yield f"slot {slot_number} leads to unit {stored[slot_number]}, not {heads[slot_number]}"
    if position != header.end_position:
        yield f"the last unit points at {position}, the header says {header.end_position}"
    if _position(file, slots, 1) != header.begin_position:
        yield f"the first unit does not point at {header.begin_position}, as the header says"


def _read_units(file: File, slots: int, first: int, count: int) -> Array:
    data = file.pread(count * UNIT_SIZE, unit_offset(slots, first))
    return np.frombuffer(data.ljust(count * UNIT_SIZE, b"\0"), _UNITS)


# --- the log against the files ----------------------------------------------------------------------


class KeyCheck:
    """Compares the keys of one segment's committed messages with the IndexFiles. If `root` is empty, there
    are no files and nothing is checked."""

    def __init__(self, files: Files, root: str, committed: int) -> None:
        self._files = files
        self._committed = committed
        self._key_files = open_key_files(files, root)[0]
        self._end = max((file.header.end_position for file in self._key_files), default=-1)
        self._expected: list[MessageKeys] = []
        self._pending = 0
        self._from = -1
        self._sums: dict[str, list[int | str]] = {}
        self.whole = True
        """Whether every entry so far could be read. If not, a unit that belongs to no known message may be
        correct."""
        self.lacking: int = 0
        """Number of keys that have no unit yet."""
        self.faults: list[Fault] = []

    @property
    def active(self) -> bool:
        """Whether there are files to compare with."""
        return bool(self._key_files)

    def add(
        self, data: bytes, base: int, columns: Columns, found: tuple[Records, PropertyTexts] | None
    ) -> None:
        """Add the keys of one window of the segment, whose bytes `data` begin at log offset `base`. `found`
        has the records of the window and their properties; it is None if a record is irregular, and then the
        records are read one by one."""
        if not self.active:
            return
        if self._from < 0:
            self._from = int(columns.pos[0])
        apaches = not (columns.stored_crc.any() or columns.chain.any())
        if found is not None:
            keys = keys_of_records(data, *found, tags=apaches)
        else:
            keys = keys_one_by_one(data, base, columns, tags=apaches)
        chosen = to_pick(keys.index <= self._committed)
        self._expected.append(MessageKeys(*(column[chosen] for column in keys)))
        self._pending += len(self._expected[-1].index)
        if self._pending >= _FLUSH_UNITS:
            self._compare(int(columns.pos[-1]) + 1)

    def finish(self, end_pos: int) -> None:
        """Compare the remaining keys, and make one fault for each code. `end_pos` is the end of the committed
        log in this segment."""
        if self.active and self._from >= 0:
            self._compare(end_pos)
        self.faults = [
            Fault(code, int(first), int(last), f"{count} units{text}")
            for code, (count, first, last, text) in sorted(self._sums.items())
        ]

    def _compare(self, end_pos: int) -> None:
        """Compare the keys of entries that begin below `end_pos`."""
        keys = [np.concatenate(column) for column in zip(*self._expected, strict=True)]
        self._expected, self._pending = [], 0
        first_position, end_position = self._from + ENTRY_HEADER, end_pos + ENTRY_HEADER
        self._from = end_pos
        if not keys:
            return
        position, hashed, store_ms, index, is_tag = keys
        theirs = self._units(first_position, end_position)
        ours = _pair(position, hashed, first_position)
        found = _pair(theirs.position, theirs.hashed, first_position)
        if np.array_equal(ours, found):
            self._check_times(theirs, np.arange(len(ours)), np.ones(len(ours), bool), store_ms, index)
            return
        absent = ~np.isin(ours, found) & ~is_tag
        late = np.flatnonzero(absent & (position >= self._end))  # the keys of a message follow one another
        if len(late):
            self.lacking += len(late)
            text = ": keys of messages that are not in the files yet"
            self._count("KEY_LAG", len(late), int(index[late[0]]), int(index[late[-1]]), text)
        missing = np.flatnonzero(absent & (position < self._end))
        if len(missing):
            one = int(missing[0])
            text = f" are missing, the first of the message at {position[one]} with key hash {hashed[one]}"
            self._count("KEY_MISSING", len(missing), int(index[missing[0]]), int(index[missing[-1]]), text)
        self._check_dangling(theirs, found, ours, position, index)
        order = np.argsort(ours, kind="stable")
        if len(ours):
            at = order[np.minimum(np.searchsorted(ours[order], found), len(ours) - 1)]
            self._check_times(theirs, at, ours[at] == found, store_ms, index)

    def _check_dangling(
        self, theirs: _Units, found: Array, ours: Array, position: Array, index: Array
    ) -> None:
        dangling = ~np.isin(found, ours)
        if not self.whole:
            dangling &= np.isin(theirs.position, position)
        wrong = np.flatnonzero(dangling)
        if len(wrong):
            one = int(wrong[0])
            what = f"hash {theirs.hashed[one]}, position {theirs.position[one]}"
            near = np.searchsorted(position, theirs.position[wrong])
            first, last = (index[min(int(at), len(index) - 1)] if len(index) else -1 for at in near[[0, -1]])
            text = f" name a key that no message has, the first: {what}"
            self._count("KEY_DANGLING", len(wrong), int(first), int(last), text)

    def _check_times(self, theirs: _Units, at: Array, matched: Array, store_ms: Array, index: Array) -> None:
        """Check that each unit has the store time of its message. `at[i]` is the number of the key of unit i;
        it is valid only if `matched[i]` is true."""
        stored = store_ms[at]
        expected = np.clip((stored - theirs.begin_ms) // 1000, 0, MAX_SECONDS)
        # The first unit counts from the end of the previous file, but `begin_ms` is the time of its message.
        fits = np.where(theirs.first, stored == theirs.begin_ms, theirs.seconds == expected)
        # Only the header has the time of the last unit in ms; a search skips a file by it.
        fits &= (theirs.end_ms < 0) | (stored == theirs.end_ms)
        wrong = np.flatnonzero(matched & ~fits)
        if len(wrong):
            one = int(wrong[0])
            text = f" have a wrong time, the first: {theirs.seconds[one]} s instead of {expected[one]} s"
            lines = index[at][wrong]
            self._count("KEY_MISMATCH", len(wrong), int(lines.min()), int(lines.max()), text)

    def _count(self, code: str, count: int, first: int, last: int, text: str) -> None:
        known = self._sums.get(code)
        if known is None:
            self._sums[code] = [count, first, last, text]
        else:
            known[0], known[2] = int(known[0]) + count, last

    def _units(self, first: int, end: int) -> _Units:
        """Read the units of all files that point at log offsets [first, end)."""
        parts = [_no_units()]
        for key_file in self._key_files:
            header = key_file.header
            if header.begin_position < end and header.end_position >= first:
                parts.append(_units_between(self._files, key_file, first, end))
        return _join(parts)


@dataclass(frozen=True)
class _Units:
    """Units of several files as columns, in order. `first` says whether a unit is the first of its file.
    `end_ms` is the end time in the header of the file for its last unit, and -1 for all others."""

    position: Array
    hashed: Array
    seconds: Array
    begin_ms: Array
    first: Array
    end_ms: Array


def _no_units() -> _Units:
    none = np.empty(0, np.int64)
    return _Units(none, none, none, none, np.empty(0, bool), none)


def _join(parts: list[_Units]) -> _Units:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return _Units(*(np.concatenate(column) for column in columns))


def _units_between(files: Files, key_file: KeyFile, first: int, end: int) -> _Units:
    """Read the units of one file that point at log offsets [first, end).

    Positions ascend, so both ends are found by binary search. This result is used if the units around it
    agree; otherwise the whole file is read.
    """
    try:
        file = files.open_read(key_file.path)
    except FileNotFoundError:
        return _no_units()
    try:
        edges = [_find(file, key_file, position) for position in (first, end)]
        if None in edges or edges[0] > edges[1]:  # type: ignore[operator]
            edges = [1, key_file.header.count]
        parts = [_no_units()]
        low, high = edges[0] or 1, edges[1] or 1
        for start in range(low, high, _CHUNK_UNITS):
            units = _read_units(file, key_file.slots, start, min(_CHUNK_UNITS, high - start))
            inside = (units["position"] >= first) & (units["position"] < end)
            numbers = start + np.flatnonzero(inside)
            chosen = units[inside]
            position, hashed, seconds = (
                chosen[name].astype(np.int64) for name in ("position", "hash", "seconds")
            )
            begin_ms = np.full(len(chosen), key_file.header.begin_ms)
            end_ms = np.where(numbers == key_file.units, key_file.header.end_ms, -1)
            parts.append(_Units(position, hashed, seconds, begin_ms, numbers == 1, end_ms))
    finally:
        file.close()
    return _join(parts)


def units_crc(files: Files, root: str, start: int, end: int) -> int:
    """CRC-32 of all units that point at entries in the log range [start, end); 0 if there are none."""
    crc = 0
    for key_file in open_key_files(files, root)[0]:
        header = key_file.header
        if header.begin_position < end + ENTRY_HEADER and header.end_position >= start:
            units = _units_between(files, key_file, start + ENTRY_HEADER, end + ENTRY_HEADER)
            for column in vars(units).values():
                crc = crc32(column.tobytes(), crc)
    return crc


def _find(file: File, key_file: KeyFile, position: int) -> int | None:
    """Number of the first unit that points at `position` or later; None if the units around it disagree."""
    low, high = 1, key_file.header.count
    while low < high:
        middle = (low + high) // 2
        if _position(file, key_file.slots, middle) < position:
            low = middle + 1
        else:
            high = middle
    start = max(low - _SAMPLE, 1)
    around = _read_units(file, key_file.slots, start, min(low + _SAMPLE, key_file.header.count) - start)
    smaller = around["position"] < position
    return low if smaller[: low - start].all() and not smaller[low - start :].any() else None


def _pair(position: Array, hashed: Array, origin: int) -> Array:
    """Combine position and hash into one number."""
    return (position - origin) << 32 | hashed
