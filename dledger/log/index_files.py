"""Index files: a unit of 32 bytes for each entry, at `index * 32`. The last unit is the durable mark
(safety.md S4).

Units are written only for entries that are fsynced already. Blocks are reserved ahead of the writing, so a
full disk stops a preparation and never a write. Units have no CRC. A unit that was read may be corrupt, and a
caller that needs certainty compares it with the entry (see recovery_scan.py).

Everything is read with `pread`, because then an I/O error can be caught; such a unit counts as missing. The
event loop reads only what is in memory (`unit_now`); a worker fetches the rest (`fetch`; safety.md S8).
"""

from __future__ import annotations

from dledger.errors import OUT_OF_MEANS
from dledger.formats.entry import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC, IndexUnit
from dledger.formats.store_files import INDEX_DIR, parse_segment_name, segment_name
from dledger.log.reading import read_around_errors
from dledger.runtime import File, Files

RESERVE_STEP = 4 * 1024 * 1024
"""Number of bytes whose blocks are reserved at a time (131,072 units). It is small enough for a small
disk."""
_PIECE = 256 * 1024
"""Size, in bytes, of one read or write while a whole file is processed."""
FETCHED = 2048
"""Number of units loaded into memory at a time (64 KiB). A reader usually continues with the neighbours of a
unit."""


class NotInMemory(Exception):
    """Raised when a unit is not in memory, so that reading it would block."""


