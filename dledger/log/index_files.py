"""Index files: 32 bytes per entry at `index * 32`. The last unit is the durable mark (safety.md S4).

Units are written only for entries that are fsynced already. Files are sparse: a unit that was never written
reads as zeros.
"""

from __future__ import annotations

from formats.entry import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC, IndexUnit
from formats.store_files import INDEX_DIR, parse_segment_name, segment_name
from runtime import File, Files


class IndexFiles:
    """The directory `index`. `unit` reads mapped memory; everything else blocks (worker)."""

    def __init__(self, files: Files, node_dir: str, units_per_file: int) -> None:
        self._files = files
        self._dir = f"{node_dir}/{INDEX_DIR}"
        self._size = units_per_file * INDEX_UNIT_SIZE
        self._open: dict[int, File] = {}
        self._dirty: dict[int, File] = {}
        self._first = 0

    def begin_at(self, first: int) -> None:
        """The log's first entry: units before it are not looked at (they may never have been written)."""
        self._first = first

    def open(self) -> None:
        """Open all index files."""
        self._files.mkdir(self._dir)
        for name in self._files.listdir(self._dir):
            start = parse_segment_name(name)
            if start is not None:
                file = self._open[start] = self._files.open(f"{self._dir}/{name}")
                if file.size() < self._size:
                    file.truncate(self._size)  # a power loss may forget the length of a new file

    def unit(self, index: int) -> IndexUnit | None:
        """The unit of an entry, None when it was not written (or is damaged beyond its own index)."""
        at = index * INDEX_UNIT_SIZE
        start = at - at % self._size
        file = self._open.get(start)
        if index < 0 or file is None:
            return None
        unit = IndexUnit._make(INDEX_UNIT.unpack_from(file.view(), at - start))
        return unit if unit.magic == MAGIC and unit.index == index else None

    def write(self, first: int, units: bytes) -> None:
        """Write consecutive units from entry `first` on (blocking, not synced); see `lacks`."""
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

    def drop_before(self, first: int) -> int:
        """Remove the files that hold only units of entries before `first` (blocking); how many there were.

        The file that holds the unit of `first` keeps the units before it: nobody looks at them.
        """
        self._first = first
        gone = [start for start in sorted(self._open) if start + self._size <= first * INDEX_UNIT_SIZE]
        for start in gone:
            self._dirty.pop(start, None)
            self._open.pop(start).close()
            self._files.unlink(f"{self._dir}/{segment_name(start)}")
        return len(gone)

    def remove_all(self, first: int) -> None:
        """Remove all files; the next unit written is that of `first` (blocking)."""
        self._first = first
        self._dirty.clear()
        for start in sorted(self._open):
            self._open.pop(start).close()
        for name in self._files.listdir(self._dir):
            self._files.unlink(f"{self._dir}/{name}")

    def distrust(self, first: int) -> None:
        """Units from entry `first` on were read, and may not be durable: the next sync covers them (S2)."""
        for start in sorted(self._open):
            if start + self._size > first * INDEX_UNIT_SIZE:
                self._dirty[start] = self._open[start]

    def take_dirty(self) -> list[File]:
        """Files written since the last call; the caller fsyncs them, one job each."""
        dirty = list(self._dirty.values())
        self._dirty.clear()
        return dirty

    def clear_from(self, first: int) -> list[File]:
        """Zero all units from entry `first` on (blocking); the files to fsync."""
        touched = []
        for start in sorted(self._open):
            file = self._open[start]
            begin = max(first * INDEX_UNIT_SIZE - start, 0)
            if begin >= self._size:
                continue
            end = self._written_end(start)
            if end > begin:
                file.pwritev([bytes(end - begin)], begin)
                touched.append(file)
        return touched

    def last_unit(self) -> IndexUnit | None:
        """The durable mark: the last unit written."""
        for start in sorted(self._open, reverse=True):
            end = self._written_end(start)
            if end:
                return self.unit((start + end) // INDEX_UNIT_SIZE - 1)
        return None

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def lacks(self, first: int, count: int) -> bool:
        """Whether units `first..first + count - 1` need a file that is not there yet."""
        begin = first * INDEX_UNIT_SIZE
        end = (first + count - 1) * INDEX_UNIT_SIZE
        return begin - begin % self._size not in self._open or end - end % self._size not in self._open

    def create(self, first: int, count: int) -> None:
        """Make the missing files (blocking); then the caller runs `sync_names` as a job of its own."""
        start = first * INDEX_UNIT_SIZE
        start -= start % self._size
        while start <= (first + count - 1) * INDEX_UNIT_SIZE:
            if start not in self._open:
                file = self._files.open(f"{self._dir}/{segment_name(start)}", create=True)
                file.truncate(self._size)
                self._open[start] = file
            start += self._size

    def sync_names(self) -> None:
        """Make names of new files durable (blocking)."""
        self._files.sync_dir(self._dir)

    def _written_end(self, start: int) -> int:
        """Bytes of the file up to its last written unit.

        Units are written in order from the log's first entry on, so a binary search over pages finds the
        region, and the page is walked. A
        power loss may leave holes in the last second's units; whatever unit is found was written after its
        entry was fsynced, and recovery rewrites the holes.
        """
        file = self._open[start]
        view = file.view()
        page = 4096
        begin = max(self._first * INDEX_UNIT_SIZE - start, 0)
        if begin >= self._size:
            return 0
        first_page = begin // page
        low, high = first_page, self._size // page + (1 if self._size % page else 0)
        while low < high:
            middle = (low + high) // 2
            if self._valid(view, start, max(middle * page, begin)):
                low = middle + 1
            else:
                high = middle
        if low == first_page:
            return 0
        end = max((low - 1) * page, begin)
        while end < self._size and self._valid(view, start, end):
            end += INDEX_UNIT_SIZE
        return end

    def _valid(self, view: memoryview, start: int, at: int) -> bool:
        magic, _, _, index, _ = INDEX_UNIT.unpack_from(view, at)
        return bool(magic == MAGIC and index == (start + at) // INDEX_UNIT_SIZE)
