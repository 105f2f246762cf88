"""Read the entries of a part of a segment, with only the checks that are needed before a message is
returned.

Where the index files say where entries lie, the headers of many entries are compared with the expected
values at once, as columns. Only the CRCs need a loop. At the first header that does not match,
`audit.scan` takes over, as it can tell damage from the end of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dledger.audit.entries import BODY_DAMAGED, Columns, body_crcs, structs
from dledger.audit.scan import Window, read_entries
from dledger.audit.store_directory import SegmentTask
from dledger.audit.unit_files import UnitFiles
from dledger.formats.entry import APACHE_MAGICS, HEADER_SIZE, INDEX_UNIT_SIZE, MAGIC, MAX_ENTRY_SIZE
from dledger.formats.store_files import INDEX_DIR, parse_segment_name
from dledger.runtime import File, Files
from dledger.runtime.remote_files import files_for

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

WINDOW = 4 * 1024 * 1024
"""Number of bytes read at a time, which hold some thousand entries. Windows of 2 MiB and of 8 MiB were
measured to take more CPU time."""
_WIDE_WINDOW = 2 * WINDOW
"""Number of bytes read at a time if the next entry does not fit into WINDOW. It is more than the largest
entry."""
NO_END = 1 << 62

_HEADER = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("pos", ">i8"),
        ("channel", ">u4"),
        ("chain", ">u4"),
        ("crc", ">u4"),
        ("body", ">i4"),
    ]
)
_UNIT = np.dtype([("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")])
_HINT_UNITS = 65536
"""Number of units of the index files read at a time: 2 MiB."""


@dataclass(frozen=True)
class Piece:
    """A piece of the log: entries `first` to `last` of one segment, which one task reads. `last` -1 means:
    to the end of the log.

    Reading begins with entry `begin`, which lies at `offset` of the file. `begin` -1 means that it is not
    known where entries lie, so the segment must be searched. `bytes`: about how many bytes are read.
    """

    task: SegmentTask
    begin: int
    offset: int
    first: int
    last: int
    bytes: int


def is_retired(directories: Sequence[str], start: int) -> bool:
    """Whether retention has deleted the segment at `start` of the log in these directories: all segments that
    are left begin behind it. Any other segment that is missing is damage."""
    starts = [
        parse_segment_name(name)
        for directory in directories
        for name in files_for(directory).listdir(directory)
    ]
    return min((one for one in starts if one is not None), default=-1) > start


def read_windows(piece: Piece) -> Iterator[Window]:
    """Yield the entries of a piece, ascending. Lost entries are left out. Raises OSError if the file
    cannot be read.

    The chain of CRCs is not checked: only the audit decides which of two valid entries is the right one.
    """
    files = files_for(piece.task.path)
    last = piece.last if piece.last >= 0 else NO_END
    walk = _Walk(files, piece)
    try:
        if piece.begin >= 0:
            for window in walk.run(last):
                kept = window.columns.index >= piece.first
                yield window if kept.all() else replace(window, columns=window.columns[kept])
    finally:
        walk.close()
    following = max(walk.next, piece.first)
    must_reach = piece.task.committed if piece.task.next_first is None else piece.task.next_first - 1
    if following <= min(last, must_reach):
        yield from read_entries(files, piece.task, piece.task.first_index, [(following, last)])


class _Walk:
    """Reads entries as long as every header matches. `next`: index of the entry to be read next."""

    def __init__(self, files: Files, piece: Piece) -> None:
        self.next = piece.begin
        self._files = files
        self._task = piece.task
        self._offset = piece.offset
        self._term = 0
        self._own_crcs = False
        self._units: UnitFiles | None = None
        self._first_hint = 0
        self._hints = np.empty(0, _UNIT)

    def close(self) -> None:
        """Close the index files."""
        if self._units is not None:
            self._units.close()

    def run(self, last: int) -> Iterator[Window]:
        """Yield windows of entries up to entry `last`. Ends at the first header that does not match, and
        at the end of the file."""
        try:
            file = self._files.open_read(self._task.path)
        except FileNotFoundError:
            return  # retired since it was listed
        try:
            yield from self._run(file, last)
        finally:
            file.close()

    def _run(self, file: File, last: int) -> Iterator[Window]:
        size = file.size()
        window = WINDOW
        while self.next <= last and size - self._offset >= HEADER_SIZE:
            data = file.pread(min(window, size - self._offset), self._offset)
            base = self._task.start + self._offset
            found = self._believed(data, base, last - self.next + 1)
            if not len(found):
                if len(data) == WINDOW:
                    window = _WIDE_WINDOW
                    continue
                return
            window = WINDOW
            self._offset += int(found.size.sum())
            self.next += len(found)
            self._term = int(found.term[-1])
            yield Window(data, base, found)

    def _believed(self, data: bytes, base: int, most: int) -> Columns:
        """Return columns of the entries that lie completely in `data`, up to the first entry that does not
        match, and at most `most` entries."""
        starts = self._hinted(base, len(data), most)
        head = headers(data, starts)
        count = self._right(head, starts, base)
        if not count or count < len(starts):  # the index files are wrong, or the log is: the log decides
            starts = _places(data, most)
            head = headers(data, starts)
            count = self._right(head, starts, base)
        found = checked(data, head[:count], starts[:count])
        own = (found.stored_crc != 0) | (found.chain != 0)  # Apache leaves both 0
        forgotten = ~own & (np.maximum.accumulate(own) | self._own_crcs)
        foreign = own & (head["magic"][:count] != MAGIC)
        good = _leading((found.damage == 0) & ~forgotten & ~foreign)
        self._own_crcs = self._own_crcs or bool(own[:good].any())
        return found[:good]

    def _right(self, head: npt.NDArray[np.void], starts: Ints, base: int) -> int:
        """Return how many headers, counted from the front, have the values that are expected at their
        places."""
        count = len(starts)
        size = head["size"].astype(np.int64)
        term = head["term"].astype(np.int64)
        return _leading(
            (head["magic"] >= APACHE_MAGICS[0])
            & (head["magic"] <= APACHE_MAGICS[-1])
            & (head["index"] == self.next + np.arange(count))
            & (head["pos"] == base + starts)
            & (size == head["body"].astype(np.int64) + HEADER_SIZE)
            & (size <= MAX_ENTRY_SIZE)
            & (starts == np.concatenate(([0], starts + size))[:count])
            & (term >= np.concatenate(([self._term], term))[:count])
        )

    def _hinted(self, base: int, limit: int, most: int) -> Ints:
        """Return where entries begin in `data`, as the index files say. Only entries that end within its
        `limit` bytes count."""
        if not self._first_hint <= self.next < self._first_hint + len(self._hints) // 2:
            if self._units is None:
                directory = f"{self._task.directory}/{INDEX_DIR}"
                self._units = UnitFiles(self._files, directory, INDEX_UNIT_SIZE)
            self._hints = np.frombuffer(self._units.read(self.next, _HINT_UNITS), _UNIT)
            self._first_hint = self.next
        units = self._hints[self.next - self._first_hint :][:most]
        starts = units["pos"].astype(np.int64) - base
        ends = starts + units["size"]
        fits = (units["size"] >= HEADER_SIZE) & (starts >= 0) & (ends <= limit)
        return starts[: _leading(fits)]


def _places(data: bytes, most: int) -> Ints:
    """Return where entries begin, if the size in each header is right. This is the only loop in checking
    the structure."""
    unpack = struct.Struct(">i").unpack_from
    places: list[int] = []
    at = 0
    limit = len(data)
    while limit - at >= HEADER_SIZE and len(places) < most:
        end = at + unpack(data, at + 4)[0]
        if end < at + HEADER_SIZE or end > limit:
            break
        places.append(at)
        at = end
    return np.array(places, np.int64)


def headers(data: bytes, starts: Ints) -> npt.NDArray[np.void]:
    """Return the headers (48 bytes each) at the given starts as columns. Every header must lie within the
    data."""
    return structs(np.frombuffer(data, np.uint8), starts, _HEADER)


def checked(data: bytes, head: npt.NDArray[np.void], starts: Ints) -> Columns:
    """Return columns of entries whose headers were found right. `damage` is set for an entry whose body
    does not match its CRC."""
    size, crc, chain, channel = (head[name].astype(np.int64) for name in ("size", "crc", "chain", "channel"))
    computed = body_crcs(data, starts + HEADER_SIZE, starts + size, channel)
    wrong = ((crc != 0) | (chain != 0)) & (computed != crc)
    index, term, pos = (head[name].astype(np.int64) for name in ("index", "term", "pos"))
    return Columns(index, term, pos, size, channel, computed, crc, chain, np.where(wrong, BODY_DAMAGED, 0))


def _leading(right: Bools) -> int:
    """Return how many values are true before the first false one."""
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if len(wrong) else len(right)