class IndexFiles:
    """The directory `index`. Methods block and belong into the FLUSH lane, except `unit_now`, `believe_lost`,
    `look_again` and `lacks`."""

    def __init__(self, files: Files, node_dir: str, units_per_file: int) -> None:
        self._files = files
        self._dir = f"{node_dir}/{INDEX_DIR}"
        self._size = units_per_file * INDEX_UNIT_SIZE
        self._step = min(RESERVE_STEP, self._size)
        self._open: dict[int, File] = {}
        self._reserved: dict[int, int] = {}
        self._dirty: dict[int, File] = {}
        self._unsynced_names = False
        self._unreadable: set[int] = set()
        """Entries whose units a worker could not read. An entry stays here until its unit is written again or
        examined."""

    def open(self) -> None:
        """Open all index files."""
        self._files.mkdir(self._dir)
        for name in self._files.listdir(self._dir):
            start = parse_segment_name(name)
            if start is not None:
                file = self._open[start] = self._files.open(f"{self._dir}/{name}")
                if file.size() < self._size:
                    file.truncate(self._size)  # a power loss may forget the length of a new file
                self._reserved[start] = 0

    def unit(self, index: int) -> IndexUnit | None:
        """The unit of an entry; None if it was not written, cannot be read or belongs to another entry.

        Raises OSError if the error says nothing about the unit, for example when memory is short.
        """
        at = index * INDEX_UNIT_SIZE
        start = at - at % self._size
        file = self._open.get(start)
        if index < 0 or file is None:
            return None
        try:
            return _unit(file.pread(INDEX_UNIT_SIZE, at - start), index)
        except OSError as error:
            if error.errno in OUT_OF_MEANS:
                raise
            return None

    def unit_now(self, index: int) -> IndexUnit | None:
        """The unit of an entry, for the event loop. Raises `NotInMemory` if `fetch` must load it first."""
        at = index * INDEX_UNIT_SIZE
        start = at - at % self._size
        file = self._open.get(start)
        if index < 0 or file is None or index in self._unreadable:
            return None
        try:
            data = file.pread_now(INDEX_UNIT_SIZE, at - start)
        except OSError as error:
            if error.errno not in OUT_OF_MEANS:
                return None
            data = None
        if data is None:
            raise NotInMemory(f"the index unit of entry {index}")
        return _unit(data, index)

    def fetch(self, index: int) -> bool:
        """Load a unit and its neighbours (`FETCHED`) into memory; for a worker of any lane. Returns False if
        the unit cannot be read; then call `believe_lost`.

        Raises OSError if the error says nothing about the unit, for example when too many files are open.
        """
        at = index * INDEX_UNIT_SIZE
        start = at - at % self._size
        try:
            # A handle of its own: code that drops or removes files may close the shared one.
            file = self._files.open_read(f"{self._dir}/{segment_name(start)}")
        except OSError as error:
            if error.errno in OUT_OF_MEANS:
                raise
            return False
        try:
            size, place = FETCHED * INDEX_UNIT_SIZE, at - start
            return _reads(file, size, place - place % size) or _reads(file, INDEX_UNIT_SIZE, place)
        finally:
            file.close()

    def believe_lost(self, index: int) -> None:
        """Count the unit as missing because `fetch` failed. It counts so until it is written again or
        examined."""
        self._unreadable.add(index)

    def look_again(self, first: int, last: int) -> None:
        """Trust the files again for the units of entries `first..last`, because a worker examined them."""
        if self._unreadable:
            self._unreadable.difference_update(range(first, last + 1))

    def units(self, first: int, count: int) -> list[IndexUnit | None]:
        """Units of entries `first..first + count - 1`, each as `unit` returns it."""
        return [
            IndexUnit._make(fields) if fields[0] == MAGIC and fields[3] == number else None
            for number, fields in enumerate(INDEX_UNIT.iter_unpack(self.raw(first, count)), first)
        ]

    def raw(self, first: int, count: int) -> bytes:
        """The bytes of these units; zeros in place of missing ones."""
        parts = []
        at = first * INDEX_UNIT_SIZE
        end = at + count * INDEX_UNIT_SIZE
        while at < end:
            start = at - at % self._size
            here = min(end, start + self._size) - at
            file = self._open.get(start)
            parts.append(bytes(here) if file is None else read_around_errors(file, here, at - start))
            at += here
        return b"".join(parts)

    def write(self, first: int, units: bytes) -> None:
        """Write consecutive units from entry `first` on (not synced). The files must exist: see `lacks`."""
        at = first * INDEX_UNIT_SIZE
        view = memoryview(units)
        while view:
            start = at - at % self._size
            file = self._open[start]
            part = view[: self._size - (at - start)]
            file.pwritev([part], at - start)
            self._dirty[start] = file
            view = view[len(part) :]
            at += len(part)
        self.look_again(first, first + len(units) // INDEX_UNIT_SIZE - 1)

    def drop_before(self, first: int) -> bool:
        """Remove the files that hold only units of entries before `first`. Returns True while the removal of
        names is not durable; then call `sync_names` as another job.

        The file that holds the unit of `first` keeps the units before it; they are not read any more.
        """
        gone = [start for start in sorted(self._open) if start + self._size <= first * INDEX_UNIT_SIZE]
        for start in gone:
            self._dirty.pop(start, None)
            self._reserved.pop(start, None)
            self._open.pop(start).close()
            self._files.unlink(f"{self._dir}/{segment_name(start)}")
            self._unsynced_names = True
        return self._unsynced_names

    def remove_all(self) -> None:
        """Remove all files."""
        self._unreadable.clear()
        self._dirty.clear()
        self._reserved.clear()
        for start in sorted(self._open):
            self._open.pop(start).close()
        for name in self._files.listdir(self._dir):
            self._files.unlink(f"{self._dir}/{name}")

    def distrust(self, first: int, last: int) -> None:
        """Note that units of entries `first..last` were read but may not be durable. The next sync covers
        them (S2)."""
        for start in sorted(self._open):
            if start + self._size > first * INDEX_UNIT_SIZE and start <= last * INDEX_UNIT_SIZE:
                self._dirty[start] = self._open[start]

    def dirty(self) -> list[int]:
        """Files written and not yet synced. The caller runs `sync` for each of them, as one job each."""
        return list(self._dirty)

    def sync(self, start: int) -> None:
        """Make one file durable. Until that is done it counts as dirty, so that nothing relies on it too
        early."""
        file = self._dirty.get(start)
        if file is not None:
            file.fdatasync()
            self._dirty.pop(start, None)

    def clear_from(self, first: int) -> list[File]:
        """Overwrite all units from entry `first` on with zeros, also those behind holes. Return the files to
        fsync."""
        touched = []
        for start in sorted(self._open):
            file = self._open[start]
            begin = max(first * INDEX_UNIT_SIZE - start, 0)
            if begin >= self._size:
                continue
            end = self._used_end(file)
            for at in range(begin, end, _PIECE):
                file.pwritev([bytes(min(_PIECE, end - at))], at)
            if end > begin:
                touched.append(file)
        return touched

    def last_unit(self) -> IndexUnit | None:
        """The durable mark: the last unit that was written. It may belong to an entry before the log. Reads a
        whole file."""
        for start in sorted(self._open, reverse=True):
            end = self._used_end(self._open[start])
            while end > 0:
                begin = max(0, end - _PIECE)
                count = (end - begin) // INDEX_UNIT_SIZE
                for unit in reversed(self.units((start + begin) // INDEX_UNIT_SIZE, count)):
                    if unit is not None:
                        return unit
                end = begin
        return None

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def lacks(self, first: int, count: int) -> bool:
        """Whether something that units `first..first + count - 1` need is missing: a file, its blocks, or the
        durable name of a new file."""
        if self._unsynced_names:
            return True
        at = first * INDEX_UNIT_SIZE
        end = at + count * INDEX_UNIT_SIZE
        while at < end:
            start = at - at % self._size
            stop = min(end, start + self._size)
            if self._reserved.get(start, -1) < stop - start:
                return True
            at = stop
        return False

    def is_complete(self, first: int, last: int) -> bool:
        """Whether the files of units `first..last` exist."""
        begin = first * INDEX_UNIT_SIZE
        return all(
            start in self._open
            for start in range(begin - begin % self._size, (last + 1) * INDEX_UNIT_SIZE, self._size)
        )

    def create(self, first: int, count: int) -> bool:
        """Make missing files and reserve blocks. Returns True while names of new files are not durable; then
        call `sync_names` as another job.

        Raises OSError (ENOSPC) if there is no room. The call can be repeated, and nothing is lost.
        """
        at = first * INDEX_UNIT_SIZE
        end = at + max(count, 1) * INDEX_UNIT_SIZE
        while at < end:
            start = at - at % self._size
            stop = min(end, start + self._size)
            if start not in self._open:
                path = f"{self._dir}/{segment_name(start)}"
                new = not self._files.exists(path)
                file = self._files.open(path, create=True)
                try:
                    file.allocate(self._step)
                    file.truncate(self._size)
                except OSError:
                    file.close()
                    if new:  # a file that is half made would count as damaged
                        self._files.unlink(path)
                    raise
                self._open[start] = file
                self._reserved[start] = self._step
                self._unsynced_names = True
            wanted = min(self._size, -(-(stop - start) // self._step) * self._step)
            if self._reserved[start] < wanted:
                self._open[start].allocate(wanted)
                self._reserved[start] = wanted
            at = stop
        return self._unsynced_names

    def sync_names(self) -> None:
        """Make the names of new files durable."""
        self._files.sync_dir(self._dir)
        self._unsynced_names = False

    def _used_end(self, file: File) -> int:
        """Size, in bytes, of the used part of a file: up to its last byte that is not zero, rounded up to a
        unit.

        It does not use bisection, because corrupt bytes or a hole in the middle must not hide the units
        behind them.
        """
        end = min(file.size(), self._size)
        zeros = bytes(_PIECE)
        while end > 0:
            begin = max(0, end - _PIECE)
            data = read_around_errors(file, end - begin, begin)
            if data != zeros[: len(data)]:
                used = begin + len(data.rstrip(b"\0"))
                return -(-used // INDEX_UNIT_SIZE) * INDEX_UNIT_SIZE
            end = begin
        return 0


def _unit(data: bytes, index: int) -> IndexUnit | None:
    if len(data) < INDEX_UNIT_SIZE:
        return None
    unit = IndexUnit._make(INDEX_UNIT.unpack(data))
    return unit if unit.magic == MAGIC and unit.index == index else None


def _reads(file: File, size: int, at: int) -> bool:
    try:
        file.pread(size, at)
    except OSError as error:
        if error.errno in OUT_OF_MEANS:
            raise
        return False
    return True
